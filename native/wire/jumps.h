// SPDX-License-Identifier: GPL-2.0-or-later
/* Jumps between blocks of translated code: the same blocks as QEMU finds, found sooner. */
#ifndef WIRE_JUMPS_H
#define WIRE_JUMPS_H

#include <stdbool.h>
#include <stdint.h>

/* Put the hooks in place: before the first block is translated, in the handler of a state change to running. With
 * `coupled`, PAUSE no longer leaves the CPU's loop. False: this QEMU, or a machine with several CPUs, goes without. */
bool jumps_begin(bool coupled);

/* QEMU has discarded all blocks (a callback of the plugin interface). */
void jumps_forget(void);

/* Compare one of the next blocks that are found with QEMU's; a wrong one ends the process. */
void jumps_check_soon(void);

#endif
