/* trace_calls.c - one of everything the profiler knows, on 2 ranks or more; STEPS says how often the loop runs. */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 16, STEPS = 50, ROOM = 64 };

static int rank, ranks, next, before;
static double out[COUNT * ROOM], in[COUNT * ROOM];

static void one_peer(MPI_Comm comm) {
    MPI_Status status;
    MPI_Request requests[3];
    MPI_Isend(out, COUNT, MPI_DOUBLE, next, 1, comm, &requests[0]);
    MPI_Issend(out, COUNT, MPI_DOUBLE, next, 2, comm, &requests[1]);
    MPI_Probe(before, 1, comm, &status);
    MPI_Recv(in, COUNT + 4, MPI_DOUBLE, MPI_ANY_SOURCE, 1, comm, &status);
    MPI_Recv(in, COUNT, MPI_DOUBLE, before, MPI_ANY_TAG, comm, MPI_STATUS_IGNORE);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    MPI_Sendrecv(out, 3, MPI_INT, next, 3, in, 5, MPI_INT, before, 3, comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv_replace(in, 2, MPI_INT, next, 4, before, 4, comm, MPI_STATUS_IGNORE);
    /* A neighbour outside the domain costs nothing, and its request must not be taken for another's. */
    MPI_Irecv(in, 1, MPI_INT, MPI_PROC_NULL, 5, comm, &requests[0]);
    MPI_Isend(out, 1, MPI_INT, MPI_PROC_NULL, 5, comm, &requests[1]);
    MPI_Irecv(in, 1, MPI_INT, before, 5, comm, &requests[2]);
    MPI_Send(out, 1, MPI_INT, next, 5, comm);
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    MPI_Message message;
    MPI_Isend(out, 7, MPI_CHAR, next, 6, comm, &requests[0]);
    MPI_Mprobe(before, 6, comm, &message, &status);
    MPI_Mrecv(in, 7, MPI_CHAR, &message, &status);
    MPI_Wait(&requests[0], &status);
}

static void persistent(void) {
    MPI_Request requests[2];
    MPI_Recv_init(in, 8, MPI_INT, before, 9, MPI_COMM_WORLD, &requests[0]);
    MPI_Send_init(out, 8, MPI_INT, next, 9, MPI_COMM_WORLD, &requests[1]);
    for (int step = 0; step < STEPS; ++step) {
        MPI_Startall(2, requests);
        for (int left = 2, index; left; --left)
            MPI_Waitany(2, requests, &index, MPI_STATUS_IGNORE);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
}

static void polling(void) {
    MPI_Request requests[2];
    int seen = 0;
    MPI_Irecv(in, 1, MPI_INT, before, 12, MPI_COMM_WORLD, &requests[0]);
    MPI_Send(out, 1, MPI_INT, next, 12, MPI_COMM_WORLD);
    while (!seen)
        MPI_Request_get_status(requests[0], &seen, MPI_STATUS_IGNORE);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    for (int step = 0; step < STEPS; ++step) {
        MPI_Irecv(in, 1, MPI_INT, before, 10, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, 1, MPI_INT, next, 10, MPI_COMM_WORLD, &requests[1]);
        for (int done = 0; !done;)
            MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE);
    }
}

static void collectives(MPI_Comm comm) {
    int counts[ROOM], places[ROOM], takes[ROOM], taken_at[ROOM];
    MPI_Request request;
    for (int i = 0; i < ranks; ++i) {
        counts[i] = i + 1;
        places[i] = i * (i + 1) / 2;
        takes[i] = rank + 1;
        taken_at[i] = i * (rank + 1);
    }
    MPI_Barrier(comm);
    MPI_Bcast(out, 10, MPI_DOUBLE, 0, comm);
    MPI_Reduce(out, in, 2, MPI_DOUBLE, MPI_SUM, 1, comm);
    MPI_Allreduce(MPI_IN_PLACE, in, 3, MPI_DOUBLE, MPI_SUM, comm);
    MPI_Scan(out, in, 1, MPI_DOUBLE, MPI_SUM, comm);
    MPI_Exscan(out, in, 1, MPI_DOUBLE, MPI_SUM, comm);
    MPI_Gather(out, 2, MPI_INT, in, 2, MPI_INT, 0, comm);
    MPI_Scatter(out, 2, MPI_INT, in, 2, MPI_INT, 0, comm);
    MPI_Allgather(out, 4, MPI_INT, in, 4, MPI_INT, comm);
    MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, comm);
    MPI_Alltoallv(out, counts, places, MPI_INT, in, takes, taken_at, MPI_INT, comm);
    MPI_Allgatherv(out, counts[rank], MPI_INT, in, counts, places, MPI_INT, comm);
    MPI_Gatherv(out, counts[rank], MPI_INT, in, counts, places, MPI_INT, 0, comm);
    MPI_Reduce_scatter_block(out, in, 1, MPI_INT, MPI_SUM, comm);
    MPI_Ibarrier(comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Iallreduce(out, in, 1, MPI_INT, MPI_SUM, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void communicators(void) {
    MPI_Comm pair, copy, grid, line, some;
    MPI_Request request;
    int dims[2] = {ranks, 1}, periods[2] = {1, 0}, keep[2] = {1, 0}, first[1] = {0};
    MPI_Group world, group;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &pair);
    MPI_Comm_dup(pair, &copy);
    MPI_Barrier(copy);
    MPI_Pcontrol(3);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&pair);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &copy);
    MPI_Comm_free(&copy);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, first, &group);
    if (rank == 0) {
        MPI_Comm_create_group(MPI_COMM_WORLD, group, 3, &some);
        MPI_Comm_free(&some);
    }
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    MPI_Cart_sub(grid, keep, &line);
    MPI_Neighbor_allgather(out, 2, MPI_INT, in, 2, MPI_INT, grid);
    /* The second dimension is open and has one rank: its two neighbours do not exist. */
    int counts[] = {2, 2, 3, 4}, places[] = {0, 2, 4, 7};
    MPI_Neighbor_alltoallv(out, counts, places, MPI_INT, in, counts, places, MPI_INT, grid);
    MPI_Neighbor_allgatherv(out, 2, MPI_INT, in, counts, places, MPI_INT, grid);
    MPI_Comm_split(MPI_COMM_WORLD, rank ? 0 : MPI_UNDEFINED, 0, &pair);
    if (pair != MPI_COMM_NULL)
        MPI_Comm_free(&pair);
    MPI_Comm_free(&line);
    MPI_Comm_free(&grid);
    dims[0] = 2; /* of the first two ranks */
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    if (grid != MPI_COMM_NULL)
        MPI_Comm_free(&grid);
    /* A receive of a message that never comes. */
    MPI_Irecv(in, 1, MPI_INT, next, 77, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    /* The second takes over the handle of the first, and has other members. */
    for (int turn = 0; turn < 2; ++turn) {
        MPI_Comm_split(MPI_COMM_WORLD, turn && rank == 0, rank, &pair);
        MPI_Scan(out, in, 5 + turn, MPI_BYTE, MPI_BOR, pair);
        MPI_Comm_disconnect(&pair);
    }
}

