/* trace_polls.c - counts the functions that the profiler enters for a test that finds nothing, where it was compiled
 * with -finstrument-functions; status 1 unless they are as many for hundreds of requests as for one. */
#include <mpi.h>
#include <stdio.h>

enum { MOST = 256 };

void __cyg_profile_func_enter(void *function, void *caller);
void __cyg_profile_func_exit(void *function, void *caller);

static unsigned long entered;

void __cyg_profile_func_enter(void *function, void *caller) { entered += function != caller; }

void __cyg_profile_func_exit(void *function, void *caller) {
    (void)function;
    (void)caller;
}

static unsigned long polled(int count, MPI_Request *requests) {
    int done, flag, index, indices[MOST];
    unsigned long before = entered;
    MPI_Testsome(count, requests, &done, indices, MPI_STATUSES_IGNORE);
    MPI_Testany(count, requests, &index, &flag, MPI_STATUS_IGNORE);
    MPI_Testall(count, requests, &flag, MPI_STATUSES_IGNORE);
    return entered - before;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Request requests[MOST];
    static char in[MOST];
    char out = 1;
    for (int i = 0; i < MOST; ++i)
        MPI_Irecv(&in[i], 1, MPI_CHAR, 0, i, MPI_COMM_SELF, &requests[i]);
    polled(1, requests); /* the first makes room */
    unsigned long of_one = polled(1, requests), of_all = polled(MOST, requests);
    for (int i = 0; i < MOST - 1; ++i)
        MPI_Send(&out, 1, MPI_CHAR, 0, i, MPI_COMM_SELF);
    MPI_Waitall(MOST - 1, requests, MPI_STATUSES_IGNORE);
    unsigned long of_last = polled(MOST, requests);
    MPI_Send(&out, 1, MPI_CHAR, 0, MOST - 1, MPI_COMM_SELF);
    MPI_Wait(&requests[MOST - 1], MPI_STATUS_IGNORE);
    MPI_Finalize();
    fprintf(stderr, "%lu functions for one request, %lu for %d, %lu for the last of them\n", of_one, of_all, MOST,
            of_last);
    return of_one == 0 || of_all != of_one || of_last != of_one;
}
