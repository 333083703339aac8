#include "sync.h"

#include <sched.h>
#include <string.h>

#include "clock.h"

enum { TAG_OFFSET = 11, TAG_NEVER = 12, PROBES = 64 };

/* How often a waiting rank drives MPI's progress, how long before a window opens it stops, and the minimum lead of the
 * first window. */
static const int64_t drive_ns = 10000, quiet_ns = 5000, lead_ns = 2000000;

/* Two oscillators of 50 ppm each drift apart by 1 in this many. */
static const int64_t drift_one_in = 10000;

/* ---- clocks ---- */

static void answer_probes(MPI_Comm comm) {
    for (int i = 0; i < PROBES; i++) {
        int64_t stamp_ns;
        MPI_Recv(NULL, 0, MPI_BYTE, 0, TAG_OFFSET, comm, MPI_STATUS_IGNORE);
        stamp_ns = clock_stamp_ns();
        MPI_Send(&stamp_ns, 1, MPI_INT64_T, 0, TAG_OFFSET, comm);
    }
}

static struct clock_offset probe(MPI_Comm comm, int rank) {
    struct clock_offset best = {.offset_ns = 0, .error_ns = INT64_MAX};
    for (int i = 0; i < PROBES; i++) {
        int64_t stamp_ns;
        const int64_t begin_ns = clock_stamp_ns();
        MPI_Send(NULL, 0, MPI_BYTE, rank, TAG_OFFSET, comm);
        MPI_Recv(&stamp_ns, 1, MPI_INT64_T, rank, TAG_OFFSET, comm, MPI_STATUS_IGNORE);
        const int64_t round_trip_ns = clock_stamp_ns() - begin_ns;
        const int64_t error_ns = (round_trip_ns + 1) / 2;
        if (error_ns < best.error_ns)
            best = (struct clock_offset){.offset_ns = stamp_ns - (begin_ns + round_trip_ns / 2), .error_ns = error_ns};
    }
    return best;
}

struct clock_offset sync_estimate_offset(MPI_Comm comm) {
    int rank, ranks;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    struct clock_offset mine = {0, 0};
    for (int other = 1; other < ranks; other++) {
        if (rank == 0) {
            struct clock_offset found = probe(comm, other);
            MPI_Send(&found, 2, MPI_INT64_T, other, TAG_OFFSET, comm);
        } else if (rank == other) {
            answer_probes(comm);
            MPI_Recv(&mine, 2, MPI_INT64_T, 0, TAG_OFFSET, comm, MPI_STATUS_IGNORE);
        }
    }
    return mine;
}

struct clock_offset sync_widen(struct clock_offset estimate, int64_t elapsed_ns) {
    const int64_t drift_ns = elapsed_ns / drift_one_in + 1;
    return (struct clock_offset){.offset_ns = estimate.offset_ns,
                                 .error_ns = estimate.error_ns == 0 ? 0 : estimate.error_ns + drift_ns};
}

/* ---- waiting ---- */

/* Between two looks at the clock it works, as a program does between its messages. An emulated processor, such as the
 * lab's, takes longer for a virtual second of system calls. */
static void work_until(int64_t end_ns) {
    while (clock_stamp_ns() < end_ns)
        for (int i = 0; i < 256; i++)
            __asm__ volatile("" : : "r"(i));
}

/* Many MPI libraries move data only inside calls: without the probe, what this rank still has to forward would sit
 * through the wait and be charged to the others' next iteration. The yield lets ranks that share the core catch up. */
static void wait_until(MPI_Comm comm, int64_t open_ns) {
    const int64_t quiet_from_ns = open_ns - quiet_ns;
    for (int64_t now_ns = clock_stamp_ns(); now_ns < quiet_from_ns; now_ns = clock_stamp_ns()) {
        int pending;
        MPI_Iprobe(MPI_ANY_SOURCE, TAG_NEVER, comm, &pending, MPI_STATUS_IGNORE);
        sched_yield();
        work_until(now_ns + drive_ns < quiet_from_ns ? now_ns + drive_ns : quiet_from_ns);
    }
    while (clock_stamp_ns() < open_ns)
        continue;
}

