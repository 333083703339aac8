// SPDX-License-Identifier: GPL-2.0-or-later
#include "cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x77697232 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The lock is held for less than a microsecond; a holder that was stopped by a signal would keep it for ever. */
static void lock(struct member *m) {
    struct watch seen[NODES_MAX] = {{0}};
    int error = pthread_mutex_trylock(&m->shared->lock);
    while (error == EBUSY || error == ETIMEDOUT) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        error = pthread_mutex_timedlock(&m->shared->lock, &until);
        if (error == ETIMEDOUT)
            cluster_watch(m, seen, NEVER_NS);
    }
    if (error == EOWNERDEAD)
        wire_die("a node died while it held the cluster's lock");
    if (error)
        wire_die("the cluster's lock: %s", strerror(error));
}

static void unlock(struct member *m) { pthread_mutex_unlock(&m->shared->lock); }

/* ---- joining and leaving ---- */

static size_t cluster_bytes(int nodes) {
    return sizeof(struct cluster) + sizeof(struct ring) * (size_t)(nodes * nodes);
}

static void initialize(struct cluster *shared, int nodes, int64_t lookahead_ns) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&shared->lock, &kind);
    pthread_mutexattr_destroy(&kind);
    shared->nodes = (uint32_t)nodes;
    shared->lookahead_ns = lookahead_ns;
    shared->magic = MAGIC;
}

static bool all_joined(const struct cluster *shared) {
    for (uint32_t i = 0; i < shared->nodes; i++)
        if (!shared->node[i].pid)
            return false;
    return true;
}

/* Map the memory, reserved in full: a page missing later would end the process by SIGBUS. */
static struct cluster *map_shared(const char *path, int fd, size_t bytes) {
    const int error = posix_fallocate(fd, 0, (off_t)bytes);
    if (error)
        wire_die("no room for %zu KiB of shared memory at %s: %s", bytes >> 10, path, strerror(error));
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        wire_die("cannot map %s: %s", path, strerror(errno));
    return mapped;
}

void cluster_join(struct member *m, const char *path, int self, int nodes, int64_t lookahead_ns) {
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX))
        wire_die("cannot open shared memory at %s: %s", path, strerror(errno));
    struct cluster *shared = map_shared(path, fd, cluster_bytes(nodes));
    if (!shared->magic)
        initialize(shared, nodes, lookahead_ns);
    if (shared->magic != MAGIC || shared->nodes != (uint32_t)nodes || shared->lookahead_ns != lookahead_ns)
        wire_die("%s belongs to another cluster (it has %u nodes, lookahead %lld ns)", path, shared->nodes,
                 (long long)shared->lookahead_ns);
    if (shared->node[self].pid)
        wire_die("node %d has already joined %s, as process %d", self, path, shared->node[self].pid);
    shared->node[self].pid = getpid();
    if (all_joined(shared) && unlink(path) && errno != ENOENT && errno != EPERM && errno != EACCES)
        wire_die("cannot remove %s: %s", path, strerror(errno));
    flock(fd, LOCK_UN);
    close(fd);
    wire_set_reason_place(&shared->end_reason[self]);
    m->shared = shared;
    m->me = &shared->node[self];
    m->self = self;
    m->nodes = nodes;
    m->lookahead_ns = lookahead_ns;
    for (int i = 0; i < NODES_MAX; i++)
        m->peer_fd[i] = -1;
}

/* Under the lock: a sender that had seen this node would lower its promise, and no node would raise it again. */
void cluster_leave(struct member *m) {
    lock(m);
    m->me->has_left = 1;
    m->me->promise_ns = NEVER_NS;
    unlock(m);
    cluster_wake_ready(m);
}

/* ---- promises and grants ---- */

/* A sum over promises that are read one by one is sound: between two lowerings promises only grow. */
int64_t cluster_granted_ns(const struct cluster *shared, int node) {
    const int64_t d = shared->lookahead_ns;
    for (;;) {
        const uint32_t before = atomic_load_explicit(&shared->lowerings, memory_order_acquire);
        int64_t granted = NEVER_NS + 2 * d;
        for (int j = 0; j < (int)shared->nodes; j++) {
            const int64_t x = atomic_load_explicit(&shared->node[j].promise_ns, memory_order_acquire);
            granted = least(granted, j == node ? x + 2 * d : x + d);
        }
        atomic_thread_fence(memory_order_acquire);
        if (!(before & 1) && before == atomic_load_explicit(&shared->lowerings, memory_order_relaxed))
            return granted;
    }
}

