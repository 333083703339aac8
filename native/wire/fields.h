// SPDX-License-Identifier: GPL-2.0-or-later
/* The places of a CPU's fields, by their names in QEMU's descriptions for migration. */
#ifndef WIRE_FIELDS_H
#define WIRE_FIELDS_H

#include <stdbool.h>
#include <stddef.h>

/* Return whether these bytes belong to QEMU's own program file. */
bool fields_in_program(const void *from, size_t bytes);

/* Return where a CPU keeps a field of `bytes` bytes, such as "env.eip". Ends the process when there is none. */
size_t fields_of_cpu(const char *name, size_t bytes);

/* The base of a segment: its index in the order of x86's segment registers. */
size_t fields_segment_base(int segment);

/* Where a CPU keeps the vector that waits for delivery. */
size_t fields_exception_index(void);

#endif
