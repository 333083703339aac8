/* Gather every rank's cells on rank 0 and write the sample file. */
#ifndef NMBENCH_RECORD_H
#define NMBENCH_RECORD_H

#include <mpi.h>

#include "measure.h"

/* All that the file holds. */
struct record {
    const struct op *op;
    const struct sync_method *method;
    const struct options *options;
    MPI_Comm comm;
    struct cell *cells;
    size_t cell_count;
};

/* Return how many received messages were wrong, over all sizes and ranks. Collective. */
int64_t record_check_failures(const struct record *record);

/* Write the file. Collective. Returns 0 or an errno, the same on every rank. */
int record_write(const struct record *record);

#endif
