/* grid.h - how ranks and grid points are divided. */
#ifndef NEARMETAL_APPS_GRID_H
#define NEARMETAL_APPS_GRID_H

#include <stdint.h>

static inline int grid_is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

/* The integer square root of n when n is a square, else 0. */
static inline int grid_square_root(int n) {
    int root = 1;
    while (root * root < n)
        root++;
    return root * root == n ? root : 0;
}

/* First element of part `part` when n elements are divided into `parts` nearly equal parts; part == parts gives n. */
static inline int64_t grid_first(int64_t n, int parts, int part) { return n * part / parts; }

#endif
