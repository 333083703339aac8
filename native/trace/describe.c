#include "describe.h"

#include <stdlib.h>

#include "comms.h"

struct nmt_recorder nmt_recorder;

/* Asking for the size of no type would end the program, which may name none where it sends nothing. */
static uint64_t size_of(MPI_Datatype type) {
    MPI_Count size = 0;
    if (type != MPI_DATATYPE_NULL)
        PMPI_Type_size_x(type, &size);
    return size > 0 ? (uint64_t)size : 0;
}

static uint32_t clamp(uint64_t bytes) { return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX; }

static uint32_t element_bytes(MPI_Datatype type) { return clamp(size_of(type)); }

static void set_size(struct nmt_call *call, long long count, MPI_Datatype type) {
    uint64_t bytes = size_of(type);
    call->bytes = (uint64_t)count * bytes;
    call->type_bytes = clamp(bytes);
}

struct nmt_call nmt_p2p(int kind, int flags, long long count, MPI_Datatype type, int peer, int tag, MPI_Comm comm) {
    const struct nmt_comm_info *info = nmt_comms_find(comm);
    struct nmt_call call = nmt_blank_call(kind, info ? info->entry : 0);
    call.flags = (uint16_t)flags;
    if (!info)
        call.kind = NMT_UNSUPPORTED;
    if (peer == MPI_PROC_NULL)
        call.kind = NMT_SKIP;
    if (peer == MPI_ANY_SOURCE)
        call.flags |= NMT_ANY_SOURCE;
    else
        call.peer = peer;
    if (tag == MPI_ANY_TAG)
        call.flags |= NMT_ANY_TAG;
    else
        call.tag = tag;
    if (type != MPI_DATATYPE_NULL && call.kind != NMT_SKIP)
        set_size(&call, count, type);
    return call;
}

struct nmt_call nmt_sendrecv(struct nmt_call send, struct nmt_call recv) {
    if (send.kind == NMT_SKIP)
        return recv;
    if (recv.kind == NMT_SKIP)
        return send;
    if (send.kind == NMT_SEND)
        send.kind = NMT_SENDRECV;
    send.flags |= recv.flags;
    send.recv_peer = recv.peer;
    send.recv_tag = recv.tag;
    send.recv_bytes = recv.bytes;
    return send;
}

static bool among_neighbours(int kind) { return kind == NMT_NEIGHBOR_ALLGATHER || kind == NMT_NEIGHBOR_ALLTOALL; }

/* Start a collective; on communicators that the format cannot describe it is only counted. */
static struct nmt_call collective(int kind, int root, MPI_Comm comm, const struct nmt_comm_info **info) {
    *info = nmt_comms_find(comm);
    bool known = *info && !(*info)->inter && (!among_neighbours(kind) || (*info)->dimensions);
    struct nmt_call call = nmt_blank_call(known ? kind : NMT_UNSUPPORTED, known ? (*info)->entry : 0);
    call.peer = root;
    return call;
}

struct nmt_call nmt_barrier(MPI_Comm comm) {
    const struct nmt_comm_info *info;
    return collective(NMT_BARRIER, -1, comm, &info);
}

struct nmt_call nmt_whole(int kind, long long count, MPI_Datatype type, int root, MPI_Comm comm, const void *buffer) {
    const struct nmt_comm_info *info;
    struct nmt_call call = collective(kind, root, comm, &info);
    if (call.kind == NMT_UNSUPPORTED)
        return call;
    set_size(&call, count, type);
    call.flags |= buffer == MPI_IN_PLACE ? NMT_IN_PLACE : 0;
    return call;
}

struct nmt_call nmt_exchange(int kind, struct nmt_side tells, struct nmt_side other, int root, MPI_Comm comm) {
    struct nmt_side side = tells.buffer == MPI_IN_PLACE ? other : tells;
    return nmt_whole(kind, side.count, side.type, root, comm, tells.buffer);
}

static long long count_at(struct nmt_counts counts, int i) {
    return counts.wide ? (long long)((const MPI_Count *)counts.values)[i] : ((const int *)counts.values)[i];
}

static uint64_t type_size_at(const struct nmt_vector *vector, int i) {
    if (!vector->types.values)
        return size_of(vector->type);
    if (vector->types.fortran)
        return size_of(PMPI_Type_f2c(((const MPI_Fint *)vector->types.values)[i]));
    return size_of(((const MPI_Datatype *)vector->types.values)[i]);
}

