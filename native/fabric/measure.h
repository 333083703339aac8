/* The rounds, carried out: every rank keeps the durations that it stamped itself. */
#ifndef NMFABRIC_MEASURE_H
#define NMFABRIC_MEASURE_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

/* What a rank does and keeps.
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
    char *names; /* by rank, MPI_MAX_PROCESSOR_NAME each; for complaints */
};

/* Allocate and touch what `partner` asks for. Returns 0, or the bytes that were too much. */
size_t part_allocate(struct part *part);
void part_free(struct part *part);

/* Carry all rounds out. Collective. A rank whose partner lets it finish nothing for the patience says for whom, on
 * stderr, and ends the job with EXIT_NO_ANSWER. */
void part_measure(struct part *part);

enum { EXIT_NO_ANSWER = 6 };

#endif
