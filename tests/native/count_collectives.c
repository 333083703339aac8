/* count_collectives.c ROOT SIZES - prints what each rank sends to each other in collectives, as Open MPI's monitoring
 * counts it: lines `NAME NONBLOCKING BYTES RANK`, then `MESSAGES:BYTES` for each rank. Status 77 where the MPI has no
 * such counters. With COUNT_UCP what MPICH hands to UCX is counted, which goes to other nodes. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { MOST = 1048576, RANKS = 64, NO_COUNTERS = 77, SLACK_NS = 500000 };

static char *out, *in;
static int root;

#define BLOCKS out, bytes, MPI_CHAR, in, bytes, MPI_CHAR
#define BOTH(Call, call, ...) (request ? MPI_I##call(__VA_ARGS__, comm, request) : MPI_##Call(__VA_ARGS__, comm))

typedef int collective(int bytes, MPI_Comm comm, MPI_Request *request);

static int barrier(int bytes, MPI_Comm comm, MPI_Request *request) {
    (void)bytes;
    return request ? MPI_Ibarrier(comm, request) : MPI_Barrier(comm);
}

static int bcast(int bytes, MPI_Comm comm, MPI_Request *request) {
    return BOTH(Bcast, bcast, out, bytes, MPI_CHAR, root);
}

static int reduce(int bytes, MPI_Comm comm, MPI_Request *request) {
    return BOTH(Reduce, reduce, out, in, bytes / 8, MPI_DOUBLE, MPI_SUM, root);
}

static int allreduce(int bytes, MPI_Comm comm, MPI_Request *request) {
    return BOTH(Allreduce, allreduce, out, in, bytes / 8, MPI_DOUBLE, MPI_SUM);
}

static int gather(int bytes, MPI_Comm comm, MPI_Request *request) { return BOTH(Gather, gather, BLOCKS, root); }

static int scatter(int bytes, MPI_Comm comm, MPI_Request *request) { return BOTH(Scatter, scatter, BLOCKS, root); }

static int allgather(int bytes, MPI_Comm comm, MPI_Request *request) { return BOTH(Allgather, allgather, BLOCKS); }

static int alltoall(int bytes, MPI_Comm comm, MPI_Request *request) { return BOTH(Alltoall, alltoall, BLOCKS); }

static int alltoall_in_place(int bytes, MPI_Comm comm, MPI_Request *request) {
    return BOTH(Alltoall, alltoall, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, bytes, MPI_CHAR);
}

static int reduce_scatter(int bytes, MPI_Comm comm, MPI_Request *request) {
    return BOTH(Reduce_scatter_block, reduce_scatter_block, out, in, bytes / 8, MPI_DOUBLE, MPI_SUM);
}

static int scan(int bytes, MPI_Comm comm, MPI_Request *request) {
    return BOTH(Scan, scan, out, in, bytes / 8, MPI_DOUBLE, MPI_SUM);
}

/* Of `bytes` from or for odd ranks, of half of it for others. */
static int lists[3][RANKS], *const counts = lists[0], *const own = lists[1], *const starts = lists[2];

static int part(int bytes, int rank) { return rank % 2 || bytes < 16 ? bytes : bytes / 16 * 8; }

static int fill_lists(int bytes, MPI_Comm comm) {
    int rank, ranks;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    for (int i = 0; i < ranks; ++i) {
        counts[i] = part(bytes, i);
        own[i] = part(bytes, rank);
        starts[i] = i * bytes;
    }
    return own[0];
}

static int gatherv(int bytes, MPI_Comm comm, MPI_Request *request) {
    const int mine = fill_lists(bytes, comm);
    return BOTH(Gatherv, gatherv, out, mine, MPI_CHAR, in, counts, starts, MPI_CHAR, root);
}

static int scatterv(int bytes, MPI_Comm comm, MPI_Request *request) {
    const int mine = fill_lists(bytes, comm);
    return BOTH(Scatterv, scatterv, out, counts, starts, MPI_CHAR, in, mine, MPI_CHAR, root);
}

static int allgatherv(int bytes, MPI_Comm comm, MPI_Request *request) {
    const int mine = fill_lists(bytes, comm);
    return BOTH(Allgatherv, allgatherv, out, mine, MPI_CHAR, in, counts, starts, MPI_CHAR);
}

static int alltoallv(int bytes, MPI_Comm comm, MPI_Request *request) {
    fill_lists(bytes, comm);
    return BOTH(Alltoallv, alltoallv, out, counts, starts, MPI_CHAR, in, own, starts, MPI_CHAR);
}

