/*
 * ep.c - "embarrassingly parallel": Gaussian deviates by the acceptance-rejection method (report NAS-95-020, 2.2).
 *
 * 2^m pairs (x, y) uniform in (-1, 1)^2 are tested with t = x^2 + y^2 <= 1; an accepted pair gives the deviates
 * X = x sqrt(-2 ln t / t) and Y likewise. The sums of X and of Y are the verified result, and the counts of
 * max(|X|, |Y|) in the annuli l <= . < l + 1 are printed. The only communication is one final reduction.
 *
 * One iteration is one batch of 2^16 pairs, placed in the random sequence by its number; batches go to ranks in turn.
 */
#include "common/app.h"
#include "common/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define EP_SEED UINT64_C(271828183)
enum { BATCH_LOG2 = 16, BATCH_PAIRS = 1 << BATCH_LOG2, CHUNK_PAIRS = 1024, ANNULI = 10 };

static const struct {
    int log2_pairs;
    double sum_x, sum_y;
} classes[] = {
    {24, -3.247834652034740e3, -6.958407078382297e3}, {25, -2.863319731645753e3, -6.320053679109499e3},
    {28, -4.295875165629892e3, -1.580732573678431e4}, {30, 4.033815542441498e4, -2.660669192809235e4},
    {32, 4.764367927995374e4, -8.084072988043731e4},
};

/* sum[0] of X, sum[1] of Y, sum[2 ...] the annulus counts: one array, so that one reduction does. */
struct tally {
    double sum[2 + ANNULI];
};

static void chunk(const double *uniform, struct tally *tally) {
    double x[CHUNK_PAIRS], y[CHUNK_PAIRS], t[CHUNK_PAIRS];
    int accepted = 0;
    for (int i = 0; i < CHUNK_PAIRS; i++) { /* no branch: a rejected pair is overwritten by the next */
        const double u = 2.0 * uniform[2 * i] - 1.0, v = 2.0 * uniform[2 * i + 1] - 1.0;
        x[accepted] = u;
        y[accepted] = v;
        t[accepted] = u * u + v * v;
        accepted += t[accepted] <= 1.0;
    }
    for (int i = 0; i < accepted; i++)
        t[i] = sqrt(-2.0 * log(t[i]) / t[i]);
    for (int i = 0; i < accepted; i++) {
        const double gauss_x = x[i] * t[i], gauss_y = y[i] * t[i];
        tally->sum[0] += gauss_x;
        tally->sum[1] += gauss_y;
        const double size_x = fabs(gauss_x), size_y = fabs(gauss_y);
        tally->sum[2 + (int)(size_x > size_y ? size_x : size_y)] += 1.0;
    }
}

static void batch(uint64_t seed, int64_t number, struct tally *tally) {
    uint64_t state = random_skip(seed, 2 * (uint64_t)BATCH_PAIRS * (uint64_t)number);
    double uniform[2 * CHUNK_PAIRS];
    for (int done = 0; done < BATCH_PAIRS; done += CHUNK_PAIRS) {
        random_fill(&state, uniform, 2 * CHUNK_PAIRS);
        chunk(uniform, tally);
    }
}

static void print_counts(const struct tally *tally) {
    double pairs = 0.0;
    for (int l = 0; l < ANNULI; l++)
        pairs += tally->sum[2 + l];
    printf(" Gaussian pairs  %15.0f\n", pairs);
    for (int l = 0; l < ANNULI; l++)
        printf(" annulus %d       %15.0f\n", l, tally->sum[2 + l]);
}

static void run_ep(struct run *run) {
    const int class_index = run_class_index(run);
    const int64_t batches = INT64_C(1) << (classes[class_index].log2_pairs - BATCH_LOG2);
    const int iterations = (int)((batches + run->ranks - 1) / run->ranks);
    const uint64_t seed = EP_SEED + (run->spoil ? 2 : 0);
    struct tally mine = {{0.0}}, total = {{0.0}};

    run->size[0] = INT64_C(1) << (classes[class_index].log2_pairs + 1);
    run->operations = (double)run->size[0];
    run_plan(run, iterations);
    run_start(run);
    for (int i = 0; i < iterations; i++) {
        const int64_t number = (int64_t)i * run->ranks + run->rank;
        run_iteration_begin(run);
        if (number < batches)
            batch(seed, number, &mine);
        run_iteration_end(run);
    }
    RUN_MPI(run, MPI_Allreduce(mine.sum, total.sum, 2 + ANNULI, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    run_stop(run);

    if (run->rank == 0)
        print_counts(&total);
    run_check(run, "sum of X", total.sum[0], classes[class_index].sum_x, 1e-8);
    run_check(run, "sum of Y", total.sum[1], classes[class_index].sum_y, 1e-8);
}

static int accepts_ep(const struct run *run) { return run->ranks >= 1; }

const struct app app_ep = {"ep", "EP", "random numbers generated", "any", accepts_ep, run_ep};
