/* comms.h - communicators: the entry of a handle, and uids that all members agree on without messages. */
#ifndef NMT_COMMS_H
#define NMT_COMMS_H

#include <mpi.h>

#include "recorder.h"

/* A handle as a number: pointers in Open MPI, integers in MPICH. */
#define NMT_HANDLE(handle) ((uint64_t)(uintptr_t)(handle))

struct nmt_comm_info {
    uint64_t handle;
    uint64_t uid;
    uint64_t created; /* communicators made from this one, by collective calls over it */
    uint32_t entry;
    int size;
    int my_rank;
    int dimensions; /* Cartesian, else 0 */
    bool inter;
};

/* Add MPI_COMM_WORLD and MPI_COMM_SELF. */
bool nmt_comms_start(struct nmt_recorder *recorder);

/* Return what is known of a communicator, or NULL. The pointer is valid until the next communicator is made. */
struct nmt_comm_info *nmt_comms_find(MPI_Comm comm);

/* Add a communicator of a kind made from `parent`, with uid `uid`. Return its entry or NMT_NONE. */
uint32_t nmt_comms_add(struct nmt_recorder *recorder, MPI_Comm comm, int kind, uint32_t parent, uint64_t uid);

/* The uid of a communicator made by a collective call over its parent, of which it is the nth. */
uint64_t nmt_comms_uid(uint64_t parent_uid, uint64_t nth, MPI_Comm created);

/* The uid of one made by its members only, or between two groups: derived from the members. */
uint64_t nmt_comms_uid_by_members(uint64_t parent_uid, MPI_Comm created);

/* The handle is freed and may be reused for another communicator. */
void nmt_comms_forget(uint32_t entry);

void nmt_comms_free(void);

#endif
