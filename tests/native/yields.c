/* Print how often this process would sleep in fifty calls of sched_yield, each after looks at an epoll, as an MPI's
 * progress has them: in nanosleep, and in ppoll for at most so many ns. WATCHES: `none` looks at no epoll; `quiet` finds
 * nothing there, `ready` something each time, `once` only the first time; with `first` the
 * epoll is the process's first file and quiet. Linked with native/common/yield.c. */
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static int naps, waits;
static long longest_ns;

int nanosleep(const struct timespec *wanted, struct timespec *left) {
    (void)wanted, (void)left;
    naps++;
    return 0;
}

int ppoll(struct pollfd *files, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
    (void)files, (void)mask;
    waits += count == 1;
    longest_ns = timeout->tv_nsec;
    return 0;
}

int main(int argc, char *argv[]) {
    const char *watches = argc == 2 ? argv[1] : "none";
    if (strcmp(watches, "first") == 0)
        close(STDIN_FILENO);
    const int epoll = strcmp(watches, "none") == 0 ? -1 : epoll_create1(0);
    char byte = 0;
    int ends[2];
    struct epoll_event readable = {.events = EPOLLIN}, seen;
    if (pipe(ends) != 0 || (epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &readable) != 0))
        return 1;
    if (strcmp(watches, "quiet") != 0 && strcmp(watches, "first") != 0 && write(ends[1], &byte, 1) != 1)
        return 1;
    for (int i = 0; i < 50; i++) {
        const int count = epoll < 0 ? 0 : epoll_wait(epoll, &seen, 1, 0);
        if (count > 0 && strcmp(watches, "once") == 0 && (read(ends[0], &byte, 1) != 1 || epoll_wait(epoll, &seen, 1, 0)))
            return 1;
        if (sched_yield() != 0)
            return 1;
    }
    printf("%d %d %ld\n", naps, waits, longest_ns);
    return 0;
}
