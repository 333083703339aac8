/* Run the rounds: every rank keeps the durations that it measured itself. */
#ifndef NMFABRIC_MEASURE_H
#define NMFABRIC_MEASURE_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

/* One rank's partners and samples.
 *
 * `partner[k]` is as in struct rounds. `samples_ns` holds, for each round in which the rank works, the round trips if
 * it starts, and then the windows that it sent, each from its first send to the acknowledgement; warm-up first.
 */
struct part {
    MPI_Comm comm;
    int rank, ranks;
    const struct options *options;
    size_t rounds;
    int32_t *partner;
    int64_t *samples_ns;
    size_t sample_count;
    unsigned char *send, *receive; /* a window each */
    MPI_Request *requests;
    char *names; /* by rank, MPI_MAX_PROCESSOR_NAME each; for error messages */
};

/* Allocate and touch what `partner` requires. Returns 0, or the bytes that could not be allocated. */
size_t part_allocate(struct part *part);
void part_free(struct part *part);

/* Run all rounds. Collective. A rank that finishes nothing within the patience names its partner on stderr and ends the
 * job by SIGALRM. */
void part_measure(struct part *part);

#endif
