#include "clock.h"

#include <stdlib.h>

enum { PAIRS = 2001 };

static int compare_int64(const void *left, const void *right) {
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

int64_t clock_cost_ns(void) {
    int64_t cost_ns[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        const int64_t begin_ns = clock_stamp_ns();
        cost_ns[i] = clock_stamp_ns() - begin_ns;
    }
    qsort(cost_ns, PAIRS, sizeof cost_ns[0], compare_int64);
    return cost_ns[PAIRS / 2];
}
