/* A halo exchange: a periodic grid of two dimensions, one message of the size to each neighbour. A dimension of
 * extent 1 has no neighbours: a rank that sends to itself measures a copy. */
#include "ops.h"
#include "payload.h"

#include <string.h>

enum { DIMENSIONS = 2, SLOT_ALIGN_BYTES = 64 };

/* Directions 0 and 1 are down and up in the first dimension, 2 and 3 in the second; 1 is the opposite of 0. */
static int opposite(int direction) { return direction ^ 1; }

static void find_neighbours(struct op_run *run) {
    int extents[DIMENSIONS] = {0, 0}, periodic[DIMENSIONS] = {1, 1};
    MPI_Dims_create(run->ranks, DIMENSIONS, extents);
    MPI_Cart_create(run->comm, DIMENSIONS, extents, periodic, 0, &run->grid);
    run->neighbour_count = 0;
    for (int dimension = 0; dimension < DIMENSIONS; dimension++) {
        if (extents[dimension] == 1)
            continue;
        int down, up;
        MPI_Cart_shift(run->grid, dimension, 1, &down, &up);
        run->neighbours[run->neighbour_count] = down;
        run->directions[run->neighbour_count++] = 2 * dimension;
        run->neighbours[run->neighbour_count] = up;
        run->directions[run->neighbour_count++] = 2 * dimension + 1;
    }
}

static bool halo_prepare(struct op_run *run) {
    find_neighbours(run);
    run->type = MPI_BYTE;
    run->slot_bytes = ((size_t)run->message_bytes + SLOT_ALIGN_BYTES - 1) / SLOT_ALIGN_BYTES * SLOT_ALIGN_BYTES;
    const size_t bytes = (size_t)run->neighbour_count * run->slot_bytes;
    return op_allocate(run, bytes, bytes, 2 * (size_t)run->neighbour_count);
}

static void halo_fill(struct op_run *run, int round) {
    for (int n = 0; n < run->neighbour_count; n++)
        payload_fill(run->send + (size_t)n * run->slot_bytes, (size_t)run->message_bytes,
                     payload_key(run->rank, run->neighbours[n], run->directions[n], round));
    memset(run->receive, 0, run->receive_bytes);
}

/* The tag is the direction a message travels in: two neighbours may be the same rank. */
static void halo_call(struct op_run *run) {
    for (int n = 0; n < run->neighbour_count; n++)
        MPI_Irecv(run->receive + (size_t)n * run->slot_bytes, run->message_bytes, MPI_BYTE, run->neighbours[n],
                  opposite(run->directions[n]), run->grid, &run->requests[n]);
    for (int n = 0; n < run->neighbour_count; n++)
        MPI_Isend(run->send + (size_t)n * run->slot_bytes, run->message_bytes, MPI_BYTE, run->neighbours[n],
                  run->directions[n], run->grid, &run->requests[run->neighbour_count + n]);
    MPI_Waitall(2 * run->neighbour_count, run->requests, MPI_STATUSES_IGNORE);
}

static int64_t halo_validate(const struct op_run *run, int round) {
    int64_t wrong = 0;
    for (int n = 0; n < run->neighbour_count; n++)
        wrong += !payload_matches(run->receive + (size_t)n * run->slot_bytes, (size_t)run->message_bytes,
                                  payload_key(run->neighbours[n], run->rank, opposite(run->directions[n]), round));
    return wrong;
}

static void halo_clean(struct op_run *run) {
    op_release(run);
    MPI_Comm_free(&run->grid);
}

const struct op op_halo = {.name = "halo",
                           .kind = OP_EXCHANGE,
                           .min_ranks = 2,
                           .has_size = true,
                           .prepare = halo_prepare,
                           .fill = halo_fill,
                           .call = halo_call,
                           .validate = halo_validate,
                           .clean = halo_clean};
