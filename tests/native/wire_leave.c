// SPDX-License-Identifier: GPL-2.0-or-later
/* Two nodes in one process. Node 1 leaves just as node 0, which has seen it there, takes the lock to send to it. Prints
 * the promise of node 1, which must be that it never sends again: nobody is left to raise a lower one.
 *
 * usage: wire_leave SHARED_MEMORY   (linked with --wrap=pthread_mutex_trylock) */
#include <stdio.h>

#include "cluster.h"

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

int main(int count, char **arguments) {
    if (count < 2)
        return 2;
    for (int i = 0; i < 2; i++) {
        member[i].counts = &counts;
        cluster_join(&member[i], arguments[1], i, 2, LOOKAHEAD_NS);
    }
    const struct header header = {.arrival_ns = LOOKAHEAD_NS, .bytes = 4};
    cluster_send(&member[0], 1, 0, &header, (const uint8_t *)"data");
    printf("%d %d\n", is_leaving, member[1].me->promise_ns == NEVER_NS);
    return 0;
}
