/* Measure one operation on one size: the timed loop and what surrounds it. */
#ifndef NMBENCH_MEASURE_H
#define NMBENCH_MEASURE_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops.h"
#include "options.h"
#include "sync.h"

/* One rank's measurements of one size. The arrays hold `warmup + iterations` entries, warm-up first. */
struct cell {
    int64_t size_bytes; /* 0 for an operation without a size */
    int64_t iterations, warmup;
    int64_t *begin_ns, *end_ns;
    unsigned char *flags; /* FLAG_WARMUP, FLAG_MISSED_WINDOW */
    struct clock_offset offset;
    int64_t sync_window_ns;
    int64_t check_rounds, check_failures; /* of this rank */
    int64_t calls; /* of the operation in all, including warm-up, checks and windows that were measured again */
    int64_t migrations; /* moves of this rank to another processor, -1 where the kernel does not report them */
    const char *type_name;
};

/* Return the entries of each array. */
size_t cell_entries(const struct cell *cell);

/* Allocate and touch the arrays. Returns 0, or the bytes that could not be allocated. */
size_t cell_allocate(struct cell *cell);
void cell_free(struct cell *cell);

/* Measure. Collective. Returns 0 and fills the cell, or, the same on every rank, the most bytes that a rank failed to
 * allocate; that rank reports it on stderr. */
int64_t measure_cell(const struct op *op, const struct sync_method *method, const struct options *options,
                     MPI_Comm comm, struct cell *cell);

/* Relate the clocks of all ranks after every cell is measured: fills `offset`. Collective. */
void measure_offsets(MPI_Comm comm, struct cell *cells, size_t count);

/* Report on stderr which rank could not allocate how much. */
void measure_report_memory(MPI_Comm comm, int64_t wanted_bytes, const char *purpose);

#endif
