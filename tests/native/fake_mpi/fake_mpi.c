/* See mpi.h. The program under test is compiled with -Dmain=program_main; each rank runs it on a stack of its own,
 * until it has to wait for another. Messages carry their time of arrival, so the order in which ranks run changes
 * nothing. */
#include "machine.h"
#include "mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { MOST_RANKS = 16, STACK_BYTES = 1 << 20 };

int program_main(int argc, char *argv[]);

struct message {
    struct message *next;
    int source, tag, bytes;
    MPI_Datatype type;
    MPI_Comm comm;
    int64_t arrival_ns;
    unsigned char data[];
};

struct rank {
    ucontext_t context;
    int64_t now_ns; /* true time */
    int64_t clock_ns, extra_ns;
    struct message *inbox;
    int64_t stamps, collectives, sends, probes, yields, harmable; /* so far */
    int64_t requests, comms;                                      /* not yet released */
    const void *out;                                              /* of the collective that it is in */
    void *in;
    int initialized, finalized, ended, status;
};

static struct rank ranks[MOST_RANKS];
static int rank_count, running;
static ucontext_t scheduler;
static int argument_count;
static char **arguments;
static int64_t stamp_ns, probe_ns, send_ns, recv_ns, wire_ns, byte_ns, call_ns, slow_ns, slow_from, slow_count;
static int64_t cold_ns, cold_from, cold_count;
static int64_t stall_ns, stall_from, stall_count;
static int slow_rank, stall_rank, grid_extents[2];

/* What all ranks are in together: complete when `arrived` is all of them. */
static int64_t arrived, generation, last_ns;

/* The one message to corrupt: how, whose, of which length, and its number among those. */
static const char *harm;
static int64_t harm_rank, harm_bytes, harm_number, harm_at;
static unsigned char *before_it;

/* How often a rank made progress: if a whole turn adds none, all wait for ever. */
static int64_t steps;

static struct rank *me(void) { return &ranks[running]; }

int machine_rank(void) { return running; }

static void yield_turn(void) { swapcontext(&me()->context, &scheduler); }

static _Noreturn void die(const char *why) {
    fprintf(stderr, "fake MPI: rank %d: %s\n", running, why);
    exit(99);
}

/* ---- the clock ---- */

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_MONOTONIC_RAW)
        return (int)syscall(SYS_clock_gettime, clock, now);
    const int64_t earlier = me()->stamps++;
    me()->now_ns += stamp_ns + (earlier >= cold_from && earlier < cold_from + cold_count ? cold_ns : 0);
    const int64_t local_ns = me()->now_ns + me()->clock_ns;
    *now = (struct timespec){.tv_sec = local_ns / 1000000000, .tv_nsec = local_ns % 1000000000};
    return 0;
}

int machine_yield(void) {
    me()->yields++;
    return 0;
}

/* ---- messages ---- */

static int is_harmed(const char *how, int rank, size_t bytes) {
    if (harm == NULL || rank != harm_rank || (int64_t)bytes != harm_bytes ||
        (strcmp(how, "tag") == 0) != (strcmp(harm, "tag") == 0))
        return 0;
    return ranks[rank].harmable++ == harm_number;
}

/* Everything that arrives passes here, a collective's contributions one by one. */
static void deliver(int to, void *in, const void *data, size_t bytes) {
    const int harmed = is_harmed("arrival", to, bytes);
    if (bytes == 0 || (harmed && strcmp(harm, "lost") == 0))
        return;
    memmove(in, harmed && strcmp(harm, "stale") == 0 ? before_it : data,
            bytes - (harmed && strcmp(harm, "short") == 0));
    if (harmed && strcmp(harm, "flip") == 0)
        ((unsigned char *)in)[harm_at] ^= 0x10;
    if (to == harm_rank && (int64_t)bytes == harm_bytes)
        memcpy(before_it, data, bytes);
}

