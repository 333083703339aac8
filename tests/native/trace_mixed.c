/* trace_mixed.c - waits of which some requests are not recorded: generalized ones, which a test completes at will. */
#include <mpi.h>
#include <stddef.h>

static int query(void *state, MPI_Status *status) {
    (void)state;
    MPI_Status_set_elements(status, MPI_BYTE, 0);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

static int let_go(void *state) { return state != NULL; }

static int cancel(void *state, int complete) { return state != NULL || !complete; }

static MPI_Request begun(void) {
    MPI_Request request;
    MPI_Grequest_start(query, let_go, cancel, NULL, &request);
    return request;
}

int main(int argc, char **argv) {
    char in = 0, out = 1;
    int flag, index, done, indices[2];
    MPI_Init(&argc, &argv);
    /* Both at once: 1 reading of the clock. */
    MPI_Request both[3] = {MPI_REQUEST_NULL, begun(), MPI_REQUEST_NULL};
    MPI_Irecv(&in, 1, MPI_BYTE, 0, 1, MPI_COMM_SELF, &both[0]);
    MPI_Send(&out, 1, MPI_BYTE, 0, 1, MPI_COMM_SELF);
    MPI_Grequest_complete(both[1]);
    MPI_Waitall(3, both, MPI_STATUSES_IGNORE);
    /* A test that fails, a pause, and one that succeeds: 3. */
    both[1] = begun();
    MPI_Irecv(&in, 1, MPI_BYTE, 0, 2, MPI_COMM_SELF, &both[0]);
    MPI_Send(&out, 1, MPI_BYTE, 0, 2, MPI_COMM_SELF);
    MPI_Testall(2, both, &flag, MPI_STATUSES_IGNORE);
    MPI_Grequest_complete(both[1]);
    do
        MPI_Testall(2, both, &flag, MPI_STATUSES_IGNORE);
    while (!flag);
    /* One of both, which is recorded: 0. */
    both[1] = begun();
    MPI_Irecv(&in, 1, MPI_BYTE, 0, 3, MPI_COMM_SELF, &both[0]);
    MPI_Send(&out, 1, MPI_BYTE, 0, 3, MPI_COMM_SELF);
    MPI_Waitany(2, both, &index, MPI_STATUS_IGNORE);
    MPI_Grequest_complete(both[1]);
    MPI_Wait(&both[1], MPI_STATUS_IGNORE);
    /* With one that takes no time, alone: 3 of the calls that are not recorded. */
    both[1] = begun();
    MPI_Irecv(&in, 1, MPI_BYTE, MPI_PROC_NULL, 4, MPI_COMM_SELF, &both[0]);
    MPI_Testall(2, both, &flag, MPI_STATUSES_IGNORE);
    MPI_Grequest_complete(both[1]);
    MPI_Waitsome(2, both, &done, indices, MPI_STATUSES_IGNORE);
    if (done < 2)
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    /* Work between two tests that fail, with a reading at its end and 4 for calls of its own: 5 of such work. */
    MPI_Datatype copy;
    MPI_Irecv(&in, 1, MPI_BYTE, 0, 5, MPI_COMM_SELF, &both[0]);
    MPI_Test(&both[0], &flag, MPI_STATUS_IGNORE);
    MPI_Type_dup(MPI_BYTE, &copy);
    MPI_Type_free(&copy);
    MPI_Test(&both[0], &flag, MPI_STATUS_IGNORE);
    MPI_Send(&out, 1, MPI_BYTE, 0, 5, MPI_COMM_SELF);
    MPI_Wait(&both[0], MPI_STATUS_IGNORE);
    /* The first of two that any of two may send, and the other. */
    MPI_Irecv(&in, 1, MPI_BYTE, 0, 6, MPI_COMM_SELF, &both[0]);
    MPI_Irecv(&in, 1, MPI_BYTE, 0, 6, MPI_COMM_WORLD, &both[1]);
    MPI_Send(&out, 1, MPI_BYTE, 0, 6, MPI_COMM_WORLD);
    MPI_Waitany(2, both, &done, MPI_STATUS_IGNORE);
    MPI_Send(&out, 1, MPI_BYTE, 0, 6, MPI_COMM_SELF);
    MPI_Waitany(2, both, &done, MPI_STATUS_IGNORE);
    /* The first of two of one sender. */
    for (int tag = 7; tag < 9; ++tag)
        MPI_Irecv(&in, 1, MPI_BYTE, 0, tag, MPI_COMM_SELF, &both[tag - 7]);
    for (int tag = 7; tag < 9; ++tag) {
        MPI_Send(&out, 1, MPI_BYTE, 0, tag, MPI_COMM_SELF);
        MPI_Waitany(2, both, &done, MPI_STATUS_IGNORE);
    }
    /* None is left: no time of either. */
    MPI_Waitany(2, both, &done, MPI_STATUS_IGNORE);
    MPI_Testall(2, both, &flag, MPI_STATUSES_IGNORE);
    MPI_Finalize();
    return in != 1 || index != 0;
}
