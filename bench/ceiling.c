/*
 * ceiling.c - what this machine can do at most, by as many processes at once as there are ranks.
 *
 *     mpirun -n RANKS ceiling FOOTPRINT_KIB [FOOTPRINT_KIB ...]
 *
 * Prints, summed over ranks, the best of REPEATS measurements of each loop, slowest rank deciding:
 *   triad KIB MBPS   a[i] = b[i] + s c[i] over arrays of KIB in total and rank, 24 bytes an element (McCalpin's STREAM)
 *   flops GFLOPS     independent multiply-add chains, as wide as the compiler makes them
 *   roots MPERS      million evaluations a second of sqrt(-2 log(t) / t), the heart of EP
 */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { REPEATS = 7, CHAINS = 96, VALUES = 4096 };

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double best_s = INFINITY;

/* Run `loop` on all ranks at once; the seconds of the slowest. */
static double together_s(void (*loop)(void *), void *data) {
    best_s = INFINITY;
    for (int i = 0; i < REPEATS; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin_s = now_s();
        loop(data);
        const double mine_s = now_s() - begin_s;
        double slowest_s;
        MPI_Allreduce(&mine_s, &slowest_s, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        best_s = slowest_s < best_s ? slowest_s : best_s;
    }
    return best_s;
}

struct triad {
    size_t count;
    int64_t rounds;
    double *a, *b, *c;
};

static void triad_loop(void *data) {
    const struct triad *t = data;
    for (int64_t round = 0; round < t->rounds; round++) {
        double *restrict a = t->a;
        const double *restrict b = t->b, *restrict c = t->c;
        const double scale = 3.0 + (double)round;
        for (size_t i = 0; i < t->count; i++)
            a[i] = b[i] + scale * c[i];
    }
}

static void triad(size_t kib, int ranks, int rank) {
    struct triad t = {.count = kib * 1024 / 24};
    t.rounds = (int64_t)(64 * 1024 * 1024 / t.count) + 1;
    double *const memory = malloc(t.count * 24);
    if (memory == NULL)
        MPI_Abort(MPI_COMM_WORLD, 3);
    t.a = memory;
    t.b = memory + t.count;
    t.c = memory + 2 * t.count;
    for (size_t i = 0; i < 3 * t.count; i++)
        memory[i] = 1.0 + (double)i;
    const double seconds = together_s(triad_loop, &t);
    if (rank == 0)
        printf("triad %zu %.0f\n", kib, 24e-6 * (double)t.count * (double)t.rounds * ranks / seconds);
    free(memory);
}

static void flops_loop(void *data) {
    double *const sum = data;
    double chain[CHAINS];
    for (int k = 0; k < CHAINS; k++)
        chain[k] = k;
    for (int i = 0; i < 4000000; i++)
        for (int k = 0; k < CHAINS; k++)
            chain[k] = chain[k] * 0.999999 + 1e-6;
    for (int k = 0; k < CHAINS; k++)
        *sum += chain[k];
}

static void roots_loop(void *data) {
    double *const value = data;
    for (int round = 0; round < 1500; round++)
        for (int i = 0; i < VALUES; i++)
            value[i] = 1e-3 + 0.1 * sqrt(-2.0 * log(value[i]) / value[i]) * value[i]; /* stays in (0, 1) */
}

int main(int argc, char **argv) {
    int rank, ranks;
    double sum = 0.0, values[VALUES];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++)
        triad(strtoul(argv[i], NULL, 10), ranks, rank);
    const double flops_s = together_s(flops_loop, &sum);
    for (int i = 0; i < VALUES; i++)
        values[i] = (i + 1.0) / (VALUES + 1.0);
    const double roots_s = together_s(roots_loop, values);
    for (int i = 0; i < VALUES; i++)
        sum += values[i];
    if (rank == 0) {
        printf("flops %.2f\n", 2e-9 * 4e6 * CHAINS * ranks / flops_s);
        printf("roots %.2f\n", 1e-6 * 1500.0 * VALUES * ranks / roots_s);
    }
    MPI_Finalize();
    return isfinite(sum) ? 0 : 1;
}
