/* interpose.c - from a traced call to the recorder: stamps, nesting, the lock, start and end of a recording. */
#include "interpose.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comms.h"
#include "meta.h"

enum { PATH_ROOM = 4096 };

static struct {
    bool on;
    bool threaded;
    pthread_mutex_t lock;
    struct nmt_requests requests;
    struct nmt_requests messages;
    struct nmt_run run;
    uint64_t started_ns;
    const void *left_by; /* the thread that made the latest recorded call, by an address of its own */
    struct nmt_facts facts;
    char directory[PATH_ROOM];
    char part[PATH_ROOM];
    char path[PATH_ROOM];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define FAST_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

static FAST_LOCAL int depth;
static FAST_LOCAL bool has_called;                     /* made a recorded call, where several threads may */
static FAST_LOCAL uint64_t left_ns, left_processor_ns; /* when this thread resumed computing, by both clocks */
static FAST_LOCAL uint64_t *handle_buffer;
static FAST_LOCAL size_t handle_room;

static uint64_t read_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t nmt_now_ns(void) { return read_ns(CLOCK_MONOTONIC); }

/* Remember where a gap in processor time begins, and in which thread. */
static void begin_gap(uint64_t now_ns) {
    if (state.left_by && state.left_by != &left_ns)
        __atomic_store_n(&state.facts.of_several_threads, true, __ATOMIC_RELAXED);
    __atomic_store_n(&state.left_by, &left_ns, __ATOMIC_RELAXED);
    left_ns = now_ns;
    left_processor_ns = state.facts.processor_time ? read_ns(CLOCK_THREAD_CPUTIME_ID) : 0;
}

/* How long the thread had no processor during the gap that ends now; 0 where the gap began in another thread, or
 * threads that call at once make gaps end at any time. */
static uint64_t time_without_processor(uint64_t now_ns) {
    if (!state.facts.processor_time || __atomic_load_n(&state.left_by, __ATOMIC_RELAXED) != &left_ns)
        return 0;
    if (state.threaded && __atomic_load_n(&state.facts.of_several_threads, __ATOMIC_RELAXED))
        return 0;
    uint64_t had_ns = read_ns(CLOCK_THREAD_CPUTIME_ID) - left_processor_ns, passed_ns = now_ns - left_ns;
    return passed_ns > had_ns ? passed_ns - had_ns : 0;
}

void nmt_nest(int by) { depth += by; }

bool nmt_enter(struct nmt_mark *mark, const char *name, const void *code) {
    if (!state.on || depth)
        return false;
    depth = 1;
    mark->handle_count = 0;
    mark->noted = mark->ends = false;
    mark->name = name;
    mark->code = (uint64_t)(uintptr_t)code;
    mark->enter_ns = nmt_now_ns();
    mark->idle_ns = time_without_processor(mark->enter_ns);
    return true;
}

void nmt_leave(struct nmt_mark *mark) {
    mark->leave_ns = nmt_now_ns();
    if (!state.threaded)
        return;
    pthread_mutex_lock(&state.lock);
    state.facts.calling_threads += !has_called;
    has_called = true;
}

void nmt_done(struct nmt_mark *mark) {
    if (mark->noted) {
        uint64_t now_ns = nmt_now_ns();
        nmt_recorder_resume(&nmt_recorder, now_ns);
        state.facts.own_ns += now_ns - mark->leave_ns;
        begin_gap(now_ns);
    }
    if (state.threaded)
        pthread_mutex_unlock(&state.lock);
    depth = 0;
}

/* ---------------------------------------------------------------- start and end */

static void report_error(const char *what, const char *why) {
    fprintf(stderr, "nearmetal trace: rank %u: %s: %s\n", state.run.rank, what, why);
}

/* A program that runs with another MPI than this library was compiled for passes handles of another type. */
static bool library_fits(void) {
    char version[NMT_VERSION_ROOM] = "";
    nmt_read_version(version);
    if (!strncmp(version, NMT_LIBRARY, strlen(NMT_LIBRARY)))
        return true;
    fprintf(stderr,
            "nearmetal trace: the program runs with %.60s, the profiler was built for " NMT_LIBRARY
            "; nothing is recorded\n",
            version);
    return false;
}

static bool name_files(const char *directory) {
    int sizes[] = {snprintf(state.directory, sizeof state.directory, "%s", directory),
                   snprintf(state.path, sizeof state.path, "%s/rank-%06u.nmtrace", directory, state.run.rank),
                   snprintf(state.part, sizeof state.part, "%s.part", state.path)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        if (sizes[i] < 0 || sizes[i] >= PATH_ROOM)
            return false;
    return true;
}

static void identify(void) {
    int rank, ranks;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *id = getenv("NEARMETAL_TRACE_ID");
    state.run =
        (struct nmt_run){.rank = (uint32_t)rank, .ranks = (uint32_t)ranks, .trace_id = id ? strtoull(id, NULL, 16) : 0};
}

/* Its ranks start from 0, as those of the program that started it: their files would have the same names. */
static bool was_spawned(void) {
    MPI_Comm parent;
    PMPI_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL)
        return false;
    report_error("not recorded", "MPI_Comm_spawn started it, and a trace holds only ranks that the launcher started");
    return true;
}

static bool start(const char *directory) {
    if (!library_fits())
        return false;
    identify();
    if (was_spawned())
        return false;
    if (!name_files(directory)) {
        report_error("cannot write the trace", "the path is too long");
        return false;
    }
    int error = nmt_recorder_claim(&state.run, state.part);
    if (!error && nmt_recorder_wrote(&state.run, state.path)) {
        report_error("not recorded", "this launch has already recorded a program, and a trace holds one");
        return false;
    }
    if (error) {
        report_error(state.part, strerror(error));
        return false;
    }
    if (!nmt_recorder_start(&nmt_recorder, state.directory) || !nmt_comms_start(&nmt_recorder)) {
        report_error("cannot record", "out of memory");
        return false;
    }
    return true;
}

void nmt_init(int result, uint64_t enter_ns, int threads) {
    uint64_t leave_ns = nmt_now_ns();
    const char *directory = getenv("NEARMETAL_TRACE_DIR");
    if (result != MPI_SUCCESS || state.on || !directory || !start(directory))
        return;
    const char *clock = getenv("NEARMETAL_TRACE_CLOCK");
    state.facts.threads = threads;
    state.threaded = threads == MPI_THREAD_MULTIPLE;
    state.facts.processor_time = clock && !strcmp(clock, "processor");
    struct nmt_call call = nmt_blank_call(NMT_INIT, 0);
    nmt_recorder_note(&nmt_recorder, call, 0, enter_ns, leave_ns);
    state.facts.delay_at_start_ns = nmt_read_delay_ns();
    begin_gap(nmt_now_ns());
    state.started_ns = left_ns; /* the recorder's own start is no time of the program */
    nmt_recorder_resume(&nmt_recorder, left_ns);
    state.on = true;
}

/* Leave time without a processor out of the gap that ends. */
static void skip(uint64_t idle_ns) {
    nmt_recorder_skip(&nmt_recorder, idle_ns);
    state.facts.skipped_ns += idle_ns;
}

static void finish(const void *code) {
    uint64_t now_ns = nmt_now_ns();
    struct nmt_call call = nmt_blank_call(NMT_FINALIZE, 0);
    skip(time_without_processor(now_ns));
    state.facts.delay_at_end_ns = nmt_read_delay_ns();
    nmt_recorder_note(&nmt_recorder, call, (uint64_t)(uintptr_t)code, now_ns, now_ns);
    state.run.elapsed_ns = now_ns - state.started_ns;
    struct nmt_bytes meta = {0};
    state.facts.rounded = nmt_recorder.rounded;
    state.facts.paused_ns = nmt_recorder.paused_ns;
    state.facts.worked_ns = nmt_recorder.worked_ns;
    nmt_describe_run(&meta, &state.facts);
    state.run.meta = (const char *)meta.data;
    int error = meta.failed ? ENOMEM : nmt_recorder_write(&nmt_recorder, &state.run, state.part, state.path);
    if (error)
        report_error("the trace is not complete", nmt_recorder.failure ? nmt_recorder.failure : strerror(error));
    nmt_bytes_free(&meta);
}

void nmt_finalize(const void *code) {
    if (!state.on)
        return;
    pthread_mutex_lock(&state.lock);
    state.on = false;
    finish(code);
    nmt_comms_free();
    nmt_recorder_free(&nmt_recorder);
    nmt_requests_free(&state.requests);
    nmt_requests_free(&state.messages);
    pthread_mutex_unlock(&state.lock);
}

/* ---------------------------------------------------------------- noting calls */

static void count_unsupported_time(const struct nmt_mark *mark) {
    state.facts.unsupported.ns += mark->leave_ns - mark->enter_ns;
}

void nmt_note_unsupported(struct nmt_mark *mark) {
    nmt_count_unsupported(&state.facts.unsupported, mark->name);
    count_unsupported_time(mark);
}

static bool is_recorded(const struct nmt_call *call) { return call->kind != NMT_UNSUPPORTED && call->kind != NMT_SKIP; }

uint64_t nmt_note(struct nmt_mark *mark, struct nmt_call call) {
    if (call.kind == NMT_UNSUPPORTED)
        nmt_note_unsupported(mark);
    if (!is_recorded(&call))
        return 0;
    skip(mark->idle_ns);
    mark->idle_ns = 0;
    mark->noted = true;
    return nmt_recorder_note(&nmt_recorder, call, mark->code, mark->enter_ns, mark->leave_ns);
}

void nmt_note_request(struct nmt_mark *mark, struct nmt_call call, MPI_Request request) {
    call.flags |= NMT_NONBLOCKING;
    uint32_t slot = is_recorded(&call) ? nmt_requests_take_slot(&state.requests) : NMT_NONE;
    nmt_requests_add(&state.requests, NMT_HANDLE(request), slot, &call, false);
    call.request = slot;
    nmt_note(mark, call);
}

void nmt_note_persistent(struct nmt_mark *mark, struct nmt_call call, MPI_Request request) {
    call.flags |= NMT_NONBLOCKING | NMT_PERSISTENT;
    call.request = is_recorded(&call) ? nmt_requests_take_slot(&state.requests) : NMT_NONE;
    nmt_requests_add(&state.requests, NMT_HANDLE(request), call.request, &call, true);
    nmt_note_local(mark);
}

static bool make_handle_room(struct nmt_mark *mark, int count) {
    if (count < 0 || !nmt_grow(&handle_buffer, &handle_room, 2 * (size_t)count, sizeof *handle_buffer))
        return false;
    mark->handles = handle_buffer;
    mark->slots = handle_buffer + count;
    mark->handle_count = count;
    return true;
}

void nmt_snapshot(struct nmt_mark *mark, int count, const MPI_Request *requests) {
    if (make_handle_room(mark, count))
        for (int i = 0; i < count; ++i)
            mark->handles[i] = NMT_HANDLE(requests[i]);
}

void nmt_snapshot_fortran(struct nmt_mark *mark, int count, const MPI_Fint *requests) {
    if (make_handle_room(mark, count))
        for (int i = 0; i < count; ++i)
            mark->handles[i] = NMT_HANDLE(PMPI_Request_f2c(requests[i]));
}

void nmt_snapshot_message(struct nmt_mark *mark, const MPI_Message *message) {
    if (make_handle_room(mark, 1))
        mark->handles[0] = NMT_HANDLE(*message);
}

void nmt_snapshot_message_fortran(struct nmt_mark *mark, const MPI_Fint *message) {
    if (make_handle_room(mark, 1))
        mark->handles[0] = NMT_HANDLE(PMPI_Message_f2c(*message));
}

static void note_poll(struct nmt_mark *mark) {
    skip(mark->idle_ns);
    nmt_recorder_poll(&nmt_recorder, mark->enter_ns, mark->leave_ns);
    mark->noted = true;
}

/* What requests of a call are: recorded, of a call that takes no time or is complete already, or not recorded. */
struct sorted {
    size_t slots; /* of recorded ones, the first so many in mark->slots */
    bool silent;
    bool foreign;
};

static void sort_request(struct nmt_mark *mark, int at, uint32_t slot, struct sorted *sorted) {
    if (slot < NMT_SILENT)
        mark->slots[sorted->slots++] = slot;
    sorted->silent |= slot == NMT_SILENT;
    sorted->foreign |= slot == NMT_NONE && mark->handles[at] != NMT_HANDLE(MPI_REQUEST_NULL);
}

/* A call that completed nothing: time in MPI, or part of the gap when it was for requests that are not recorded, or for
 * none. */
static void note_nothing(struct nmt_mark *mark, struct sorted sorted) {
    if (sorted.slots || (sorted.silent && !sorted.foreign))
        note_poll(mark);
    else if (sorted.foreign)
        count_unsupported_time(mark);
    else
        nmt_note_local(mark);
}

/* Note that these requests are complete. */
static void note_wait(struct nmt_mark *mark, int flags, struct sorted sorted) {
    if (!sorted.slots) {
        note_nothing(mark, sorted);
        nmt_recorder.polled = false; /* the program goes on: what follows is no pause between two polls */
        return;
    }
    struct nmt_call call = nmt_blank_call(NMT_WAIT, 0);
    call.flags = (uint16_t)flags;
    call.request = nmt_recorder_list(&nmt_recorder, mark->slots, sorted.slots);
    uint64_t inside_ns = nmt_note(mark, call);
    state.facts.mixed_ns += sorted.foreign ? inside_ns : 0;
}

/* Return the call of a receive that is under way, else NULL. */
static const struct nmt_call *find_receive(uint64_t handle) {
    const struct nmt_call *call;
    return nmt_requests_find(&state.requests, handle, &call) < NMT_SILENT && call->kind == NMT_RECV ? call : NULL;
}

/* Whether the message of another rank might have come before the one of the receive that is done. */
static bool came_first(const struct nmt_mark *mark, const struct nmt_call *done) {
    for (int i = 0; i < mark->handle_count; ++i) {
        const struct nmt_call *open = find_receive(mark->handles[i]);
        if (open && (open->comm != done->comm || open->peer != done->peer))
            return true;
    }
    return false;
}

void nmt_note_completed(struct nmt_mark *mark, int flags, int count, const int *indices, int base) {
    int total = indices ? count : mark->handle_count;
    struct sorted sorted = {0};
    struct nmt_call done = {.kind = NMT_SKIP};
    for (int i = 0; i < total; ++i) {
        int at = indices ? indices[i] - base : i;
        if (at < 0 || at >= mark->handle_count)
            continue;
        const struct nmt_call *receive = indices ? find_receive(mark->handles[at]) : NULL;
        done = receive ? *receive : done;
        sort_request(mark, at, nmt_requests_complete(&state.requests, mark->handles[at]), &sorted);
    }
    bool first = done.kind == NMT_RECV && came_first(mark, &done);
    note_wait(mark, flags | (first ? NMT_ANY_SOURCE : 0), sorted);
}

void nmt_note_tested(struct nmt_mark *mark, bool found, int count, const int *indices, int base) {
    if (found) {
        nmt_note_completed(mark, NMT_POLLED, count, indices, base);
        return;
    }
    struct sorted sorted = {0};
    const struct nmt_call *call;
    /* A recorded one settles it, and programs poll hundreds at once. */
    for (int i = 0; i < mark->handle_count && !sorted.slots; ++i)
        if (mark->handles[i] != NMT_HANDLE(MPI_REQUEST_NULL))
            sort_request(mark, i, nmt_requests_find(&state.requests, mark->handles[i], &call), &sorted);
    note_nothing(mark, sorted);
}

void nmt_note_failed(struct nmt_mark *mark) {
    nmt_note_unsupported(mark);
    for (int i = 0; mark->ends && i < mark->handle_count; ++i)
        nmt_requests_complete(&state.requests, mark->handles[i]);
}

void nmt_note_cancelled(struct nmt_mark *mark) {
    const struct nmt_call *known = NULL;
    uint64_t slot = mark->handle_count ? nmt_requests_find(&state.requests, mark->handles[0], &known) : NMT_NONE;
    bool receives = slot < NMT_SILENT && known->kind == NMT_RECV;
    struct nmt_call call = nmt_blank_call(receives ? NMT_WAIT : NMT_UNSUPPORTED, 0);
    if (slot == NMT_SILENT) /* of MPI_PROC_NULL, or seen to be complete */
        call.kind = NMT_SKIP;
    call.flags = NMT_CANCELLED;
    call.request = call.kind == NMT_WAIT ? nmt_recorder_list(&nmt_recorder, &slot, 1) : NMT_NONE;
    nmt_note(mark, call);
}

void nmt_note_queried(struct nmt_mark *mark, bool found) {
    if (!found) {
        nmt_note_tested(mark, false, 0, NULL, 0);
        return;
    }
    struct sorted sorted = {0};
    if (mark->handle_count)
        sort_request(mark, 0, nmt_requests_see(&state.requests, mark->handles[0]), &sorted);
    note_wait(mark, NMT_POLLED, sorted);
}

void nmt_note_started(struct nmt_mark *mark) {
    for (int i = 0; i < mark->handle_count; ++i) {
        const struct nmt_call *call = nmt_requests_start(&state.requests, mark->handles[i]);
        if (!call)
            continue;
        bool noted_before = mark->noted;
        nmt_note(mark, *call);
        /* MPI_Startall: its time is the first request's, the others start at the same moment. */
        if (mark->noted && !noted_before)
            mark->enter_ns = mark->leave_ns;
    }
}

void nmt_note_request_freed(struct nmt_mark *mark) {
    for (int i = 0; i < mark->handle_count; ++i)
        nmt_requests_forget(&state.requests, mark->handles[i], NULL);
    nmt_note_local(mark);
}

void nmt_note_probe(struct nmt_mark *mark, bool found, int flags, int source, int tag, MPI_Comm comm) {
    struct nmt_call call = nmt_p2p(NMT_PROBE, flags, 0, MPI_DATATYPE_NULL, source, tag, comm);
    if (found)
        nmt_note(mark, call);
    else
        note_nothing(mark, (struct sorted){.slots = is_recorded(&call), .foreign = call.kind == NMT_UNSUPPORTED});
}

void nmt_note_message(struct nmt_mark *mark, int source, int tag, MPI_Comm comm, MPI_Message message) {
    (void)mark;
    struct nmt_call call = nmt_p2p(NMT_RECV, 0, 0, MPI_DATATYPE_NULL, source, tag, comm);
    nmt_requests_add(&state.messages, NMT_HANDLE(message), NMT_NONE, &call, false);
}

struct nmt_call nmt_message(struct nmt_mark *mark, long long count, MPI_Datatype type) {
    struct nmt_call call = {.kind = NMT_SKIP};
    if (mark->handle_count && nmt_requests_forget(&state.messages, mark->handles[0], &call)) {
        struct nmt_call sized = nmt_p2p(NMT_RECV, 0, count, type, 0, 0, MPI_COMM_WORLD);
        call.bytes = sized.bytes;
        call.type_bytes = sized.type_bytes;
    }
    return call;
}

void nmt_snapshot_comm(struct nmt_mark *mark, MPI_Comm comm) {
    if (state.threaded)
        pthread_mutex_lock(&state.lock);
    const struct nmt_comm_info *info = nmt_comms_find(comm);
    mark->entry = info ? info->entry : NMT_NONE;
    if (state.threaded)
        pthread_mutex_unlock(&state.lock);
}

void nmt_mark_level(struct nmt_mark *mark, int level) {
    struct nmt_call call = nmt_blank_call(NMT_MARK, 0);
    call.tag = level;
    nmt_note(mark, call);
}

void nmt_note_local(struct nmt_mark *mark) {
    ++state.facts.local_calls;
    state.facts.local_ns += mark->leave_ns - mark->enter_ns;
}
