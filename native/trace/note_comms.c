/* note_comms.c - communicators that are made and freed, as calls for the recorder. */
#include "comms.h"
#include "interpose.h"

/* Note the creation of a communicator whose uid is known. One made by its own members only is a call on itself. */
static void note_comm(struct nmt_mark *mark, struct nmt_call call, int comm_kind, uint64_t uid, MPI_Comm created,
                      bool by_members) {
    if (created != MPI_COMM_NULL)
        call.request = nmt_comms_add(&nmt_recorder, created, comm_kind, call.comm, uid);
    if (by_members)
        call.comm = call.request;
    if (call.comm != NMT_NONE)
        nmt_note(mark, call);
}

void nmt_note_new_comm(struct nmt_mark *mark, int call_kind, int comm_kind, int rule, MPI_Comm parent,
                       MPI_Comm created) {
    struct nmt_comm_info *info = nmt_comms_find(parent);
    if (!info) {
        nmt_note_unsupported(mark);
        return;
    }
    uint64_t nth = info->created++;
    uint64_t uid = created != MPI_COMM_NULL ? nmt_comms_uid(info->uid, nth, created) : 0;
    struct nmt_call call = nmt_blank_call(call_kind, info->entry);
    call.tag = rule;
    note_comm(mark, call, comm_kind, uid, created, false);
}

void nmt_note_group_comm(struct nmt_mark *mark, MPI_Comm parent, MPI_Comm created) {
    const struct nmt_comm_info *info = nmt_comms_find(parent);
    if (!info) {
        nmt_note_unsupported(mark);
        return;
    }
    uint64_t uid = created != MPI_COMM_NULL ? nmt_comms_uid_by_members(info->uid, created) : 0;
    note_comm(mark, nmt_blank_call(NMT_COMM_CREATE, info->entry), NMT_CREATE, uid, created, true);
}

void nmt_note_inter_comm(struct nmt_mark *mark, MPI_Comm local, MPI_Comm created) {
    const struct nmt_comm_info *info = nmt_comms_find(local);
    if (!info) {
        nmt_note_unsupported(mark);
        return;
    }
    struct nmt_call call = nmt_blank_call(NMT_COMM_CREATE, info->entry);
    note_comm(mark, call, NMT_INTER, nmt_comms_uid_by_members(0, created), created, false);
}

void nmt_note_comm_freed(struct nmt_mark *mark) {
    if (mark->entry == NMT_NONE)
        return;
    nmt_comms_forget(mark->entry);
    nmt_note(mark, nmt_blank_call(NMT_COMM_FREE, mark->entry));
}