int MPI_Send(const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm) {
    const int bytes = count * (type & 0xff);
    if (peer == running)
        die("a rank sends to itself");
    struct message *const sent = malloc(sizeof *sent + (size_t)bytes);
    me()->now_ns += send_ns;
    if (running == stall_rank && me()->sends >= stall_from &&
        (stall_count == 0 || me()->sends < stall_from + stall_count))
        me()->now_ns += stall_ns;
    me()->sends++;
    *sent = (struct message){.source = running,
                             .tag = is_harmed("tag", running, (size_t)bytes) ? tag + 1000 : tag,
                             .bytes = bytes,
                             .type = type,
                             .comm = comm,
                             .arrival_ns = me()->now_ns + wire_ns + bytes * byte_ns};
    steps++;
    if (bytes > 0)
        memcpy(sent->data, data, (size_t)bytes);
    struct message **last = &ranks[peer].inbox;
    while (*last != NULL)
        last = &(*last)->next;
    *last = sent;
    return MPI_SUCCESS;
}

static struct message *take(int peer, int tag, MPI_Comm comm) {
    for (struct message **at = &me()->inbox; *at != NULL; at = &(*at)->next) {
        struct message *const found = *at;
        if (found->source == peer && found->tag == tag && found->comm == comm) {
            *at = found->next;
            return found;
        }
    }
    return NULL;
}

int MPI_Recv(void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Status *status) {
    struct message *got;
    (void)status;
    while ((got = take(peer, tag, comm)) == NULL)
        yield_turn();
    steps++;
    if (got->bytes != count * (type & 0xff))
        die("a message does not have the length of its receive");
    if (got->type != type)
        die("a message was sent as another type");
    deliver(running, data, got->data, (size_t)got->bytes);
    me()->now_ns = (got->arrival_ns > me()->now_ns ? got->arrival_ns : me()->now_ns) + recv_ns;
    free(got);
    return MPI_SUCCESS;
}

int MPI_Sendrecv(const void *out, int out_count, MPI_Datatype out_type, int to, int out_tag, void *in, int in_count,
                 MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Status *status) {
    MPI_Send(out, out_count, out_type, to, out_tag, comm);
    return MPI_Recv(in, in_count, in_type, from, in_tag, comm, status);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *made) {
    *made = (MPI_Request){.open = 1};
    me()->requests++;
    return MPI_Send(data, count, type, peer, tag, comm);
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *made) {
    *made = (MPI_Request){
        .open = 1, .receives = 1, .buffer = data, .count = count, .type = type, .peer = peer, .tag = tag, .comm = comm};
    me()->requests++;
    return MPI_SUCCESS;
}

int MPI_Waitall(int count, MPI_Request *requests, MPI_Status *statuses) {
    (void)statuses;
    for (int i = 0; i < count; i++) {
        if (requests[i].open != 1)
            die("waiting for a request that is not open");
        if (requests[i].receives)
            MPI_Recv(requests[i].buffer, requests[i].count, requests[i].type, requests[i].peer, requests[i].tag,
                     requests[i].comm, MPI_STATUS_IGNORE);
        requests[i].open = 0;
        me()->requests--;
    }
    return MPI_SUCCESS;
}

int MPI_Iprobe(int peer, int tag, MPI_Comm comm, int *found, MPI_Status *status) {
    (void)peer, (void)tag, (void)comm, (void)status;
    me()->now_ns += probe_ns;
    me()->probes++;
    *found = 0; /* the engine probes for messages that never come */
    return MPI_SUCCESS;
}

/* ---- collectives: all leave when the last has arrived, each with its own delay ---- */

static void meet(const void *out, void *in, void (*work)(void)) {
    static void (*of_the_first)(void);
    const int barrier = work == NULL;
    if (arrived > 0 && work != of_the_first)
        die("others are in another collective");
    of_the_first = work;
    steps++;
    const int64_t earlier = me()->collectives++;
    if (slow_rank == running && earlier >= slow_from && (slow_count == 0 || earlier < slow_from + slow_count))
        me()->now_ns += slow_ns;
    me()->out = out;
    me()->in = in;
    if (me()->now_ns > last_ns)
        last_ns = me()->now_ns;
    const int64_t mine = generation;
    if (++arrived == rank_count) {
        if (!barrier)
            work();
        for (int r = 0; r < rank_count; r++)
            ranks[r].now_ns = last_ns + call_ns + (barrier ? 0 : ranks[r].extra_ns);
        arrived = last_ns = 0;
        generation++;
        return;
    }
    while (generation == mine)
        yield_turn();
}

