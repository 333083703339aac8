/* trace_call.c - processor time of one rank that does nothing but send to itself, or, with a number, test so many open
 * receives in vain; prints nanoseconds a call. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TURNS = 300000, CALLS = 3, MOST = 256 };

static double cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double send_to_itself(void) {
    int out = 1, in;
    double started_ns = cpu_ns();
    for (int turn = 0; turn < TURNS; ++turn) {
        MPI_Request request;
        MPI_Irecv(&in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &request);
        MPI_Send(&out, 1, MPI_INT, 0, 0, MPI_COMM_SELF);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    return (cpu_ns() - started_ns) / TURNS / CALLS;
}

static double test_in_vain(int open) {
    int out = 1, in[MOST], done, indices[MOST];
    MPI_Request requests[MOST];
    for (int i = 0; i < open; ++i)
        MPI_Irecv(&in[i], 1, MPI_INT, 0, i, MPI_COMM_SELF, &requests[i]);
    double started_ns = cpu_ns();
    for (int turn = 0; turn < TURNS; ++turn)
        MPI_Testsome(open, requests, &done, indices, MPI_STATUSES_IGNORE);
    double passed_ns = cpu_ns() - started_ns;
    for (int i = 0; i < open; ++i)
        MPI_Send(&out, 1, MPI_INT, 0, i, MPI_COMM_SELF);
    MPI_Waitall(open, requests, MPI_STATUSES_IGNORE);
    return passed_ns / TURNS;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int open = argc > 1 ? atoi(argv[1]) : 0;
    printf("%.1f\n", open ? test_in_vain(open < MOST ? open : MOST) : send_to_itself());
    MPI_Finalize();
    return 0;
}
