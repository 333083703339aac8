// SPDX-License-Identifier: GPL-2.0-or-later
/* How the wire ends: one line on stderr and an exit status, and what it counted, as JSON. */
#ifndef WIRE_REPORT_H
#define WIRE_REPORT_H

#include <stdatomic.h>
#include <stdint.h>

enum { WIRE_EXIT = 70 }; /* the process ended because of the wire: EX_SOFTWARE of sysexits.h */

struct counts {
    uint64_t visits, waits, sleeps, wakes, leaps, aborts, sent, received, sent_bytes, lost, dropped, idle_turns, stale;
    uint64_t withheld, finds_blocks;
    int64_t waited_ns, leapt_ns;
};

/* Print `wire: node I: REASON` and end the process with WIRE_EXIT, at once and without QEMU's own clean-up. */
_Noreturn void wire_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Set the node that wire_die names. */
void wire_set_node(int node);

/* Why a node ended, for those that end because it did. */
struct end_reason {
    _Atomic uint32_t is_set;
    char text[252]; /* "ended by node I: REASON" */
};

/* Set where wire_die stores this node's reason. */
void wire_set_reason_place(struct end_reason *reason);

/* End as wire_die does because a peer did, with the first reason of all. */
_Noreturn void wire_die_after(const struct end_reason *peers);

/* Write the counts to `path`; a file that cannot be written ends the process. */
void wire_write_counts(const char *path, const struct counts *counts, int64_t virtual_ns, int64_t elapsed_ns);

int64_t wire_host_ns(void);

#endif
