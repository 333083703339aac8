/*
 * random.h - the pseudo-random numbers of the NAS Parallel Benchmarks (report NAS-95-020, section 2.3):
 *
 *     x[k+1] = a x[k] mod 2^46,    r[k] = 2^-46 x[k],    a = 5^13 unless stated otherwise.
 *
 * 2^46 divides 2^64, so the wrapping product of 64-bit unsigned integers masked to 46 bits is exact, and so is the
 * conversion to double. Any place of the sequence is reached in O(log n) by random_power().
 */
#ifndef NEARMETAL_APPS_RANDOM_H
#define NEARMETAL_APPS_RANDOM_H

#include <stdint.h>

#define RANDOM_MULTIPLIER UINT64_C(1220703125) /* 5^13 */
#define RANDOM_SEED UINT64_C(314159265)        /* of every kernel but EP */
#define RANDOM_MASK ((UINT64_C(1) << 46) - 1)
#define RANDOM_UNIT 0x1p-46

/* Step the state by one and return the new number in (0, 1). */
static inline double random_next(uint64_t *state) {
    *state = *state * RANDOM_MULTIPLIER & RANDOM_MASK;
    return (double)(int64_t)*state * RANDOM_UNIT;
}

/* base^exponent mod 2^46. */
static inline uint64_t random_power(uint64_t base, uint64_t exponent) {
    uint64_t power = 1;
    for (; exponent > 0; exponent >>= 1, base = base * base & RANDOM_MASK)
        if (exponent & 1)
            power = power * base & RANDOM_MASK;
    return power;
}

/* The state after `steps` steps from `state`. */
static inline uint64_t random_skip(uint64_t state, uint64_t steps) {
    return state * random_power(RANDOM_MULTIPLIER, steps) & RANDOM_MASK;
}

/* Write the next `count` numbers to `out` and step the state past them: what `count` calls of random_next() give. */
void random_fill(uint64_t *state, double *out, int64_t count);

#endif
