/* What every engine reports of its launch: an error, once, and in its file the MPI and machines it ran on. */
#ifndef NM_LAUNCH_H
#define NM_LAUNCH_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#include "text.h"

/* The engine's name, which begins its messages on stderr; each engine defines its own. */
extern const char program_name[];

/* Print the error once, from rank 0, and return the status. */
__attribute__((format(printf, 3, 4))) int launch_refuse(MPI_Comm comm, int status, const char *format, ...);

/* Add a list of numbers, every `stride`-th of `values`, to a header; with a key, as its next field. */
void launch_add_list(struct text *header, const char *key, const int64_t *values, size_t count, size_t stride);

/* Add the clock, and what a stamp costs on each rank, as the next fields of a header. */
void launch_add_clock(struct text *header, const int64_t *cost_ns, int ranks);

/* Add the fields that end a header: MPI standard and library, and the processor of each rank (`names`:
 * MPI_MAX_PROCESSOR_NAME characters a rank). */
void launch_end_header(struct text *header, const char *names, int ranks);

#endif
