/* Waiting that gives the processor away, for an MPI that can only yield.
 *
 * Open MPI 4 has no sleeping wait: told to yield when idle it calls sched_yield(), which keeps the processor busy. With
 * NEARMETAL_YIELD=sleep in its environment this program takes that call itself and sleeps for as short as the kernel
 * lets it, which is what Open MPI 5 does when told `threads_pthreads_yield_strategy nanosleep`
 * (opal/mca/threads/pthreads/threads_pthreads_yield.c). Without the variable it is the system call as ever.
 *
 * The definition takes effect inside shared libraries because the program exports it (-rdynamic).
 */
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static bool sleeps;

__attribute__((constructor)) static void read_environment(void) {
    const char *asked = getenv("NEARMETAL_YIELD");
    sleeps = asked && strcmp(asked, "sleep") == 0;
}

int sched_yield(void) {
    if (!sleeps)
        return (int)syscall(SYS_sched_yield);
    const struct timespec least = {.tv_nsec = 1};
    return nanosleep(&least, NULL);
}
