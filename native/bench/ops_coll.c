/* Collective operations; the root is rank 0. As in other suites the size is that of one rank's (or, for alltoall,
 * gather and scatter, one pair's) contribution. */
#include "ops.h"
#include "payload.h"

#include <string.h>

enum { ROOT = 0, ANY = 0 };

static size_t one(const struct op_run *run) { return (size_t)run->message_bytes; }

static size_t all(const struct op_run *run) { return (size_t)run->ranks * one(run); }

static bool byte_prepare(struct op_run *run, size_t send_bytes, size_t receive_bytes) {
    run->type = MPI_BYTE;
    return op_allocate(run, send_bytes, receive_bytes, 0);
}

/* ---- barrier ---- */

static bool barrier_prepare(struct op_run *run) { return byte_prepare(run, 0, 0); }

static void barrier_fill(struct op_run *run, int round) {
    (void)run;
    (void)round;
}

static void barrier_call(struct op_run *run) { MPI_Barrier(run->comm); }

static int64_t barrier_validate(const struct op_run *run, int round) {
    (void)run;
    (void)round;
    return 0; /* there is no payload */
}

/* ---- broadcast: the same buffer sends and receives ---- */

static bool bcast_prepare(struct op_run *run) { return byte_prepare(run, 0, one(run)); }

static void bcast_fill(struct op_run *run, int round) {
    memset(run->receive, 0, run->receive_bytes);
    if (run->rank == ROOT)
        payload_fill(run->receive, run->receive_bytes, payload_key(ROOT, ANY, 0, round));
}

static void bcast_call(struct op_run *run) { MPI_Bcast(run->receive, run->message_bytes, MPI_BYTE, ROOT, run->comm); }

static int64_t bcast_validate(const struct op_run *run, int round) {
    return !payload_matches(run->receive, run->receive_bytes, payload_key(ROOT, ANY, 0, round));
}

/* ---- reductions: sums of float32, or of uint8 for sizes that are no multiple of 4 ---- */

static bool reduce_prepare(struct op_run *run) {
    const bool whole = run->message_bytes % (int)sizeof(float) == 0;
    run->type = whole ? MPI_FLOAT : MPI_UINT8_T;
    run->type_count = whole ? run->message_bytes / (int)sizeof(float) : run->message_bytes;
    return op_allocate(run, one(run), one(run), 0);
}

/* Small whole numbers: their sums over up to 2^20 ranks are exact in float32, in any order. */
static unsigned term(int rank, size_t position, int round) {
    return ((unsigned)rank * 5u + (unsigned)position * 3u + (unsigned)round * 7u) % 16u;
}

static void reduce_fill(struct op_run *run, int round) {
    memset(run->receive, 0, run->receive_bytes);
    for (size_t i = 0; i < (size_t)run->type_count; i++) {
        if (run->type == MPI_FLOAT)
            ((float *)(void *)run->send)[i] = (float)term(run->rank, i, round);
        else
            run->send[i] = (unsigned char)term(run->rank, i, round);
    }
}

static int64_t reduced_wrong(const struct op_run *run, int round) {
    for (size_t i = 0; i < (size_t)run->type_count; i++) {
        unsigned sum = 0;
        for (int rank = 0; rank < run->ranks; rank++)
            sum += term(rank, i, round);
        const bool right = run->type == MPI_FLOAT ? ((const float *)(const void *)run->receive)[i] == (float)sum
                                                  : run->receive[i] == (unsigned char)sum;
        if (!right)
            return 1;
    }
    return 0;
}

static int64_t reduce_validate(const struct op_run *run, int round) {
    return run->rank == ROOT ? reduced_wrong(run, round) : 0;
}

static void reduce_call(struct op_run *run) {
    MPI_Reduce(run->send, run->receive, run->type_count, run->type, MPI_SUM, ROOT, run->comm);
}

static void allreduce_call(struct op_run *run) {
    MPI_Allreduce(run->send, run->receive, run->type_count, run->type, MPI_SUM, run->comm);
}

/* ---- one contribution a rank ---- */

static void contribution_fill(struct op_run *run, int round) {
    payload_fill(run->send, one(run), payload_key(run->rank, ANY, 0, round));
    memset(run->receive, 0, run->receive_bytes);
}

