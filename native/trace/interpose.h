/* interpose.h - the building blocks of the wrappers of calls.h.
 *
 * Every wrapper does the same: nmt_enter, the real call, nmt_leave, describe the call as data, hand the description
 * to one of the nmt_note functions, nmt_done. Calls that MPI makes itself inside another call are not recorded. With
 * several threads the recorder sees calls in the order in which they ended.
 */
#ifndef NMT_INTERPOSE_H
#define NMT_INTERPOSE_H

#include <mpi.h>

#include "describe.h"

#ifdef OPEN_MPI
#define NMT_LIBRARY "Open MPI"
#elif defined(MPICH_VERSION)
#define NMT_LIBRARY "MPICH"
#else
#define NMT_LIBRARY "MPI"
#endif

/* One call that is being made. */
struct nmt_mark {
    uint64_t enter_ns;
    uint64_t leave_ns;
    uint64_t idle_ns; /* of the gap before: without a processor, when gaps are in processor time */
    uint64_t code;
    const char *name;  /* of the call, without MPI_ */
    uint64_t *handles; /* the requests it was given, copied before it changed them */
    uint64_t *slots;   /* room for the slots that they hold */
    int handle_count;
    uint32_t entry; /* Comm_free: the entry that is going away */
    bool noted;
    bool ends; /* the requests, though it may fail */
};

/* Return whether to record this call, and stamp its start. */
bool nmt_enter(struct nmt_mark *mark, const char *name, const void *code);

/* Stamp the end of the real call and lock the recorder. */
void nmt_leave(struct nmt_mark *mark);

/* Unlock the recorder; the program computes again from here. */
void nmt_done(struct nmt_mark *mark);

/* Mark nested calls around MPI_Init and MPI_Finalize, which are not recorded like the others. */
void nmt_init(int result, uint64_t enter_ns, int threads);
void nmt_finalize(const void *code);
uint64_t nmt_now_ns(void);
void nmt_nest(int by);

/* Copy the handles of requests (or of one message) before a call changes them. */
void nmt_snapshot(struct nmt_mark *mark, int count, const MPI_Request *requests);
void nmt_snapshot_fortran(struct nmt_mark *mark, int count, const MPI_Fint *requests);
void nmt_snapshot_message(struct nmt_mark *mark, const MPI_Message *message);
void nmt_snapshot_message_fortran(struct nmt_mark *mark, const MPI_Fint *message);

/* Record a call, if it is to be, and return its time in MPI. */
uint64_t nmt_note(struct nmt_mark *mark, struct nmt_call call);
void nmt_note_request(struct nmt_mark *mark, struct nmt_call call, MPI_Request request);
void nmt_note_persistent(struct nmt_mark *mark, struct nmt_call call, MPI_Request request);

/* The requests of the snapshot with these indices are complete (NULL: all of them). */
void nmt_note_completed(struct nmt_mark *mark, int flags, int count, const int *indices, int base);
/* The same for a test: it is a fruitless poll when nothing is complete. */
void nmt_note_tested(struct nmt_mark *mark, bool found, int count, const int *indices, int base);
/* The same for a query of one request, which the program keeps. */
void nmt_note_queried(struct nmt_mark *mark, bool found);
void nmt_note_started(struct nmt_mark *mark);
/* The request of the snapshot is cancelled, which holds for receives alone. */
void nmt_note_cancelled(struct nmt_mark *mark);
void nmt_note_request_freed(struct nmt_mark *mark);

/* MPI_Pcontrol: a mark in the program, whatever its level. */
void nmt_mark_level(struct nmt_mark *mark, int level);

/* Probes; a matched probe keeps what describes the receive of its message. */
void nmt_note_probe(struct nmt_mark *mark, bool found, int flags, int source, int tag, MPI_Comm comm);
void nmt_note_message(struct nmt_mark *mark, int source, int tag, MPI_Comm comm, MPI_Message message);
struct nmt_call nmt_message(struct nmt_mark *mark, long long count, MPI_Datatype type);

/* Communicators that are made and freed (note_comms.c); `rule`: by what a split goes. */
void nmt_note_new_comm(struct nmt_mark *mark, int call_kind, int comm_kind, int rule, MPI_Comm parent,
                       MPI_Comm created);
void nmt_note_group_comm(struct nmt_mark *mark, MPI_Comm parent, MPI_Comm created);
void nmt_note_inter_comm(struct nmt_mark *mark, MPI_Comm local, MPI_Comm created);
void nmt_snapshot_comm(struct nmt_mark *mark, MPI_Comm comm);
void nmt_note_comm_freed(struct nmt_mark *mark);

/* A call that returned an error. */
void nmt_note_failed(struct nmt_mark *mark);

/* Calls that the format has no kind for, and calls local to this rank (datatypes, topologies). */
void nmt_note_unsupported(struct nmt_mark *mark);
void nmt_note_local(struct nmt_mark *mark);

#endif
