/* trace_call.c - processor time of one rank that does nothing but send to itself; prints nanoseconds a call. */
#include <mpi.h>
#include <stdio.h>
#include <time.h>

enum { TURNS = 300000, CALLS = 3 };

static double cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    int out = 1, in;
    MPI_Init(&argc, &argv);
    double started_ns = cpu_ns();
    for (int turn = 0; turn < TURNS; ++turn) {
        MPI_Request request;
        MPI_Irecv(&in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &request);
        MPI_Send(&out, 1, MPI_INT, 0, 0, MPI_COMM_SELF);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    printf("%.1f\n", (cpu_ns() - started_ns) / TURNS / CALLS);
    MPI_Finalize();
    return 0;
}
