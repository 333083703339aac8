/* The one clock of the engine: CLOCK_MONOTONIC_RAW, integer nanoseconds since an arbitrary start of this machine.
 *
 * RAW is not slewed by time daemons, so a difference of two stamps is what the oscillator counted. Stamps of different
 * machines are related only through the offsets that sync.h estimates.
 */
#ifndef NM_CLOCK_H
#define NM_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_NAME "CLOCK_MONOTONIC_RAW"

/* Return the present time. Read through the vDSO; costs what clock_cost_ns() says. */
static inline int64_t clock_stamp_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Return the median difference of back-to-back stamps: what one stamp costs, and the least duration seen. */
int64_t clock_cost_ns(void);

#endif
