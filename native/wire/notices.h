// SPDX-License-Identifier: GPL-2.0-or-later
/* Notices to QEMU's event loops that a virtual timer is due, withheld from those that have none. */
#ifndef WIRE_NOTICES_H
#define WIRE_NOTICES_H

#include <stdint.h>

/* Withhold them from now on, counting each in `withheld`. Call it while the virtual clock is stopped: in the handler of
 * a state change to running. */
void notices_withhold(uint64_t *withheld);

#endif
