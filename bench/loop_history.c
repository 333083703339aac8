/* Time MPI_Allreduce of 8 bytes, or MPI_Barrier, in the manner of the OSU benchmarks, after some MPI_Bcast:
 *
 *     mpirun -n 2 loop_history allreduce|barrier BROADCASTS
 *
 * Prints the median over iterations of the mean over ranks, in ns.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP = 500, ITERATIONS = 5000 };

static double taken_ns[ITERATIONS], sum_ns[ITERATIONS];

static int ascending(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(int argc, char *argv[]) {
    if (argc != 3)
        return 2;
    MPI_Init(NULL, NULL);
    int rank, ranks, word = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int left = atoi(argv[2]); left > 0; left--)
        MPI_Bcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD);
    const int reduces = strcmp(argv[1], "allreduce") == 0;
    const float sent[2] = {1, 2};
    float received[2];
    for (int i = -WARMUP; i < ITERATIONS; i++) {
        const double begin_s = MPI_Wtime();
        if (reduces)
            MPI_Allreduce(sent, received, 2, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else
            MPI_Barrier(MPI_COMM_WORLD);
        const double end_s = MPI_Wtime();
        if (i >= 0)
            taken_ns[i] = (end_s - begin_s) * 1e9;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Reduce(taken_ns, sum_ns, ITERATIONS, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    qsort(sum_ns, ITERATIONS, sizeof sum_ns[0], ascending);
    if (rank == 0)
        printf("%.1f\n", sum_ns[ITERATIONS / 2] / ranks);
    MPI_Finalize();
    return 0;
}
