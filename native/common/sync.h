/* How ranks start an iteration together, and how well the offsets of their clocks are known.
 *
 * Offsets between clocks are estimated by ping-pong, taking the exchange with the shortest round trip: the partner's
 * stamp lies in the middle of it, wrong by at most half the round trip (Cristian, "Probabilistic clock
 * synchronization", Distributed Computing 3, 1989). They are estimated once a launch, when all is measured, so that how
 * far apart the ranks began can be computed from the sample file whatever the method: small messages before a size
 * would leave the transport in another state than the size itself does. Time windows alone need an estimate before.
 *
 * A pause of random length before an iteration decorrelates it from periodic activity, such as the interrupt moderation
 * of a port: a back-to-back ping-pong meets its timer always in the same phase, or alternates.
 */
#ifndef NM_SYNC_H
#define NM_SYNC_H

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
    int64_t pace_ns;   /* the longest pause of this rank before an iteration; 0: none */
    uint64_t seed;     /* decides the pauses, the same on every rank */
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

/* Return the estimate for a time `elapsed_ns` away from when it was made: its error grows by what two clocks, each
 * within 50 ppm, can drift apart. The reference itself (an error of 0) stays exact. */
struct clock_offset sync_widen(struct clock_offset estimate, int64_t elapsed_ns);

/* A launch's mean is that of a few hundred pauses: drawn freely they would leave it an error of 3 % where a timer
 * decides how long a message waits. Every 64 iterations take each 64th of the range once, in random order (stratified
 * sampling: Cochran, "Sampling Techniques", 1977, chapter 5). */
enum { PAUSE_STRATA = 64 };

/* Return the pause before an iteration, uniform from 0 to `most_ns`. Iterations of the warm-up have numbers below 0. */
int64_t sync_pause_ns(uint64_t seed, int64_t iteration, int64_t most_ns);

/* Pause before an iteration, driving MPI's progress and yielding, as a rank that waits for a window does. */
void sync_pause(const struct sync *sync, int64_t iteration);

/* Let all ranks leave MPI at the same moment, where its library needs that. Collective; the last call before
 * MPI_Finalize, with this rank's offset. */
void sync_before_finalize(MPI_Comm comm, struct clock_offset offset);

/* Agree when window 0 opens. Collective; `offset` and `window_ns` are set. */
void sync_open_windows(struct sync *sync);

#endif
