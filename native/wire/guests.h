// SPDX-License-Identifier: GPL-2.0-or-later
/* A workaround for machines that run their own guests under KVM on SVM (docs/explanation/lab-stalls.md). */
#ifndef WIRE_GUESTS_H
#define WIRE_GUESTS_H

#include <stdint.h>

/* Keep QEMU from delivering an interrupt twice that VMRUN injected; each time is counted in `stale`. Ends the process
 * where this QEMU's data is not laid out as expected. Call it before the CPU runs. */
void guests_repair(uint64_t *stale);

#endif