/* Of the collective under way; all ranks pass the same. */
static int chunk_bytes, root_rank, items;
static MPI_Datatype item_type;
static MPI_Op item_op;

static const void *out_of(int rank) { return ranks[rank].out == MPI_IN_PLACE ? ranks[rank].in : ranks[rank].out; }

static void copy_chunk(int from, int from_slot, int to, int to_slot) {
    deliver(to, (char *)ranks[to].in + (size_t)to_slot * (size_t)chunk_bytes,
            (const char *)out_of(from) + (size_t)from_slot * (size_t)chunk_bytes, (size_t)chunk_bytes);
}

static void do_bcast(void) {
    for (int r = 0; r < rank_count; r++)
        if (r != root_rank)
            deliver(r, ranks[r].in, ranks[root_rank].in, (size_t)chunk_bytes);
}

static void do_gather(void) {
    for (int r = 0; r < rank_count; r++)
        copy_chunk(r, 0, root_rank, r);
}

static void do_allgather(void) {
    for (int to = 0; to < rank_count; to++)
        for (int r = 0; r < rank_count; r++)
            copy_chunk(r, 0, to, r);
}

static void do_scatter(void) {
    for (int r = 0; r < rank_count; r++)
        copy_chunk(root_rank, r, r, 0);
}

static void do_alltoall(void) {
    for (int to = 0; to < rank_count; to++)
        for (int r = 0; r < rank_count; r++)
            copy_chunk(r, to, to, r);
}

#define combined(TYPE, a, b) (item_op == MPI_SUM ? (TYPE)(a + b) : (item_op == MPI_MAX) == (b > a) ? b : a)

#define COMBINE(TYPE)                                                                                                  \
    do {                                                                                                               \
        TYPE *const total = (TYPE *)result;                                                                            \
        for (int i = 0; i < items; i++) {                                                                              \
            TYPE value = ((const TYPE *)out_of(0))[i];                                                                 \
            for (int r = 1; r < rank_count; r++) {                                                                     \
                const TYPE other = ((const TYPE *)out_of(r))[i];                                                       \
                value = combined(TYPE, value, other);                                                                  \
            }                                                                                                          \
            total[i] = value;                                                                                          \
        }                                                                                                              \
    } while (0)

static void do_reduce(void) {
    void *const result = malloc((size_t)chunk_bytes + 1);
    switch (item_type) {
    case MPI_INT:
        COMBINE(int);
        break;
    case MPI_INT64_T:
        COMBINE(int64_t);
        break;
    case MPI_UINT8_T:
        COMBINE(uint8_t);
        break;
    case MPI_FLOAT:
        COMBINE(float);
        break;
    case MPI_DOUBLE:
        COMBINE(double);
        break;
    default:
        die("a reduction of an unsupported type");
    }
    for (int r = 0; r < rank_count; r++)
        if (root_rank < 0 || r == root_rank)
            deliver(r, ranks[r].in, result, (size_t)chunk_bytes);
    free(result);
}

static void set_chunk(int count, MPI_Datatype type, int root) {
    const int bytes = count * (type & 0xff);
    if (arrived > 0 && (bytes != chunk_bytes || root != root_rank))
        die("others are in this collective with another size or root");
    chunk_bytes = bytes;
    root_rank = root;
}

int MPI_Barrier(MPI_Comm comm) {
    (void)comm;
    meet(NULL, NULL, NULL);
    return MPI_SUCCESS;
}

int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    (void)comm;
    set_chunk(count, type, root);
    meet(NULL, data, do_bcast);
    return MPI_SUCCESS;
}

int MPI_Reduce(const void *out, void *in, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
    (void)comm;
    set_chunk(count, type, root);
    items = count;
    item_type = type;
    item_op = op;
    meet(out, in, do_reduce);
    return MPI_SUCCESS;
}

int MPI_Allreduce(const void *out, void *in, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    return MPI_Reduce(out, in, count, type, op, -1, comm);
}

/* What each rank contributes must match what is received from it. */
static int move(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count, MPI_Datatype in_type,
                int root, void (*work)(void)) {
    if (out_count != in_count || out_type != in_type)
        die("a collective receives another length or type than was contributed");
    set_chunk(out_count, out_type, root);
    meet(out, in, work);
    return MPI_SUCCESS;
}