/* How many counts a vector has: one per rank, or two per dimension for neighbours. */
static int peers_of(const struct nmt_comm_info *info, int kind) {
    return among_neighbours(kind) ? 2 * info->dimensions : info->size;
}

/* Leave out the parts for neighbours beyond the edge of a grid: nothing is sent to or received from those. */
static void leave_out_absent(uint64_t *bytes, int dimensions, MPI_Comm comm) {
    for (int i = 0; i < dimensions; ++i) {
        int below, above;
        PMPI_Cart_shift(comm, i, 1, &below, &above);
        bytes[2 * i] = below == MPI_PROC_NULL ? 0 : bytes[2 * i];
        bytes[2 * i + 1] = above == MPI_PROC_NULL ? 0 : bytes[2 * i + 1];
    }
}

/* Who the peers of a collective are. */
struct peers {
    MPI_Comm comm;
    int kind;
    int count;
    int dimensions;
};

/* Intern the bytes for each peer and add them up: those of a vector, or of one side that is the same for all. */
static uint32_t intern_peers(const struct nmt_vector *vector, const struct nmt_side *same, struct peers peers,
                             uint64_t *total) {
    *total = 0;
    uint64_t *bytes = malloc((size_t)peers.count * sizeof *bytes + 1);
    if (!bytes)
        return NMT_NONE;
    uint64_t each = same ? (uint64_t)same->count * size_of(same->type) : 0;
    uint64_t type_bytes = same || vector->types.values ? 0 : size_of(vector->type);
    for (int i = 0; i < peers.count; ++i)
        bytes[i] =
            same ? each : (uint64_t)count_at(vector->counts, i) * (type_bytes ? type_bytes : type_size_at(vector, i));
    if (among_neighbours(peers.kind))
        leave_out_absent(bytes, peers.dimensions, peers.comm);
    for (int i = 0; i < peers.count; ++i)
        *total += bytes[i];
    uint32_t list = nmt_recorder_list(&nmt_recorder, bytes, (size_t)peers.count);
    free(bytes);
    return list;
}

struct nmt_call nmt_one_to_many(int kind, struct nmt_side one, struct nmt_vector many, int root, MPI_Comm comm) {
    const struct nmt_comm_info *info;
    struct nmt_call call = collective(kind, root, comm, &info);
    if (call.kind == NMT_UNSUPPORTED)
        return call;
    call.flags |= NMT_VECTOR;
    bool in_place = one.buffer == MPI_IN_PLACE;
    call.flags |= in_place ? NMT_IN_PLACE : 0;
    if (root < 0 || root == info->my_rank) {
        struct peers peers = {comm, kind, peers_of(info, kind), info->dimensions};
        uint32_t list = intern_peers(&many, NULL, peers, &call.bytes);
        call.type_bytes = element_bytes(many.type);
        call.list_a = kind == NMT_SCATTER ? list : NMT_NONE;
        call.list_b = kind == NMT_SCATTER ? NMT_NONE : list;
        if (among_neighbours(kind)) /* what comes from neighbours says nothing of what this rank gives them */
            call.list_a = intern_peers(NULL, &one, peers, &call.bytes);
    } else {
        set_size(&call, one.count, one.type);
    }
    return call;
}

struct nmt_call nmt_many_to_many(int kind, struct nmt_vector send, struct nmt_vector recv, MPI_Comm comm) {
    const struct nmt_comm_info *info;
    struct nmt_call call = collective(kind, -1, comm, &info);
    if (call.kind == NMT_UNSUPPORTED)
        return call;
    bool in_place = send.buffer == MPI_IN_PLACE;
    call.flags |= NMT_VECTOR | (in_place ? NMT_IN_PLACE : 0);
    uint64_t received;
    struct peers peers = {comm, kind, peers_of(info, kind), info->dimensions};
    call.list_b = intern_peers(&recv, NULL, peers, &received);
    call.list_a = in_place ? call.list_b : intern_peers(&send, NULL, peers, &call.bytes);
    call.bytes = in_place ? received : call.bytes;
    call.type_bytes = recv.types.values ? 1 : element_bytes(recv.type);
    return call;
}
