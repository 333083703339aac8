// SPDX-License-Identifier: GPL-2.0-or-later
/* Waiting for other nodes: a short spin, then sleep; and the watch for nodes that died, were stopped or hang. */
#include "cluster.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_NS = 100000000, SPINS_A_LOOK = 8, FAILURES_BORNE = 4, WAITS_A_PROBE = 128, PROBE_NS = 100000 };
enum { BLOCK_NS_MOST = 600 }; /* how long before its grant a busy node may have to stop */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *limit) {
    return syscall(SYS_futex, (uint32_t *)word, operation, value, limit, NULL, 0);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static bool ready(const struct member *m) {
    return cluster_granted_ns(m->shared, m->self) >= atomic_load_explicit(&m->me->need_ns, memory_order_acquire);
}

/* ---- waking others ---- */

static void wake(struct member *m, struct node *node) {
    if (!atomic_exchange(&node->sleeping, 0))
        return;
    atomic_fetch_sub(&m->shared->sleepers, 1);
    atomic_store(&node->wake, 1);
    futex(&node->wake, FUTEX_WAKE, 1, NULL);
    m->counts->wakes++;
}

void cluster_wake_ready(struct member *m) {
    atomic_thread_fence(memory_order_seq_cst);
    if (!atomic_load_explicit(&m->shared->sleepers, memory_order_relaxed))
        return;
    for (int i = 0; i < m->nodes; i++) {
        struct node *node = &m->shared->node[i];
        if (i != m->self && node->sleeping && cluster_granted_ns(m->shared, i) >= node->need_ns)
            wake(m, node);
    }
}

/* ---- watching others ---- */

/* Read a process's state and processor time (proc_pid_stat(5), fields 3, 14 and 15); false: there is none. */
static bool process_state(int pid, char *state, int64_t *worked_ns) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const size_t read = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[read] = 0;
    const char *rest = strrchr(text, ')');
    unsigned long long user = 0, kernel = 0;
    if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", state, &user, &kernel) != 3)
        return false;
    *worked_ns = (int64_t)(user + kernel) * (INT64_C(1000000000) / sysconf(_SC_CLK_TCK));
    return true;
}

/* A process that ended is detected even before its parent reaps it. */
static bool ended(struct member *m, int node) {
    if (m->peer_fd[node] < 0)
        m->peer_fd[node] = (int)syscall(SYS_pidfd_open, m->shared->node[node].pid, 0);
    if (m->peer_fd[node] < 0)
        return errno == ESRCH;
    struct pollfd poll_for = {m->peer_fd[node], POLLIN, 0};
    return poll(&poll_for, 1, 0) > 0;
}

/* A loaded host slows every node, so a hang is processor time without progress; only a node that neither works nor
 * progresses is given up after wall-clock time. */
static void watch_peer(struct member *m, int j, struct watch *seen) {
    const struct node *peer = &m->shared->node[j];
    const int pid = peer->pid;
    const int64_t now_ns = wire_host_ns(), promise_ns = peer->promise_ns;
    char state = '?';
    int64_t worked_ns = 0;
    if (pid && ended(m, j)) {
        if (m->shared->end_reason[j].is_set)
            wire_die_after(&m->shared->end_reason[j]);
        if (!peer->has_left)
            wire_die("node %d (process %d) ended at %.6f virtual s", j, pid, (double)promise_ns / 1e9);
        return;
    }
    if (pid && !process_state(pid, &state, &worked_ns))
        return;
    seen->stopped = state == 'T' ? seen->stopped + 1 : 0;
    if (seen->stopped > 2)
        wire_die("node %d (process %d) was stopped by a signal", j, pid);
    if (!seen->since_ns || promise_ns != seen->promise_ns)
        *seen = (struct watch){now_ns, promise_ns, worked_ns, worked_ns, seen->stopped};
    if (worked_ns - seen->worked_ns > m->patience_ns)
        wire_die("node %d (process %d) hangs: %.0f s of processor time without progress at %.6f virtual s", j, pid,
                 (double)(worked_ns - seen->worked_ns) / 1e9, (double)promise_ns / 1e9);
    if (worked_ns != seen->latest_ns) {
        seen->since_ns = now_ns;
        seen->latest_ns = worked_ns;
    }
    if (now_ns - seen->since_ns > 10 * m->patience_ns)
        wire_die(pid ? "node %d (process %d) has used no processor time and made no progress for %.0f s"
                     : "node %d (process %d) has not joined for %.0f s",
                 j, pid, (double)(now_ns - seen->since_ns) / 1e9);
}

