/* tables.h - integer lists and distinct calls, written once and referred to by number. */
#ifndef NMT_TABLES_H
#define NMT_TABLES_H

#include "bytes.h"

/* Kinds and flags of calls. Values are part of the file format. */
enum nmt_kind {
    NMT_SKIP = 0, /* not a value of the format: a call that is not recorded, such as one with MPI_PROC_NULL */
    NMT_SEND = 1,
    NMT_RECV = 2,
    NMT_SENDRECV = 3,
    NMT_WAIT = 4,
    NMT_PROBE = 5,
    NMT_MARK = 6, /* MPI_Pcontrol; its level is the tag */
    NMT_BARRIER = 16,
    NMT_BCAST = 17,
    NMT_REDUCE = 18,
    NMT_ALLREDUCE = 19,
    NMT_GATHER = 20,
    NMT_ALLGATHER = 21,
    NMT_SCATTER = 22,
    NMT_ALLTOALL = 23,
    NMT_REDUCE_SCATTER = 24,
    NMT_SCAN = 25,
    NMT_EXSCAN = 26,
    NMT_NEIGHBOR_ALLGATHER = 27,
    NMT_NEIGHBOR_ALLTOALL = 28,
    NMT_COMM_DUP = 48,
    NMT_COMM_SPLIT = 49,
    NMT_COMM_CREATE = 50,
    NMT_CART_CREATE = 51,
    NMT_COMM_FREE = 52,
    NMT_INIT = 64,
    NMT_FINALIZE = 65,
    NMT_UNSUPPORTED = 0xFFFF, /* not a value of the format: a call that is only counted */
};

enum nmt_flag {
    NMT_NONBLOCKING = 1 << 0,
    NMT_PERSISTENT = 1 << 1,
    NMT_ANY_SOURCE = 1 << 2,
    NMT_ANY_TAG = 1 << 3,
    NMT_SYNCHRONOUS = 1 << 4,
    NMT_BUFFERED = 1 << 5,
    NMT_READY = 1 << 6,
    NMT_IN_PLACE = 1 << 7,
    NMT_VECTOR = 1 << 8,
    NMT_POLLED = 1 << 9,
    NMT_CANCELLED = 1 << 10,
};

/* One distinct call, laid out as in the CALL section. */
struct nmt_call {
    uint16_t kind;
    uint16_t flags;
    uint32_t comm;
    int32_t peer;
    int32_t tag;
    uint64_t bytes;
    int32_t recv_peer;
    int32_t recv_tag;
    uint64_t recv_bytes;
    uint32_t request;
    uint32_t list_a;
    uint32_t list_b;
    uint32_t type_bytes;
};
_Static_assert(sizeof(struct nmt_call) == 56, "struct nmt_call must be laid out as in the file");

/* Return a call of a kind on a communicator with nothing else in it. */
struct nmt_call nmt_blank_call(int kind, uint32_t comm);

struct nmt_call_time {
    uint64_t calls;
    uint64_t total_ns;
    uint64_t max_ns;
};

/* Positions by hash, open addressing; the owner compares the entries. */
struct nmt_index {
    uint32_t *slots;
    size_t mask;
    size_t used;
};

/* Interned lists of non-negative numbers, kept in the encoding of the file (runs of equal stride). */
struct nmt_lists {
    struct nmt_bytes encoded;
    size_t *ends; /* where the encoding of each list ends */
    size_t room;
    uint32_t count;
    struct nmt_index index;
};

struct nmt_calls {
    struct nmt_call *entries;
    struct nmt_call_time *times;
    size_t entries_room;
    size_t times_room;
    uint32_t count;
    struct nmt_index index;
};

/* Return the number of the list with these values, adding it when it is new; NMT_NONE without memory. */
uint32_t nmt_lists_intern(struct nmt_lists *lists, const uint64_t *values, size_t count);

/* Return the number of this call, adding it when it is new; NMT_NONE without memory. */
uint32_t nmt_calls_intern(struct nmt_calls *calls, const struct nmt_call *call);

/* Round a size to three significant bits, up or down. Used when a program has too many distinct calls. */
uint64_t nmt_round_size(uint64_t bytes, bool up);

void nmt_lists_free(struct nmt_lists *lists);
void nmt_calls_free(struct nmt_calls *calls);

#endif