int MPI_Gather(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count, MPI_Datatype in_type,
               int root, MPI_Comm comm) {
    (void)comm;
    return move(out, out_count, out_type, in, in_count, in_type, root, do_gather);
}

int MPI_Allgather(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count, MPI_Datatype in_type,
                  MPI_Comm comm) {
    (void)comm;
    return move(out, out_count, out_type, in, in_count, in_type, -1, do_allgather);
}

int MPI_Scatter(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count, MPI_Datatype in_type,
                int root, MPI_Comm comm) {
    (void)comm;
    return move(out, out_count, out_type, in, in_count, in_type, root, do_scatter);
}

int MPI_Alltoall(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count, MPI_Datatype in_type,
                 MPI_Comm comm) {
    (void)comm;
    return move(out, out_count, out_type, in, in_count, in_type, -1, do_alltoall);
}

/* ---- the rest ---- */

int MPI_Init(int *argc, char ***argv) {
    (void)argc, (void)argv;
    me()->initialized++;
    return MPI_SUCCESS;
}

int MPI_Finalize(void) {
    me()->finalized++;
    if (getenv("FAKE_FINALIZED") != NULL)
        fprintf(stderr, "finalized %d %lld\n", running, (long long)me()->now_ns);
    return MPI_SUCCESS;
}

int MPI_Abort(MPI_Comm comm, int status) {
    (void)comm;
    exit(status);
}

int MPI_Pcontrol(const int level, ...) {
    (void)level;
    return MPI_SUCCESS;
}

int MPI_Comm_rank(MPI_Comm comm, int *rank) {
    (void)comm;
    *rank = running;
    return MPI_SUCCESS;
}

int MPI_Comm_size(MPI_Comm comm, int *size) {
    (void)comm;
    *size = rank_count;
    return MPI_SUCCESS;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *made) {
    *made = comm + 1;
    me()->comms++;
    return MPI_SUCCESS;
}

int MPI_Comm_free(MPI_Comm *comm) {
    *comm = 0;
    me()->comms--;
    return MPI_SUCCESS;
}

int MPI_Dims_create(int count, int dimensions, int *extents) {
    if (dimensions != 2 || extents[0] != 0 || extents[1] != 0)
        die("a grid that is not of two free dimensions");
    extents[1] = 1;
    for (int low = 2; low * low <= count; low++)
        if (count % low == 0)
            extents[1] = low;
    extents[0] = count / extents[1];
    memcpy(grid_extents, extents, sizeof grid_extents);
    return MPI_SUCCESS;
}

int MPI_Cart_create(MPI_Comm comm, int dimensions, const int *extents, const int *periodic, int reorder,
                    MPI_Comm *made) {
    if (dimensions != 2 || extents[0] * extents[1] != rank_count || !periodic[0] || !periodic[1] || reorder)
        die("a grid that is not periodic and of all ranks in their order");
    *made = comm + 100;
    me()->comms++;
    return MPI_SUCCESS;
}

int MPI_Cart_shift(MPI_Comm comm, int dimension, int by, int *source, int *destination) {
    (void)comm;
    if (dimension < 0 || dimension > 1)
        die("a grid has two dimensions");
    const int extent = grid_extents[dimension], stride = dimension == 0 ? grid_extents[1] : 1;
    const int at = running / stride % extent;
    *source = running + ((at - by + extent) % extent - at) * stride;
    *destination = running + ((at + by) % extent - at) * stride;
    return MPI_SUCCESS;
}

int MPI_Get_processor_name(char *name, int *length) {
    *length = snprintf(name, MPI_MAX_PROCESSOR_NAME, "fake%d", running);
    return MPI_SUCCESS;
}

int MPI_Get_version(int *version, int *subversion) {
    *version = 3;
    *subversion = 1;
    return MPI_SUCCESS;
}

int MPI_Get_library_version(char *version, int *length) {
    *length = snprintf(version, MPI_MAX_LIBRARY_VERSION_STRING, "fake MPI");
    return MPI_SUCCESS;
}

/* ---- start ---- */

static int64_t number(const char *name) {
    const char *const text = getenv(name);
    return text == NULL ? 0 : strtoll(text, NULL, 10);
}

