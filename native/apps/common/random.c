#include "random.h"

/* Independent lanes: lane i holds every LANES-th number, so that the compiler can use vector multiplications. */
enum { LANES = 16 };

void random_fill(uint64_t *state, double *out, int64_t count) {
    const uint64_t stride = random_power(RANDOM_MULTIPLIER, LANES);
    uint64_t lane[LANES];
    int64_t done = 0;
    if (count >= LANES) {
        uint64_t first = *state;
        for (int i = 0; i < LANES; i++)
            lane[i] = first = first * RANDOM_MULTIPLIER & RANDOM_MASK;
        for (; done + LANES <= count; done += LANES) {
            for (int i = 0; i < LANES; i++) {
                out[done + i] = (double)(int64_t)lane[i] * RANDOM_UNIT;
                lane[i] = lane[i] * stride & RANDOM_MASK;
            }
        }
        *state = random_skip(*state, (uint64_t)done);
    }
    for (; done < count; done++)
        out[done] = random_next(state);
}
