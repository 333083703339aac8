/* How ranks come to the start of an iteration together, and how well their clocks are known.
 *
 * Offsets between clocks are estimated by ping-pong, taking the exchange with the shortest round trip: the partner's
 * stamp lies in the middle of it, wrong by at most half the round trip (Cristian, "Probabilistic clock
 * synchronization", Distributed Computing 3, 1989). They are estimated for every method, before and after each size,
 * so that how far apart the ranks began can be computed from the sample file whatever the method.
 */
#ifndef NMBENCH_SYNC_H
#define NMBENCH_SYNC_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FLAG_WARMUP = 1, FLAG_MISSED_WINDOW = 2 };

/* This rank's clock against that of rank 0. */
struct clock_offset {
    int64_t offset_ns; /* this clock minus rank 0's */
    int64_t error_ns;  /* the true offset lies within this of it */
};

struct sync {
    MPI_Comm comm;
    struct clock_offset offset;
    int64_t first_ns;  /* window: when iteration 0 starts, on this rank's clock */
    int64_t window_ns; /* window: from one start to the next; 0 for other methods */
};

/* A row of the table of methods. */
struct sync_method {
    const char *name;
    bool has_window;
    /* Wait for the start of an iteration; return 0, or FLAG_MISSED_WINDOW when its start had already passed. */
    unsigned char (*start)(const struct sync *sync, int64_t iteration);
};

/* Return the row, or NULL. */
const struct sync_method *sync_find(const char *name);

/* Estimate the offset of every rank's clock. Collective. */
struct clock_offset sync_estimate_offset(MPI_Comm comm);

/* Return the estimate that holds for all the time between two: their drift is added to the error. */
struct clock_offset sync_join_offsets(struct clock_offset before, struct clock_offset after);

/* Agree when window 0 opens. Collective; `offset` and `window_ns` are set. */
void sync_open_windows(struct sync *sync);

#endif
