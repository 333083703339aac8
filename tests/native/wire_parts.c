// SPDX-License-Identifier: GPL-2.0-or-later
/* Parts of the wire, each alone.
 *
 * wire_parts leave SHARED_MEMORY (linked with --wrap=pthread_mutex_trylock): two nodes in one process. Node 1 leaves
 * just as node 0, which has seen it there, takes the lock to send to it. Prints whether it left, and whether it
 * promises that it never sends again: no node is left to raise a lower promise.
 *
 * wire_parts watch SHARED_MEMORY (linked with --wrap=wire_host_ns): node 0 waits for node 1, the same process, which
 * works a little in each nine seconds of a clock that jumps, and then no more. Prints a line before the last.
 *
 * wire_parts chain SHARED_MEMORY: of three nodes, 2 ends with a reason of its own, then 1 because 2 did, then 0 because
 * 1 did; each reports its reason.
 *
 * wire_parts order SOURCE.SEQUENCE...: frames that arrive in the same nanosecond come in this order. Prints the order
 * in which the machine gets them.
 *
 * wire_parts notices LINKED: the clock's lists of timers are notified, before and after notices are withheld from lists
 * that have none. LINKED 0: an unknown QEMU, whose lists are not linked. Prints who was told, and how many were not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cluster.h"
#include "notices.h"
#include "port.h"
#include "qemu.h"

enum { LOOKAHEAD_NS = 2000 };

static struct counts counts;
static struct member member[2];
static bool is_leaving;

int __real_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex) {
    if (!is_leaving) {
        is_leaving = true;
        cluster_leave(&member[1]);
    }
    return __real_pthread_mutex_trylock(mutex);
}

static void leave(const char *path) {
    for (int i = 0; i < 2; i++) {
        member[i].counts = &counts;
        cluster_join(&member[i], path, i, 2, LOOKAHEAD_NS);
    }
    const struct header header = {.arrival_ns = LOOKAHEAD_NS, .bytes = 4};
    cluster_send(&member[0], 1, 0, &header, (const uint8_t *)"data");
    printf("%d %d\n", is_leaving, member[1].me->promise_ns == NEVER_NS);
}

static int64_t host_ns = 1;

int64_t __wrap_wire_host_ns(void) { return host_ns; }

static int64_t own_processor_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void watch(const char *path) {
    struct watch seen[2] = {0};
    for (int i = 0; i < 2; i++) {
        member[i].counts = &counts;
        cluster_join(&member[i], path, i, 2, LOOKAHEAD_NS);
    }
    member[0].patience_ns = INT64_C(1000000000);
    for (int i = 0; i < 5; i++, host_ns += INT64_C(9000000000)) {
        cluster_watch(&member[0], seen, INT64_MAX);
        for (const int64_t began_ns = own_processor_ns(); own_processor_ns() - began_ns < 40000000;)
            ;
    }
    printf("it works\n");
    fflush(stdout);
    for (int i = 0; i < 9; i++, host_ns += INT64_C(11000000000)) /* one look may fall on a tick of processor time */
        cluster_watch(&member[0], seen, INT64_MAX);
}

static void end_as_link(const char *path, int node) {
    struct watch seen[3] = {{0}};
    struct member me = {.counts = &counts, .patience_ns = INT64_MAX / 100};
    wire_set_node(node);
    cluster_join(&me, path, node, 3, LOOKAHEAD_NS);
    if (node == 2)
        wire_die("the reason of all");
    cluster_watch(&me, seen, INT64_MAX);
}

static void chain(const char *path) {
    for (int node = 2; node >= 0; node--) {
        const pid_t child = fork();
        if (!child)
            end_as_link(path, node);
        siginfo_t ended;
        waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT); /* its number must stay its own */
        printf("%d\n", ended.si_status);
    }
}

static void order(int count, char **frames) {
    struct port port = {.link = {.delay_ns = LOOKAHEAD_NS}};
    for (int i = 0; i < count; i++) {
        char *sequence = strchr(frames[i], '.');
        const struct header header = {
            .arrival_ns = LOOKAHEAD_NS, .source = (uint32_t)atoi(frames[i]), .sequence = (uint32_t)atoi(sequence + 1)};
        port_put(&port, &header, NULL);
    }
    port_settle(&port, LOOKAHEAD_NS);
    for (struct frame *frame; (frame = port_take(&port, LOOKAHEAD_NS)); free(frame))
        printf("%u.%u ", frame->header.source, frame->header.sequence);
}

/* ---- a clock's lists of timers, as util/qemu-timer.c has them ---- */

struct list {
    void *clock, *lock[6], *timers;
    struct list *next, **before;
    notify_call *call;
    void *data;
};

static struct list *lists;
static bool are_linked = true;

void **timerlist_new(int clock, notify_call *call, void *data) {
    struct list *made = calloc(1, sizeof *made);
    made->call = call;
    made->data = data;
    if (are_linked) {
        made->next = lists;
        lists = made;
    }
    return (void **)made;
}

void timerlist_free(void **list) {
    struct list **place = &lists;
    while (*place && *place != (struct list *)list)
        place = &(*place)->next;
    if (*place)
        *place = (*place)->next;
    free(list);
}

bool timerlist_has_timers(void **list) { return ((struct list *)list)->timers; }

static void tell(void *data, int clock) { printf("%s%d ", (const char *)data, clock); }
void qemu_timer_notify_cb(void *data, int clock) { tell(data, clock); }

static void tell_all(void) {
    for (struct list *list = lists; list; list = list->next)
        list->call(list->data, CLOCK_VIRTUAL);
    putchar('/');
    putchar(' ');
}

static void notices(bool linked) {
    static uint64_t withheld;
    timerlist_new(CLOCK_VIRTUAL, qemu_timer_notify_cb, "cpu");
    struct list *main_loop = (struct list *)timerlist_new(CLOCK_VIRTUAL, tell, "main");
    timerlist_new(CLOCK_VIRTUAL, tell, "monitor");
    tell_all();
    are_linked = linked;
    notices_withhold(&withheld);
    tell_all();
    main_loop->timers = main_loop;
    tell_all();
    printf("%d", (int)withheld);
}

int main(int count, char **arguments) {
    if (count < 3)
        return 2;
    if (!strcmp(arguments[1], "leave"))
        leave(arguments[2]);
    else if (!strcmp(arguments[1], "watch"))
        watch(arguments[2]);
    else if (!strcmp(arguments[1], "chain"))
        chain(arguments[2]);
    else if (!strcmp(arguments[1], "notices"))
        notices(atoi(arguments[2]));
    else
        order(count - 2, arguments + 2);
    return 0;
}
