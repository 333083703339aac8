/* The operations: one table, one row each. Everything that differs between operations is in its row. */
#ifndef NMBENCH_OPS_H
#define NMBENCH_OPS_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute.h"

enum op_kind { OP_ROUND_TRIP, OP_WINDOW, OP_COLLECTIVE, OP_EXCHANGE };

enum { OP_MAX_NEIGHBOURS = 4 };

/* An operation on one message size, prepared before the loop. */
struct op_run {
    MPI_Comm comm;
    int rank, ranks;
    int message_bytes;
    int window_messages;
    bool many_buffers; /* windows: one buffer per message, not one for all */

    unsigned char *send, *receive; /* owned; sizes below */
    size_t send_bytes, receive_bytes;
    MPI_Request *requests; /* owned; may be NULL */
    size_t wanted_bytes;   /* what could not be allocated, after a failed prepare */

    int peer;          /* pairs: rank i and i + ranks/2 */
    bool initiator;    /* pairs: the first half starts */
    int slot_count;    /* windows: receive buffers; message k uses slot k % slot_count */
    size_t slot_bytes; /* windows and exchanges: from one slot to the next */
    MPI_Datatype type; /* reductions */
    int type_count;    /* reductions */
    struct compute compute; /* before each iteration, or in it */
    MPI_Comm grid;     /* exchange */
    int neighbours[OP_MAX_NEIGHBOURS], directions[OP_MAX_NEIGHBOURS], neighbour_count;
};

/* A row. `comm` to `many_buffers` are set before prepare. */
struct op {
    const char *name;
    enum op_kind kind;
    int min_ranks, max_ranks; /* max_ranks 0: no limit */
    bool even_ranks, has_size;
    bool unsynchronized; /* iterations begin when the rank's last one has ended, unless --sync says otherwise */
    /* Allocate and touch. False: wanted_bytes could not be allocated. Collective. */
    bool (*prepare)(struct op_run *run);
    /* Write the payload of a check round and clear what was received. */
    void (*fill)(struct op_run *run, int round);
    /* What precedes the call outside its stamps; NULL for nothing. */
    void (*before)(struct op_run *run);
    /* The measured call: nothing but MPI, and computing where `alone` is given. */
    void (*call)(struct op_run *run);
    /* What the warm-up measures instead, the call without its messages, without start and `before`. NULL: the call. */
    void (*alone)(struct op_run *run);
    /* Return how many received messages of this round are wrong on this rank. */
    int64_t (*validate)(const struct op_run *run, int round);
    /* Free all that prepare allocated, also after a failed prepare. Collective. */
    void (*clean)(struct op_run *run);
};

/* Return the row, or NULL. */
const struct op *op_find(const char *name);

/* The whole table, in the order of `--list`. */
size_t op_count(void);
const struct op *op_at(size_t index);

/* Return "round_trip", "window", "collective" or "exchange". */
const char *op_kind_name(enum op_kind kind);

/* Return what the payload is made of: "float32" or "uint8" for reductions, "byte" otherwise. */
const char *op_type_name(const struct op_run *run);

/* Shared by the rows: allocate and free the buffers. */
bool op_allocate(struct op_run *run, size_t send_bytes, size_t receive_bytes, size_t request_count);
void op_release(struct op_run *run);

extern const struct op op_latency, op_multi_latency, op_bw, op_bibw, op_message_rate;
extern const struct op op_barrier, op_bcast, op_reduce, op_allreduce, op_allgather, op_alltoall, op_gather, op_scatter;
extern const struct op op_exchange, op_after_exchange, op_one_way, op_halo;

#endif
