/* clock.h - the one clock of the applications: CLOCK_MONOTONIC_RAW, integer nanoseconds. */
#ifndef NEARMETAL_APPS_CLOCK_H
#define NEARMETAL_APPS_CLOCK_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime; this header comes before any system header */
#endif

#include <stdint.h>
#include <time.h>

/* Nanoseconds since an arbitrary point of this machine's past. Never adjusted by time synchronisation. */
static inline int64_t clock_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
