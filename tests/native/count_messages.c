/* Count what rank 0 sends point to point, by destination, and print it at the end. Loaded with LD_PRELOAD. */
#include <mpi.h>
#include <stdio.h>

enum { PEERS = 64 };

static long messages[PEERS], bytes[PEERS];

static void count(int destination, int elements, MPI_Datatype type) {
    int size;
    if (destination < 0 || destination >= PEERS)
        return;
    MPI_Type_size(type, &size);
    messages[destination]++;
    bytes[destination] += (long)elements * size;
}

int MPI_Send(const void *buffer, int elements, MPI_Datatype type, int destination, int tag, MPI_Comm comm) {
    count(destination, elements, type);
    return PMPI_Send(buffer, elements, type, destination, tag, comm);
}

int MPI_Isend(const void *buffer, int elements, MPI_Datatype type, int destination, int tag, MPI_Comm comm,
              MPI_Request *request) {
    count(destination, elements, type);
    return PMPI_Isend(buffer, elements, type, destination, tag, comm, request);
}

int MPI_Finalize(void) {
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int peer = 0; rank == 0 && peer < PEERS; peer++)
        if (messages[peer] > 0)
            printf("sent to %d: %ld messages, %ld bytes\n", peer, messages[peer], bytes[peer]);
    return PMPI_Finalize();
}
