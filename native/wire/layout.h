// SPDX-License-Identifier: GPL-2.0-or-later
/* The place of fields that QEMU exports no function for, found by letting QEMU's own functions write to a fake. */
#ifndef WIRE_LAYOUT_H
#define WIRE_LAYOUT_H

#include "qemu.h"

/* Find the fields; ends the process when this QEMU is not as expected. Call it while the virtual clock is stopped: in
 * the handler of a state change to running. */
void layout_find(void);

/* Return a CPU's jump cache: `slots` slots of `bytes` bytes, which begin with a pointer. NULL for another. */
void *layout_jump_cache(const CPUState *cpu, size_t slots, size_t bytes);

/* Whether a CPU may do I/O where it is: next to the instruction count. Call layout_find first. */
uint8_t *layout_can_do_io(CPUState *cpu);

/* The machine's time in a callback at the start of a block of `block_insns` instructions, which QEMU has already taken
 * off the budget. Asking qemu_clock_get_ns there would end QEMU ("Bad icount read"). */
int64_t layout_time_in_block_ns(CPUState *cpu, uint64_t block_insns);

/* Leave the block that is about to begin as if it had not been entered; QEMU does due work and returns to it. */
_Noreturn void layout_leave_block(CPUState *cpu, uint64_t block_insns);

#endif
