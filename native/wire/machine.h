// SPDX-License-Identifier: GPL-2.0-or-later
/* This process's machine in the cluster: its ports and its frames. Access needs QEMU's big lock, or the thread of its
 * CPU while the CPU runs: QEMU never allows both at once. */
#ifndef WIRE_MACHINE_H
#define WIRE_MACHINE_H

#include <stdio.h>

#include "cluster.h"
#include "port.h"
#include "qemu.h"

struct options {
    const char *shared_path, *counts_path, *trace_path;
    int node, nodes;
    bool guests; /* it runs guests of its own */
    bool person; /* a person uses its console */
    bool jumps;  /* blocks are found by jumps.c */
    uint64_t seed, fuzz;
    int64_t lookahead_ns, step_ns, spin_ns, patience_s;
    struct link link[NETWORKS];
};

/* Read KEY=VALUE arguments; ends the process on one that is wrong. */
void options_read(struct options *options, int count, char **arguments);

struct machine {
    struct options options;
    struct member member;
    struct port port[NETWORKS];
    struct counts counts;
    int64_t began_ns; /* the virtual clock when the machine began to run; -1 before */
    int64_t began_host_ns;
    int64_t known_ns; /* all arrivals until then are known */
};

extern struct machine machine;

static inline int64_t machine_now_ns(void) { return qemu_clock_get_ns(CLOCK_VIRTUAL) - machine.began_ns; }

/* Attach a port to each network's hub. */
void machine_plug_in(void);
/* The machine begins to run at `clock_ns` of its virtual clock. */
void machine_begin(int64_t clock_ns);
/* The machine ends: tell the others, and write the counts. */
void machine_end(void);
/* All arrivals until `known_ns` are known now: pass them on, and set the timer for the first. Return when that is due.
 * */
int64_t machine_set_known(int64_t known_ns);
/* The earliest frame that has arrived. */
int64_t machine_next_frame_ns(void *unused);

#endif
