/* trace_threads.c - two threads of each of two ranks exchange messages at once, on a communicator each. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 2, TURNS = 100, NO_THREADS = 77 };

static int rank;
static MPI_Comm comms[THREADS];

static void *exchange(void *mine) {
    const MPI_Comm comm = *(const MPI_Comm *)mine;
    int out = rank, in;
    for (int turn = 0; turn < TURNS; ++turn) {
        MPI_Request request;
        MPI_Irecv(&in, 1, MPI_INT, 1 - rank, 0, comm, &request);
        MPI_Send(&out, 1, MPI_INT, 1 - rank, 0, comm);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; ++i)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (int i = 0; provided == MPI_THREAD_MULTIPLE && i < THREADS; ++i)
        pthread_create(&threads[i], NULL, exchange, &comms[i]);
    for (int i = 0; provided == MPI_THREAD_MULTIPLE && i < THREADS; ++i)
        pthread_join(threads[i], NULL);
    MPI_Finalize();
    return provided == MPI_THREAD_MULTIPLE ? 0 : NO_THREADS;
}
