/* Waiting that frees the processor, for an MPI that can only yield.
 *
 * Open MPI 4 has no sleeping wait: set to yield when idle, it calls sched_yield(), which keeps the processor busy. With
 * NEARMETAL_YIELD=sleep in its environment this program intercepts that call and sleeps as briefly as the kernel
 * allows, as Open MPI 5 does with `threads_pthreads_yield_strategy nanosleep`
 * (opal/mca/threads/pthreads/threads_pthreads_yield.c). With NEARMETAL_YIELD=events it sleeps until something arrives
 * on one of the MPI's connections, so that an interrupt wakes it, as MPIs do that block in the driver of their card.
 * Without the variable it is the plain system call.
 *
 * The definitions take effect inside shared libraries because the program exports them (-rdynamic).
 */
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static enum { YIELD, SLEEP, EVENTS } asked;

static const struct timespec least = {.tv_nsec = 1};

/* No event announces what a rank of the same node writes to shared memory: where there is one, look as often as `sleep`
 * does. Elsewhere a millisecond covers what arrives neither on a connection nor through memory. */
static struct timespec longest = {.tv_nsec = 1};

/* The epoll that this thread's MPI last looked at without waiting, and whether it found something there since its last
 * yield. The MPI also yields after polls that found what it waits for (it polls until one finds nothing), and must not
 * wait for more then. */
static _Thread_local int watched = -1;
static _Thread_local bool found;

__attribute__((constructor)) static void read_environment(void) {
    const char *word = getenv("NEARMETAL_YIELD"), *ranks_here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (word && strcmp(word, "sleep") == 0)
        asked = SLEEP;
    if (word && strcmp(word, "events") == 0)
        asked = EVENTS;
    if (ranks_here && strcmp(ranks_here, "1") == 0)
        longest.tv_nsec = 1000000;
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms) {
    const int count = (int)syscall(SYS_epoll_pwait, epoll, events, most, timeout_ms, NULL, 0);
    if (timeout_ms == 0) {
        watched = epoll;
        found = found || count > 0;
    }
    return count;
}

static void wait_for_event(void) {
    struct pollfd connections = {.fd = watched, .events = POLLIN};
    if (!found)
        ppoll(&connections, 1, &longest, NULL); /* whatever ends it, the MPI polls next */
    found = false;
}

int sched_yield(void) {
    if (asked == YIELD)
        return (int)syscall(SYS_sched_yield);
    if (asked == SLEEP || watched < 0)
        return nanosleep(&least, NULL);
    wait_for_event();
    return 0;
}
