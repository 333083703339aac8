// SPDX-License-Identifier: GPL-2.0-or-later
/* How a machine synchronizes with the others, and how it skips idle time. */
#ifndef WIRE_GRID_H
#define WIRE_GRID_H

#include <stdint.h>

/* Hook translation; call it while QEMU installs the plugin. `block_first`: QEMU gives a block first, not the plugin.
 * `coupled`: the machine is one of several. */
void grid_install(uint64_t plugin, int block_first, int coupled);
/* The machine begins to run. */
void grid_begin(void);

#endif
