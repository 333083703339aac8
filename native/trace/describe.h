/* describe.h - MPI calls as entries of the CALL table. */
#ifndef NMT_DESCRIBE_H
#define NMT_DESCRIBE_H

#include <mpi.h>

#include "recorder.h"

/* What this rank records; interpose.c starts and ends it, and holds the lock around it. */
extern struct nmt_recorder nmt_recorder;

/* Counts are int, or MPI_Count in the large-count calls; datatypes are C or Fortran handles. */
struct nmt_counts {
    const void *values;
    bool wide;
};
struct nmt_types {
    const void *values;
    bool fortran;
};

/* One side of a collective: what a rank sends or receives. */
struct nmt_side {
    const void *buffer;
    long long count;
    MPI_Datatype type;
};

/* The same with one count for each peer; with `types.values` one datatype each, else `type`. */
struct nmt_vector {
    const void *buffer;
    struct nmt_counts counts;
    struct nmt_types types;
    MPI_Datatype type;
};

/* A call with one peer. MPI_PROC_NULL gives NMT_SKIP, an unknown communicator NMT_UNSUPPORTED. */
struct nmt_call nmt_p2p(int kind, int flags, long long count, MPI_Datatype type, int peer, int tag, MPI_Comm comm);

/* A send and a receive in one call; with MPI_PROC_NULL on one side it is the other side's call. */
struct nmt_call nmt_sendrecv(struct nmt_call send, struct nmt_call recv);

/* Collectives; `root` is -1 where there is none. Calls on inter-communicators are NMT_UNSUPPORTED. */
struct nmt_call nmt_barrier(MPI_Comm comm);
struct nmt_call nmt_whole(int kind, long long count, MPI_Datatype type, int root, MPI_Comm comm, const void *buffer);
/* ... where one side may be in place: `tells` is the side that states the size. */
struct nmt_call nmt_exchange(int kind, struct nmt_side tells, struct nmt_side other, int root, MPI_Comm comm);
/* ... with a count for each rank: `many` is known at the root only (or everywhere, root -1). */
struct nmt_call nmt_one_to_many(int kind, struct nmt_side one, struct nmt_vector many, int root, MPI_Comm comm);
struct nmt_call nmt_many_to_many(int kind, struct nmt_vector send, struct nmt_vector recv, MPI_Comm comm);

#endif
