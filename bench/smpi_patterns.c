/* smpi_patterns.c - the patterns of bench/against_smpi.py for SMPI: smpi_patterns KIND STEPS BYTES COMPUTE_S.
 * Prints the simulated seconds of the steps. KIND: halo (faces of a cubic periodic grid), cg (exchanges at distance 1,
 * 2, 4 ... along the rows of a square grid, then its transpose), shift (every rank in turn, at growing distance). */
#include <mpi.h>
#include <smpi/smpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START_S 1.0
#define FLOPS 1e9 /* of a host in the platform file */

static int rank, ranks, bytes;
static char *out, *in;

static void halo(MPI_Comm grid) {
    MPI_Request requests[12];
    for (int face = 0; face < 6; ++face) {
        int before, after;
        MPI_Cart_shift(grid, face / 2, 1, &before, &after);
        MPI_Irecv(in + (size_t)face * bytes, bytes, MPI_BYTE, face % 2 ? after : before, face ^ 1, grid, &requests[face]);
    }
    for (int face = 0; face < 6; ++face) {
        int before, after;
        MPI_Cart_shift(grid, face / 2, 1, &before, &after);
        MPI_Isend(out, bytes, MPI_BYTE, face % 2 ? after : before, face, grid, &requests[6 + face]);
    }
    MPI_Waitall(12, requests, MPI_STATUSES_IGNORE);
}

static void exchange(int with, int size) {
    MPI_Sendrecv(out, size, MPI_BYTE, with, 1, in, size, MPI_BYTE, with, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void cg(int columns) {
    const int row = rank / columns, column = rank % columns;
    for (int bit = 1; bit < columns; bit *= 2)
        exchange(row * columns + (column ^ bit), bytes);
    exchange(column * columns + row, bytes);
    for (int dot = 0; dot < 2; ++dot)
        for (int bit = 1; bit < columns; bit *= 2)
            exchange(row * columns + (column ^ bit), 8);
}

static void shift(void) {
    for (int by = 1; by < ranks; ++by)
        MPI_Sendrecv(out, bytes, MPI_BYTE, (rank + by) % ranks, 1, in, bytes, MPI_BYTE, (rank + ranks - by) % ranks, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 5)
        MPI_Abort(MPI_COMM_WORLD, 2);
    const int steps = atoi(argv[2]);
    int columns = 1, dims[3] = {0}, periodic[3] = {1, 1, 1};
    bytes = atoi(argv[3]);
    out = calloc(6, (size_t)bytes);
    in = calloc(6, (size_t)bytes);
    while (columns * columns < ranks)
        ++columns;
    MPI_Comm grid;
    MPI_Dims_create(ranks, 3, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 3, dims, periodic, 0, &grid);
    MPI_Barrier(MPI_COMM_WORLD);
    smpi_execute_flops((START_S - MPI_Wtime()) * FLOPS); /* all begin at one moment */
    for (int step = 0; step < steps; ++step) {
        smpi_execute_flops(atof(argv[4]) * FLOPS);
        if (strcmp(argv[1], "halo") == 0)
            halo(grid);
        else if (strcmp(argv[1], "cg") == 0)
            cg(columns);
        else
            shift();
    }
    double took = MPI_Wtime() - START_S, longest;
    MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%.9f\n", longest);
    MPI_Finalize();
    return 0;
}