static void datatypes(void) {
    MPI_Datatype column;
    MPI_Request request;
    MPI_Type_vector(4, 2, 8, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    MPI_Irecv(in, 1, column, before, 11, MPI_COMM_WORLD, &request);
    MPI_Send(out, 1, column, next, 11, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Type_free(&column);
}

/* What is only counted. */
static void partitioned(void) {
#if MPI_VERSION >= 4 || (defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5)
    MPI_Request requests[2];
    MPI_Psend_init(out, 2, 8, MPI_DOUBLE, next, 13, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]);
    MPI_Precv_init(in, 2, 8, MPI_DOUBLE, before, 13, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]);
    MPI_Startall(2, requests);
    for (int part = 0; part < 2; ++part)
        MPI_Pready(part, requests[0]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
#endif
}

static void file(const char *path) {
    MPI_File file;
    MPI_Request request;
    MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    MPI_File_iwrite_at(file, 8 * rank, out, 1, MPI_DOUBLE, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
}

/* Windows of every kind: all of these calls are collective, and some wait for the others. */
static void windows(void) {
    MPI_Win window;
    void *memory;
    MPI_Win_allocate(8, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    MPI_Win_free(&window);
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_free(&window);
}

/* A general graph is a communicator like others; only the neighbour collectives on it are not recorded. */
static void graph(void) {
    MPI_Comm ring;
    MPI_Request request;
    int degree[] = {1}, weight[] = {1};
    MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &rank, degree, &next, weight, MPI_INFO_NULL, 0, &ring);
    MPI_Irecv(in, 9, MPI_CHAR, before, 14, ring, &request);
    MPI_Send(out, 9, MPI_CHAR, next, 14, ring);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&ring);
}

static void idup(void) {
    MPI_Comm copy;
    MPI_Request request;
    MPI_Comm_idup(MPI_COMM_WORLD, &copy, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Barrier(copy);
    MPI_Comm_free(&copy);
}

/* Six messages, asked for together where MPI can. */
static void query(void) {
    MPI_Request requests[6];
    for (int i = 0; i < 3; ++i) {
        MPI_Irecv(in + i, 1, MPI_DOUBLE, before, 16, MPI_COMM_WORLD, &requests[i]);
        MPI_Isend(out, 1, MPI_DOUBLE, next, 16, MPI_COMM_WORLD, &requests[3 + i]);
    }
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
    for (int done = 0; !done;)
        MPI_Request_get_status_all(6, requests, &done, MPI_STATUSES_IGNORE);
#endif
    MPI_Waitall(6, requests, MPI_STATUSES_IGNORE);
}

/* A receive that fails, in a program that goes on. */
static void fail(void) {
    MPI_Comm alone;
    MPI_Comm_dup(MPI_COMM_SELF, &alone);
    MPI_Comm_set_errhandler(alone, MPI_ERRORS_RETURN);
    MPI_Request request;
    MPI_Isend(out, 8, MPI_CHAR, 0, 15, alone, &request);
    MPI_Recv(in, 4, MPI_CHAR, 0, 15, alone, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&alone);
}

/* Return whether this is a program that starts one, or one that was started, and nothing else. */
static bool starts(int argc, char **argv) {
    MPI_Comm other;
    char *none[] = {NULL};
    MPI_Comm_get_parent(&other);
    if (other == MPI_COMM_NULL) {
        if (argc < 2 || strcmp(argv[1], "spawn"))
            return false;
        MPI_Comm_spawn(argv[0], none, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other, MPI_ERRCODES_IGNORE);
    }
    PMPI_Barrier(other); /* MPICH over UCX loses a rank that still connects when the other side ends; not to be traced */
    MPI_Comm_disconnect(&other);
    MPI_Finalize();
    return true;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (starts(argc, argv))
        return 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    next = (rank + 1) % ranks;
    before = (rank + ranks - 1) % ranks;
    if (argc > 1 && !strcmp(argv[1], "die") && rank == ranks - 1)
        abort();
    if (argc > 1 && !strcmp(argv[1], "fail")) {
        MPI_Finalize();
        return 3;
    }
    for (int step = 0; step < STEPS; ++step)
        one_peer(MPI_COMM_WORLD);
    persistent();
    polling();
    collectives(MPI_COMM_WORLD);
    communicators();
    datatypes();
    if (argc > 1 && !strcmp(argv[1], "rare")) {
        partitioned();
        file(argv[2]);
        windows();
        graph();
        idup();
        query();
        fail();
    }
    MPI_Win window;
    MPI_Win_create(in, sizeof in, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_fence(0, window);
    MPI_Put(out, 1, MPI_INT, next, 0, 1, MPI_INT, window);
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
