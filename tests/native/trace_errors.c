/* trace_errors.c - a program that goes on after waits for messages that are too long for their receives. */
#include <mpi.h>

int main(int argc, char **argv) {
    char in[8], out[8] = {0};
    int failed = 0;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int turn = 0; turn < 4; ++turn) {
        int too_long = turn < 2;
        MPI_Irecv(in, too_long ? 4 : 8, MPI_CHAR, 0, turn, MPI_COMM_SELF, &request);
        MPI_Send(out, 8, MPI_CHAR, 0, turn, MPI_COMM_SELF);
        failed += MPI_Wait(&request, MPI_STATUS_IGNORE) != 0;
    }
    MPI_Finalize();
    return failed != 2;
}
