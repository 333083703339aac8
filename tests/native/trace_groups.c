/* trace_groups.c - messages between two groups of two ranks each, over an inter-communicator and a copy of it, and
 * calls that name no datatype where they send and receive nothing. */
#include <mpi.h>
#include <stddef.h>

enum { RANKS = 4 };

static char out[200], in[200];
static int rank;

static void no_types(MPI_Comm inter, int first) {
    if (first && rank)
        MPI_Gather(NULL, 0, MPI_DATATYPE_NULL, NULL, 0, MPI_DATATYPE_NULL, MPI_PROC_NULL, inter);
    else if (first)
        MPI_Gather(NULL, 0, MPI_DATATYPE_NULL, in, 1, MPI_CHAR, MPI_ROOT, inter);
    else
        MPI_Gather(out, 1, MPI_CHAR, NULL, 0, MPI_DATATYPE_NULL, 0, inter);
#ifdef MPICH_VERSION /* Open MPI wants types in any case */
    int gives[RANKS] = {0}, takes[RANKS] = {0}, places[RANKS] = {0};
    MPI_Datatype given[RANKS], taken[RANKS];
    for (int i = 0; i < RANKS; ++i)
        given[i] = taken[i] = MPI_DATATYPE_NULL;
    gives[(rank + 1) % RANKS] = takes[(rank + RANKS - 1) % RANKS] = 3;
    given[(rank + 1) % RANKS] = taken[(rank + RANKS - 1) % RANKS] = MPI_INT;
    MPI_Alltoallw(out, gives, places, given, in, takes, places, taken, MPI_COMM_WORLD);
#endif
}

int main(int argc, char **argv) {
    int mine;
    MPI_Comm half, inter, copy, all;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const int first = rank < RANKS / 2;
    MPI_Comm_split(MPI_COMM_WORLD, first, rank, &half);
    MPI_Comm_rank(half, &mine);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, first ? RANKS / 2 : 0, 5, &inter);
    MPI_Sendrecv(out, 100, MPI_CHAR, 1 - mine, 1, in, 100, MPI_CHAR, 1 - mine, 1, inter, MPI_STATUS_IGNORE);
    MPI_Comm_dup(inter, &copy);
    if (first)
        MPI_Send(out, 200, MPI_CHAR, mine, 2, copy);
    else
        MPI_Recv(in, 200, MPI_CHAR, MPI_ANY_SOURCE, 2, copy, MPI_STATUS_IGNORE);
    no_types(copy, first);
    MPI_Intercomm_merge(copy, !first, &all);
    MPI_Barrier(all);
    MPI_Comm_free(&all);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
    MPI_Finalize();
    return 0;
}
