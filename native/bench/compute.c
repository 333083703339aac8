#include "compute.h"

#include <stdlib.h>

#include "clock.h"

enum { PIECE = 512 };

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

void compute_run(struct compute *compute) {
    const int64_t until_ns = clock_stamp_ns() + compute->for_ns;
    do {
        double *const piece = compute->numbers + compute->at;
        for (size_t i = 0; i < PIECE; i++)
            piece[i] = piece[i] * 0.5 + 0.5; /* stays 1: no number grows or vanishes over any time */
        compute->at = compute->at + PIECE == compute->count ? 0 : compute->at + PIECE;
    } while (clock_stamp_ns() < until_ns);
}