static int reduce_scatterv(int bytes, MPI_Comm comm, MPI_Request *request) {
    fill_lists(bytes, comm);
    for (int i = 0; i < RANKS; ++i)
        counts[i] /= 8;
    return BOTH(Reduce_scatter, reduce_scatter, out, in, counts, MPI_DOUBLE, MPI_SUM);
}

/* Not freed: its copy is made when the request completes. */
static int new_communicator(int bytes, MPI_Comm comm, MPI_Request *request) {
    static MPI_Comm made;
    (void)bytes;
    return request ? MPI_Comm_idup(comm, &made, request) : MPI_Comm_dup(comm, &made);
}

static const struct {
    const char *name;
    collective *run;
} all[] = {{"barrier", barrier},
           {"bcast", bcast},
           {"reduce", reduce},
           {"allreduce", allreduce},
           {"gather", gather},
           {"scatter", scatter},
           {"allgather", allgather},
           {"alltoall", alltoall},
           {"alltoall_in_place", alltoall_in_place},
           {"scan", scan},
           {"reduce_scatter", reduce_scatter},
           {"gatherv", gatherv},
           {"scatterv", scatterv},
           {"allgatherv", allgatherv},
           {"alltoallv", alltoallv},
           {"reduce_scatterv", reduce_scatterv},
           {"new_communicator", new_communicator}};

enum { MESSAGES, VOLUME, COUNTERS };

#ifdef COUNT_UCP
/* Which end belongs to which rank a first message to it shows. Of UCX's declarations, what is used here. */
typedef struct {
    uint32_t given, flags;
    void *request, *callback;
    uint64_t datatype;
} ucp_how;
typedef struct {
    void *(*start_pack)(void *context, const void *buffer, size_t count);
    void *(*start_unpack)(void *context, void *buffer, size_t count);
    size_t (*packed_size)(void *state);
    size_t (*pack)(void *state, size_t offset, void *to, size_t most);
    int (*unpack)(void *state, size_t offset, const void *from, size_t bytes);
    void (*finish)(void *state);
} ucp_packing;
enum { UCP_DATATYPE_GIVEN = 1 << 3, UCP_KIND = 7, UCP_CONTIGUOUS = 0, PACKINGS = 1024 };
typedef void *ucp_send(void *end, const void *buffer, size_t count, uint64_t tag, const ucp_how *how);
typedef int ucp_create(const ucp_packing *packing, void *context, uint64_t *datatype);
static void *ends[RANKS];
static size_t sent[COUNTERS][RANKS];
static int towards = -1;
static struct {
    uint64_t datatype;
    ucp_packing packing;
    void *context;
} packings[PACKINGS];
static size_t next_packing;

int ucp_dt_create_generic(const ucp_packing *packing, void *context, uint64_t *datatype) {
    void *found = dlsym(RTLD_NEXT, "ucp_dt_create_generic");
    ucp_create *real;
    memcpy(&real, &found, sizeof found);
    const int status = real(packing, context, datatype);
    packings[next_packing].datatype = *datatype;
    packings[next_packing].packing = *packing;
    packings[next_packing].context = context;
    next_packing = (next_packing + 1) % PACKINGS;
    return status;
}

static size_t bytes_of(const void *buffer, size_t count, const ucp_how *how) {
    if (!(how->given & UCP_DATATYPE_GIVEN))
        return count;
    if ((how->datatype & UCP_KIND) == UCP_CONTIGUOUS)
        return count * (how->datatype >> 3);
    for (size_t i = 1; i <= PACKINGS; ++i) { /* the newest first: numbers of those that were freed return */
        const size_t at = (next_packing + PACKINGS - i) % PACKINGS;
        if (packings[at].datatype == how->datatype) {
            void *state = packings[at].packing.start_pack(packings[at].context, buffer, count);
            const size_t bytes = packings[at].packing.packed_size(state);
            packings[at].packing.finish(state);
            return bytes;
        }
    }
    abort();
}

void *ucp_tag_send_nbx(void *end, const void *buffer, size_t count, uint64_t tag, const ucp_how *how) {
    static ucp_send *real;
    if (!real) {
        void *found = dlsym(RTLD_NEXT, "ucp_tag_send_nbx");
        memcpy(&real, &found, sizeof found);
    }
    if (towards >= 0)
        ends[towards] = end;
    for (int rank = 0; rank < RANKS; ++rank)
        if (ends[rank] == end) {
            ++sent[MESSAGES][rank];
            sent[VOLUME][rank] += bytes_of(buffer, count, how);
        }
    return real(end, buffer, count, tag, how);
}