void cluster_watch(struct member *m, struct watch *seen, int64_t need_ns) {
    for (int j = 0; j < m->nodes; j++) { /* an idle node may be far ahead and quiet */
        const struct node *peer = &m->shared->node[j];
        if (j != m->self && !peer->has_left && peer->promise_ns + m->lookahead_ns < need_ns)
            watch_peer(m, j, &seen[j]);
        else
            seen[j].since_ns = 0;
    }
}

static bool anything_to_come(const struct member *m) {
    for (int j = 0; j < m->nodes; j++)
        if (m->shared->node[j].promise_ns < NEVER_NS)
            return true;
    return m->me->mail != m->mail_seen;
}

/* ---- waiting ---- */

static void sleep_briefly(struct member *m, bool (*over)(const struct member *)) {
    const struct timespec look = {0, LOOK_NS};
    atomic_store(&m->me->wake, 0);
    atomic_fetch_add(&m->shared->sleepers, 1);
    atomic_store(&m->me->sleeping, 1);
    if (!over(m)) {
        m->counts->sleeps++;
        futex(&m->me->wake, FUTEX_WAIT, 0, &look);
    }
    if (atomic_exchange(&m->me->sleeping, 0))
        atomic_fetch_sub(&m->shared->sleepers, 1);
}

static bool sleep_until_ready(struct member *m) {
    struct watch seen[NODES_MAX] = {{0}};
    int64_t looked_ns = wire_host_ns();
    while (!ready(m)) {
        sleep_briefly(m, ready);
        cluster_drain(m);
        if (!m->running())
            return false;
        if (wire_host_ns() - looked_ns >= LOOK_NS && !ready(m)) {
            cluster_watch(m, seen, m->me->need_ns);
            if (!anything_to_come(m))
                wire_die("every machine is idle with no timer and no frame to wait for");
            looked_ns = wire_host_ns();
        }
    }
    return true;
}

/* Spinning pays off while the other node has its own core: then most waits last a few us, and a sleep would last ten
 * times as long for both. Where it has none, spinning only keeps the other from running. So spin while that succeeds,
 * and else retry now and then, long enough for a sleeping node to wake up. */
static bool spin_until_ready(struct member *m) {
    const bool doubtful = m->failures >= FAILURES_BORNE;
    if (!m->spin_ns || (doubtful && ++m->failures % WAITS_A_PROBE))
        return false;
    const int64_t until_ns = wire_host_ns() + (doubtful ? PROBE_NS : m->spin_ns);
    do {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (ready(m)) {
                m->failures = 0;
                return true;
            }
            __builtin_ia32_pause();
        }
    } while (wire_host_ns() < until_ns);
    m->failures++;
    return false;
}

/* Wake a busy node that sleeps only when the others have caught up with it: woken at once it could run for one step,
 * and where nodes share a core each step would cost two switches. Then the node that is furthest behind never sleeps.
 * Of two, let the other get well ahead. It can, since it may run until a block before this one's promise and the
 * lookahead; with three, two that sleep like that could wait for each other. */
static void sleep_for_long(struct member *m) {
    const int64_t reachable_ns = m->lookahead_ns - BLOCK_NS_MOST;
    const int64_t ahead_ns = m->nodes == 2 ? least(reachable_ns, m->lookahead_ns / 2) : 0;
    atomic_store_explicit(&m->me->need_ns, m->me->promise_ns + m->lookahead_ns + ahead_ns, memory_order_release);
}

static bool wait_until_ready(struct member *m, bool works) {
    if (ready(m))
        return true;
    const int64_t since_ns = wire_host_ns();
    m->counts->waits++;
    bool granted = spin_until_ready(m);
    if (!granted) {
        if (works)
            sleep_for_long(m);
        granted = sleep_until_ready(m);
    }
    m->counts->waited_ns += wire_host_ns() - since_ns;
    return granted;
}

bool cluster_wait_idle(struct member *m) { return wait_until_ready(m, false); }

bool cluster_wait(struct member *m, int64_t need_ns) {
    atomic_store_explicit(&m->me->need_ns, need_ns, memory_order_release);
    return wait_until_ready(m, true);
}

bool cluster_wait_for_room(struct member *m, int to, struct watch *seen) {
    const struct timespec moment = {0, 1000000};
    cluster_drain(m); /* the other may be waiting for room, too */
    wake(m, &m->shared->node[to]);
    nanosleep(&moment, NULL);
    watch_peer(m, to, seen);
    return m->running();
}