static int64_t number_of(const char *name, int rank) {
    const char *text = getenv(name);
    for (; text != NULL && rank > 0; rank--)
        text = strchr(text, ',') == NULL ? NULL : strchr(text, ',') + 1;
    return text == NULL ? 0 : strtoll(text, NULL, 10);
}

static void live(void) {
    me()->status = program_main(argument_count, arguments);
    me()->ended = 1;
    yield_turn(); /* for ever; a return from here would end the process */
}

static void read_numbers(void) {
    rank_count = (int)number("FAKE_RANKS");
    stamp_ns = number("FAKE_STAMP");
    probe_ns = number("FAKE_PROBE");
    send_ns = number("FAKE_SEND");
    recv_ns = number("FAKE_RECV");
    wire_ns = number("FAKE_WIRE");
    byte_ns = number("FAKE_BYTE");
    call_ns = number("FAKE_CALL");
    stall_rank = getenv("FAKE_STALL") == NULL ? -1 : (int)number("FAKE_STALL_RANK");
    stall_ns = number("FAKE_STALL");
    stall_from = number("FAKE_STALL_FROM");
    stall_count = number("FAKE_STALL_COUNT");
    cold_ns = number("FAKE_COLD");
    cold_from = number("FAKE_COLD_FROM");
    cold_count = number("FAKE_COLD_COUNT");
    harm = getenv("FAKE_HARM");
    harm_rank = number("FAKE_HARM_RANK");
    harm_bytes = number("FAKE_HARM_BYTES");
    harm_number = number("FAKE_HARM_NUMBER");
    harm_at = number("FAKE_HARM_AT");
    before_it = calloc(1, (size_t)harm_bytes + 1);
    slow_rank = getenv("FAKE_SLOW") == NULL ? -1 : (int)number("FAKE_SLOW_RANK");
    slow_ns = number("FAKE_SLOW");
    slow_from = number("FAKE_SLOW_FROM");
    slow_count = number("FAKE_SLOW_COUNT");
    if (rank_count < 1 || rank_count > MOST_RANKS || stamp_ns < 1)
        die("FAKE_RANKS and FAKE_STAMP are needed: without time, waiting would never end");
}

/* Errors that a real MPI may or may not tolerate. */
static void judge(void) {
    for (running = 0; running < rank_count; running++) {
        if (me()->initialized != me()->finalized)
            die("it did not initialize and finalize MPI exactly once each");
        if (me()->inbox != NULL)
            die("a message was never received");
        if (me()->requests != 0)
            die("a request was never completed");
        if (me()->comms != 0)
            die("a communicator was never freed");
    }
    const char *const left = machine_judge();
    if (left != NULL)
        die(left);
}

static void run_all(void) {
    for (int left = rank_count; left > 0;) {
        const int64_t before = steps;
        left = 0;
        for (running = 0; running < rank_count; running++)
            if (!ranks[running].ended) {
                swapcontext(&scheduler, &me()->context);
                left += !me()->ended;
                steps += me()->ended;
            }
        if (left > 0 && steps == before)
            die("all ranks wait for each other");
    }
}

static void write_tally(const char *path) {
    FILE *const tally = path == NULL ? NULL : fopen(path, "w");
    for (int r = 0; tally != NULL && r < rank_count; r++)
        fprintf(tally, "%lld %lld %lld\n", (long long)ranks[r].sends, (long long)ranks[r].probes,
                (long long)ranks[r].yields);
    if (tally != NULL)
        fclose(tally);
}

int main(int argc, char *argv[]) {
    argument_count = argc;
    arguments = argv;
    read_numbers();
    for (int r = 0; r < rank_count; r++) {
        ranks[r].clock_ns = number_of("FAKE_CLOCK", r);
        ranks[r].extra_ns = number_of("FAKE_EXTRA", r);
        ranks[r].now_ns = 1000000000;
        getcontext(&ranks[r].context);
        ranks[r].context.uc_stack.ss_sp = malloc(STACK_BYTES);
        ranks[r].context.uc_stack.ss_size = STACK_BYTES;
        makecontext(&ranks[r].context, live, 0);
    }
    run_all();
    judge();
    write_tally(getenv("FAKE_TALLY"));
    int status = 0;
    for (int r = 0; r < rank_count; r++)
        status = ranks[r].status > status ? ranks[r].status : status;
    return status;
}
