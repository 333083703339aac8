/* recorder.h - everything one rank records, without MPI: feed it calls and times, then write its file.
 *
 * The recorder is not thread-safe; interpose.c holds a lock around it. When memory, disk or a table limit runs out it
 * sets `failure` to one sentence and records no more; such a recording is never written.
 */
#ifndef NMT_RECORDER_H
#define NMT_RECORDER_H

#include "gaps.h"
#include "program.h"
#include "requests.h"
#include "tables.h"

#ifdef NMT_SMALL_LIMITS
enum { NMT_EXACT_CALLS = 64, NMT_MAX_CALLS = 128 };
#else
enum {
    NMT_EXACT_CALLS = 1 << 16, /* distinct calls after which message sizes are rounded and lists left out */
    NMT_MAX_CALLS = 1 << 20,   /* distinct calls after which recording stops */
};
#endif

enum {
    NMT_POLL_PAUSE_NS = 2000,        /* time between fruitless polls that counts as waiting, not as compute */
    NMT_POLL_LOOP_NS = 250,          /* a loop that does nothing but poll has shorter pauses than this */
    NMT_MAX_COMMUNICATORS = 1 << 16, /* communicators, freed ones too, after which recording stops */
};

enum nmt_comm_kind {
    NMT_WORLD,
    NMT_SELF,
    NMT_DUP,
    NMT_SPLIT,
    NMT_CREATE,
    NMT_CART,
    NMT_INTER,
};

/* By what a call splits a communicator, as its tag: what it is told, the ranks of a node, or those of a part of one. */
enum { NMT_AS_TOLD, NMT_BY_NODE, NMT_BY_PART };

/* A communicator, laid out as in the COMM section. */
struct nmt_comm {
    uint64_t uid;
    uint32_t parent;
    uint16_t kind;
    uint16_t zero;
    uint32_t members;
    uint32_t my_rank;
    uint32_t dims;
    uint32_t periods;
};
_Static_assert(sizeof(struct nmt_comm) == 32, "struct nmt_comm must be laid out as in the file");

struct nmt_recorder {
    struct nmt_lists lists;
    struct nmt_calls calls;
    struct nmt_comm *comms;
    size_t comms_room;
    uint32_t comm_count;
    struct nmt_gaps *gaps;
    struct nmt_program *program;
    uint64_t left_ns; /* when the program resumed computing */
    uint64_t last_code;
    uint32_t last_call;
    uint64_t compute_ns; /* since the last recorded call, without polls */
    uint64_t polling_ns; /* in fruitless polls since then */
    uint64_t paused_ns;  /* ever, in pauses between polls that count as waiting but are long for a loop */
    uint64_t worked_ns;  /* ever, in longer pauses after a fruitless poll, which count as compute */
    bool polled;         /* the last call was a fruitless poll */
    uint64_t rounded;    /* calls whose size was rounded */
    const char *failure;
};

/* What the header and META say. */
struct nmt_run {
    uint32_t rank;
    uint32_t ranks;
    uint64_t trace_id;
    uint64_t elapsed_ns;
    const char *meta; /* `key=value\n` lines */
};

/* Start a recording; `directory` is where a long program may spill. False without memory. */
bool nmt_recorder_start(struct nmt_recorder *recorder, const char *directory);

/* Record a call that was entered and left at these times from the code at address `code`. Return its time, with that of
 * the polls before it. */
uint64_t nmt_recorder_note(struct nmt_recorder *recorder, struct nmt_call call, uint64_t code, uint64_t enter_ns,
                           uint64_t leave_ns);

/* Note a poll that found nothing: it is waiting time of the next recorded call. */
void nmt_recorder_poll(struct nmt_recorder *recorder, uint64_t enter_ns, uint64_t leave_ns);

/* Leave out this much of the gap that is about to end. */
void nmt_recorder_skip(struct nmt_recorder *recorder, uint64_t idle_ns);

/* Note when the program resumes after a note or a poll, so that the recorder's work does not count as compute. */
void nmt_recorder_resume(struct nmt_recorder *recorder, uint64_t now_ns);

/* Add a communicator and return its entry; NMT_NONE when there are too many. */
uint32_t nmt_recorder_add_comm(struct nmt_recorder *recorder, const struct nmt_comm *comm);

/* Intern a list; NMT_NONE without memory. */
uint32_t nmt_recorder_list(struct nmt_recorder *recorder, const uint64_t *values, size_t count);

/* Write the whole file to `part` and rename it to `path` when it is on disk. Return 0 or an errno; then `path` does
 * not exist. The recording cannot be continued. */
int nmt_recorder_write(struct nmt_recorder *recorder, const struct nmt_run *run, const char *part, const char *path);

/* Write a file that holds the header only: it claims the rank and every reader refuses it. Return 0 or an errno. */
int nmt_recorder_claim(const struct nmt_run *run, const char *part);

/* Return whether the same run has written `path` already. */
bool nmt_recorder_wrote(const struct nmt_run *run, const char *path);

/* FNV-1a-64 over little-endian numbers: the uid of a communicator. */
uint64_t nmt_uid(const uint64_t *numbers, size_t count);

void nmt_recorder_free(struct nmt_recorder *recorder);

#endif