static int start_counters(void) {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int from = 0; from < ranks; ++from)
        for (int to = 0; to < ranks; ++to) {
            towards = rank == from && to != from ? to : -1;
            if (towards >= 0)
                MPI_Send(NULL, 0, MPI_CHAR, to, 0, MPI_COMM_WORLD);
            else if (rank == to && from != to)
                MPI_Recv(NULL, 0, MPI_CHAR, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    towards = -1;
    return dlsym(RTLD_NEXT, "ucp_tag_send_nbx") != NULL;
}

static void read_counters(size_t counters[COUNTERS][RANKS]) { memcpy(counters, sent, sizeof sent); }
#else
static MPI_T_pvar_session session;
static MPI_T_pvar_handle handles[COUNTERS];

static int start_counters(void) {
    static const char *const names[COUNTERS] = {"pml_monitoring_messages_count", "pml_monitoring_messages_size"};
    MPI_Comm world = MPI_COMM_WORLD;
    int level, count;
    MPI_T_init_thread(MPI_THREAD_SINGLE, &level);
    MPI_T_pvar_session_create(&session);
    for (int i = 0; i < COUNTERS; ++i) {
        int at;
        if (MPI_T_pvar_get_index(names[i], MPI_T_PVAR_CLASS_SIZE, &at) ||
            MPI_T_pvar_handle_alloc(session, at, &world, &handles[i], &count))
            return 0;
        MPI_T_pvar_start(session, handles[i]);
    }
    return 1;
}

static void read_counters(size_t counters[COUNTERS][RANKS]) {
    for (int i = 0; i < COUNTERS; ++i)
        MPI_T_pvar_read(session, handles[i], counters[i]);
}
#endif

static void run(collective *one, int bytes, int nonblocking) {
    MPI_Request request;
    one(bytes, MPI_COMM_WORLD, nonblocking ? &request : NULL);
    if (nonblocking)
        MPI_Wait(&request, MPI_STATUS_IGNORE);
}

enum { ALL = sizeof all / sizeof *all, MOST_SIZES = 16 };
typedef size_t counts_of_all[2][ALL][MOST_SIZES][COUNTERS][RANKS];

static void count(collective *one, int bytes, int nonblocking, size_t counted[COUNTERS][RANKS]) {
    size_t before[COUNTERS][RANKS] = {{0}};
    read_counters(before);
    run(one, bytes, nonblocking);
    read_counters(counted);
    for (int counter = 0; counter < COUNTERS; ++counter)
        for (int to = 0; to < RANKS; ++to)
            counted[counter][to] -= before[counter][to];
}

static void show(counts_of_all *of, int nonblocking, size_t i, int at, int bytes, int ranks) {
    for (int from = 0; from < ranks; ++from) {
        size_t (*counted)[RANKS] = of[from][nonblocking][i][at];
        printf("%s %d %d %d", all[i].name, nonblocking, bytes, from);
        for (int to = 0; to < ranks; ++to)
            printf(" %zu:%zu", counted[MESSAGES][to], counted[VOLUME][to]);
        printf("\n");
    }
}

int main(int argc, char **argv) {
    static counts_of_all counted;
    int rank, ranks;
    prctl(PR_SET_TIMERSLACK, SLACK_NS); /* ranks that wait would sleep 50 us at a time */
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    root = argc > 1 ? atoi(argv[1]) : 0;
    out = calloc((size_t)ranks, MOST);
    in = calloc((size_t)ranks, MOST);
    counts_of_all *gathered = calloc((size_t)ranks, sizeof *gathered);
    const int sizes = argc - 2, counting = ranks <= RANKS && sizes <= MOST_SIZES && start_counters();
    for (int nonblocking = 0; counting && nonblocking < 2; ++nonblocking)
        for (size_t i = 0; i < ALL; ++i) {
            run(all[i].run, atoi(argv[2]), nonblocking); /* the first makes communicators of its own */
            for (int at = 0; at < sizes; ++at)
                count(all[i].run, atoi(argv[2 + at]), nonblocking, counted[nonblocking][i][at]);
        }
    /* Once for all: to wait for each other after each call takes ranks a third of the processor time more. */
    MPI_Gather(counted, sizeof counted, MPI_CHAR, gathered, sizeof counted, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int nonblocking = 0; counting && rank == 0 && nonblocking < 2; ++nonblocking)
        for (size_t i = 0; i < ALL; ++i)
            for (int at = 0; at < sizes; ++at)
                show(gathered, nonblocking, i, at, atoi(argv[2 + at]), ranks);
    MPI_Finalize();
    free(out);
    free(in);
    free(gathered);
    return counting ? 0 : NO_COUNTERS;
}