/* The finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014)
 * over a counter: any number of the sequence is known without those before it. */
static uint64_t number(uint64_t seed, int64_t at) {
    uint64_t mixed = seed + (uint64_t)(at + 1) * UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

/* Return which of the strata an iteration is in: a shuffle of them all (Durstenfeld, "Algorithm 235", CACM 7, 1964) for
 * every so many iterations. */
static uint64_t stratum_of(uint64_t seed, int64_t iteration) {
    const int64_t within = (iteration % PAUSE_STRATA + PAUSE_STRATA) % PAUSE_STRATA, first = iteration - within;
    uint64_t strata[PAUSE_STRATA];
    for (int i = 0; i < PAUSE_STRATA; i++)
        strata[i] = (uint64_t)i;
    for (int last = PAUSE_STRATA - 1; last > 0; last--) {
        const uint64_t chosen = number(~seed, first + last) % (uint64_t)(last + 1);
        const uint64_t moved = strata[last];
        strata[last] = strata[chosen];
        strata[chosen] = moved;
    }
    return strata[within];
}

int64_t sync_pause_ns(uint64_t seed, int64_t iteration, int64_t most_ns) {
    const uint64_t lengths = (uint64_t)most_ns + 1;
    const uint64_t within = number(seed, iteration) % lengths;
    return (int64_t)((stratum_of(seed, iteration) * lengths + within) / PAUSE_STRATA);
}

void sync_pause(const struct sync *sync, int64_t iteration) {
    const int64_t pause_ns = sync_pause_ns(sync->seed, iteration, sync->pace_ns);
    wait_until(sync->comm, clock_stamp_ns() + pause_ns);
}

/* ---- methods ---- */

static unsigned char start_none(const struct sync *sync, int64_t iteration) {
    (void)sync;
    (void)iteration;
    return 0;
}

static unsigned char start_barrier(const struct sync *sync, int64_t iteration) {
    (void)iteration;
    MPI_Barrier(sync->comm);
    return 0;
}

static unsigned char start_window(const struct sync *sync, int64_t iteration) {
    const int64_t open_ns = sync->first_ns + iteration * sync->window_ns;
    if (clock_stamp_ns() > open_ns)
        return FLAG_MISSED_WINDOW;
    wait_until(sync->comm, open_ns);
    return 0;
}

void sync_open_windows(struct sync *sync) {
    const int64_t lead = 4 * sync->window_ns > lead_ns ? 4 * sync->window_ns : lead_ns;
    int64_t first_ns = clock_stamp_ns() + lead; /* that of rank 0 counts */
    MPI_Bcast(&first_ns, 1, MPI_INT64_T, 0, sync->comm);
    sync->first_ns = first_ns + sync->offset.offset_ns;
}

/* MPICH before 4.2 can hang in MPI_Finalize over UCX: a rank whose own connections are closed waits in a barrier that
 * serves no other rank, and one that began to close them later than the first rank's request reached it waits for an
 * answer for ever (pmodels/mpich, pull request 6596). So all begin within less than a message takes. In the lab,
 * between guests whose port is moderated, 18 of 32 launches of MPICH 4.0.2 hung without it. */
void sync_before_finalize(MPI_Comm comm, struct clock_offset offset) {
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40200000
    struct sync sync = {.comm = comm, .offset = offset};
    sync_open_windows(&sync);
    wait_until(comm, sync.first_ns);
#else
    (void)comm;
    (void)offset;
#endif
}

static const struct sync_method methods[] = {
    {.name = "none", .start = start_none},
    {.name = "barrier", .start = start_barrier},
    {.name = "window", .has_window = true, .start = start_window},
};

const struct sync_method *sync_find(const char *name) {
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (strcmp(methods[i].name, name) == 0)
            return &methods[i];
    return NULL;
}
