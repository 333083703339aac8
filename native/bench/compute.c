#include "compute.h"

#include <stdlib.h>

#include "clock.h"

enum { PIECE = 512, FIX_TRIES = 20, FIX_PIECES = 16 };

size_t compute_prepare(struct compute *compute, int64_t for_ns, int64_t working_set_bytes) {
    const size_t bytes = (size_t)working_set_bytes / (PIECE * sizeof(double)) * (PIECE * sizeof(double));
    *compute = (struct compute){.for_ns = for_ns, .count = bytes / sizeof(double)};
    if (for_ns == 0)
        return 0;
    compute->numbers = malloc(bytes);
    if (compute->numbers == NULL)
        return bytes;
    for (size_t i = 0; i < compute->count; i++)
        compute->numbers[i] = 1.0;
    return 0;
}

void compute_free(struct compute *compute) { free(compute->numbers); }

static void run_piece(struct compute *compute) {
    double *const piece = compute->numbers + compute->at;
    for (size_t i = 0; i < PIECE; i++)
        piece[i] = piece[i] * 0.5 + 0.5; /* stays 1: no number grows or vanishes over any time */
    compute->at = compute->at + PIECE == compute->count ? 0 : compute->at + PIECE;
}

void compute_run(struct compute *compute) {
    const int64_t until_ns = clock_stamp_ns() + compute->for_ns;
    do {
        run_piece(compute);
    } while (clock_stamp_ns() < until_ns);
}

/* The quickest of several tries is the one that nothing disturbed. */
void compute_fix(struct compute *compute) {
    int64_t quickest_ns = INT64_MAX;
    for (int i = 0; i < FIX_TRIES; i++) {
        const int64_t begin_ns = clock_stamp_ns();
        for (int piece = 0; piece < FIX_PIECES; piece++)
            run_piece(compute);
        const int64_t took_ns = clock_stamp_ns() - begin_ns;
        if (took_ns > 0 && took_ns < quickest_ns)
            quickest_ns = took_ns;
    }
    compute->pieces = compute->for_ns * FIX_PIECES / quickest_ns + 1;
}

void compute_fixed(struct compute *compute) {
    for (int64_t piece = 0; piece < compute->pieces; piece++)
        run_piece(compute);
}