void cluster_promise(struct member *m, int64_t from_ns) {
    atomic_store_explicit(&m->me->promise_ns, from_ns, memory_order_release);
    cluster_wake_ready(m);
}

int64_t cluster_promise_idle(struct member *m, int64_t event_ns, int64_t (*earliest_ns)(void *)) {
    lock(m);
    cluster_drain(m);
    const int64_t next_ns = least(event_ns, earliest_ns(m->context));
    atomic_store(&m->me->need_ns, next_ns + 1);
    atomic_store_explicit(&m->me->promise_ns, next_ns, memory_order_release);
    unlock(m);
    cluster_wake_ready(m);
    return next_ns;
}

/* ---- frames ---- */

static void copy_in(struct ring *ring, uint64_t at, const void *from, size_t bytes) {
    const size_t start = at % RING_BYTES, part = bytes < RING_BYTES - start ? bytes : RING_BYTES - start;
    memcpy(ring->data + start, from, part);
    memcpy(ring->data, (const uint8_t *)from + part, bytes - part);
}

static void copy_out(const struct ring *ring, uint64_t at, void *to, size_t bytes) {
    const size_t start = at % RING_BYTES, part = bytes < RING_BYTES - start ? bytes : RING_BYTES - start;
    memcpy(to, ring->data + start, part);
    memcpy((uint8_t *)to + part, ring->data, bytes - part);
}

static bool fits(const struct ring *ring, size_t bytes) { return RING_BYTES - (ring->written - ring->read) >= bytes; }

/* Under the lock: an idle node may send from the arrival of a frame on. */
static void lower_promise(struct member *m, struct node *peer, int64_t arrival_ns) {
    if (arrival_ns >= peer->promise_ns)
        return;
    m->shared->lowerings++;
    peer->promise_ns = arrival_ns;
    if (arrival_ns + 1 < peer->need_ns)
        peer->need_ns = arrival_ns + 1;
    m->shared->lowerings++;
}

void cluster_send(struct member *m, int to, int64_t now_ns, const struct header *header, const uint8_t *data) {
    struct node *peer = &m->shared->node[to];
    struct ring *ring = &m->shared->ring[m->self * m->nodes + to];
    const size_t bytes = sizeof *header + header->bytes;
    if (now_ns < m->me->promise_ns)
        wire_die("a frame leaves at %lld ns, before the promised %lld ns", (long long)now_ns,
                 (long long)m->me->promise_ns);
    if (header->arrival_ns < now_ns + m->lookahead_ns)
        wire_die("a frame travels for %lld ns, less than the lookahead", (long long)(header->arrival_ns - now_ns));
    struct watch seen = {0};
    while (!fits(ring, bytes) && !peer->has_left)
        if (!cluster_wait_for_room(m, to, &seen))
            return;
    lock(m);
    if (peer->has_left) {
        unlock(m);
        return;
    }
    const uint64_t at = ring->written;
    copy_in(ring, at, header, sizeof *header);
    copy_in(ring, at + sizeof *header, data, header->bytes);
    atomic_store_explicit(&ring->written, at + bytes, memory_order_release);
    atomic_fetch_add_explicit(&peer->mail, 1, memory_order_release);
    lower_promise(m, peer, header->arrival_ns);
    unlock(m);
    cluster_wake_ready(m);
}

static void drain_ring(struct member *m, struct ring *ring) {
    static uint8_t data[FRAME_BYTES_MAX];
    uint64_t at = ring->read;
    const uint64_t end = atomic_load_explicit(&ring->written, memory_order_acquire);
    while (at != end) {
        struct header header;
        copy_out(ring, at, &header, sizeof header);
        copy_out(ring, at + sizeof header, data, header.bytes);
        at += sizeof header + header.bytes;
        m->deliver(m->context, &header, data);
    }
    atomic_store_explicit(&ring->read, at, memory_order_release);
}

void cluster_drain(struct member *m) {
    const uint32_t mail = atomic_load_explicit(&m->me->mail, memory_order_acquire);
    if (mail == m->mail_seen)
        return;
    m->mail_seen = mail;
    for (int j = 0; j < m->nodes; j++)
        if (j != m->self)
            drain_ring(m, &m->shared->ring[j * m->nodes + m->self]);
}
