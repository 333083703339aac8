/* Count the broadcasts before the first barrier, and print them at the end. Loaded with LD_PRELOAD. */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>

static int before;
static bool begun;

int MPI_Bcast(void *buffer, int elements, MPI_Datatype type, int root, MPI_Comm comm) {
    before += !begun;
    return PMPI_Bcast(buffer, elements, type, root, comm);
}

int MPI_Barrier(MPI_Comm comm) {
    begun = true;
    return PMPI_Barrier(comm);
}

int MPI_Finalize(void) {
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        printf("broadcasts before: %d\n", before);
    return PMPI_Finalize();
}
