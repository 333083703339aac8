/* Computing between iterations, or as what is measured. After it, a rank's caches hold its own data, and the path of a
 * message through the library and the kernel is cold; in back-to-back iterations it never is. */
#ifndef NMBENCH_COMPUTE_H
#define NMBENCH_COMPUTE_H

#include <stddef.h>
#include <stdint.h>

struct compute {
    int64_t for_ns;
    size_t count;
    double *numbers; /* owned; NULL where nothing is computed */
    size_t at;       /* where the next piece begins */
    int64_t pieces;  /* how many a fixed amount of computing has */
};

/* Allocate and touch the working set; return 0, or the bytes that could not be allocated. 0 ns needs none. */
size_t compute_prepare(struct compute *compute, int64_t for_ns, int64_t working_set_bytes);
void compute_free(struct compute *compute);

/* Read and write the working set, piece after piece, for `for_ns`; a piece takes less than a microsecond. */
void compute_run(struct compute *compute);

/* Fix the amount of computing that takes `for_ns` if nothing disturbs it; then compute it. */
void compute_fix(struct compute *compute);
void compute_fixed(struct compute *compute);

#endif