static int64_t gathered_wrong(const struct op_run *run, int round) {
    int64_t wrong = 0;
    for (int source = 0; source < run->ranks; source++)
        wrong +=
            !payload_matches(run->receive + (size_t)source * one(run), one(run), payload_key(source, ANY, 0, round));
    return wrong;
}

static bool allgather_prepare(struct op_run *run) { return byte_prepare(run, one(run), all(run)); }

static void allgather_call(struct op_run *run) {
    MPI_Allgather(run->send, run->message_bytes, MPI_BYTE, run->receive, run->message_bytes, MPI_BYTE, run->comm);
}

static bool gather_prepare(struct op_run *run) { return byte_prepare(run, one(run), run->rank == ROOT ? all(run) : 0); }

static void gather_call(struct op_run *run) {
    MPI_Gather(run->send, run->message_bytes, MPI_BYTE, run->receive, run->message_bytes, MPI_BYTE, ROOT, run->comm);
}

static int64_t gather_validate(const struct op_run *run, int round) {
    return run->rank == ROOT ? gathered_wrong(run, round) : 0;
}

/* ---- one contribution a pair ---- */

static bool alltoall_prepare(struct op_run *run) { return byte_prepare(run, all(run), all(run)); }

static void alltoall_fill(struct op_run *run, int round) {
    for (int destination = 0; destination < run->ranks; destination++)
        payload_fill(run->send + (size_t)destination * one(run), one(run),
                     payload_key(run->rank, destination, 0, round));
    memset(run->receive, 0, run->receive_bytes);
}

static void alltoall_call(struct op_run *run) {
    MPI_Alltoall(run->send, run->message_bytes, MPI_BYTE, run->receive, run->message_bytes, MPI_BYTE, run->comm);
}

static int64_t alltoall_validate(const struct op_run *run, int round) {
    int64_t wrong = 0;
    for (int source = 0; source < run->ranks; source++)
        wrong += !payload_matches(run->receive + (size_t)source * one(run), one(run),
                                  payload_key(source, run->rank, 0, round));
    return wrong;
}

static bool scatter_prepare(struct op_run *run) {
    return byte_prepare(run, run->rank == ROOT ? all(run) : 0, one(run));
}

static void scatter_fill(struct op_run *run, int round) {
    if (run->rank == ROOT) {
        alltoall_fill(run, round);
        return;
    }
    memset(run->receive, 0, run->receive_bytes);
}

static void scatter_call(struct op_run *run) {
    MPI_Scatter(run->send, run->message_bytes, MPI_BYTE, run->receive, run->message_bytes, MPI_BYTE, ROOT, run->comm);
}

static int64_t scatter_validate(const struct op_run *run, int round) {
    return !payload_matches(run->receive, one(run), payload_key(ROOT, run->rank, 0, round));
}

#define COLLECTIVE(NAME, HAS_SIZE, PREPARE, FILL, VALIDATE)                                                            \
    const struct op op_##NAME = {.name = #NAME,                                                                        \
                                 .kind = OP_COLLECTIVE,                                                                \
                                 .min_ranks = 2,                                                                       \
                                 .has_size = HAS_SIZE,                                                                 \
                                 .prepare = PREPARE,                                                                   \
                                 .fill = FILL,                                                                         \
                                 .call = NAME##_call,                                                                  \
                                 .validate = VALIDATE,                                                                 \
                                 .clean = op_release}

COLLECTIVE(barrier, false, barrier_prepare, barrier_fill, barrier_validate);
COLLECTIVE(bcast, true, bcast_prepare, bcast_fill, bcast_validate);
COLLECTIVE(reduce, true, reduce_prepare, reduce_fill, reduce_validate);
COLLECTIVE(allreduce, true, reduce_prepare, reduce_fill, reduced_wrong);
COLLECTIVE(allgather, true, allgather_prepare, contribution_fill, gathered_wrong);
COLLECTIVE(alltoall, true, alltoall_prepare, alltoall_fill, alltoall_validate);
COLLECTIVE(gather, true, gather_prepare, contribution_fill, gather_validate);
COLLECTIVE(scatter, true, scatter_prepare, scatter_fill, scatter_validate);
