// SPDX-License-Identifier: GPL-2.0-or-later
/* The memory that all machines of a cluster share, and the protocol over it. Nothing here depends on QEMU.
 *
 * Times are cluster time: nanoseconds since the machines began to run, on each machine's virtual clock.
 *
 *   X_i  the promise of node i: it sends nothing before X_i, unless it learns of a frame that it does not know yet.
 *        Busy: its present time. Idle: its next event. A node that sends i a frame lowers X_i to the frame's arrival.
 *   d    the lookahead: a frame that leaves at t arrives at t + d or later.
 *   G_i  the grant, min(min over j of X_j + d, X_i + 2d), for j other than i: every frame that i does not know yet
 *        arrives at G_i or later.
 *
 * A node is at instant t only when G_i > t, so all that arrives at t or earlier is known and delivered in one order.
 * Some node can always proceed: the one with the smallest X has G_i >= X_i + d.
 */
#ifndef WIRE_CLUSTER_H
#define WIRE_CLUSTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "report.h"

#ifndef WIRE_RING_BYTES /* tests make it smaller */
#define WIRE_RING_BYTES (1 << 18)
#endif
enum { NODES_MAX = 16, RING_BYTES = WIRE_RING_BYTES, FRAME_BYTES_MAX = 1 << 17 };
#define NEVER_NS (INT64_MAX / 4)

struct node {
    _Alignas(128) _Atomic int64_t promise_ns; /* X_i */
    _Alignas(128) _Atomic uint32_t mail;      /* frames put into its rings so far */
    _Atomic int64_t need_ns;                  /* the grant that it waits for */
    _Atomic uint32_t sleeping;                /* 1 while no other node is about to wake it */
    _Atomic uint32_t wake;                    /* the word that it sleeps on */
    _Atomic uint32_t has_left;
    _Atomic int32_t pid;
};

/* Frames of one ordered pair of nodes; written under the lock, read by one thread. */
struct ring {
    _Alignas(128) _Atomic uint64_t written;
    _Alignas(128) _Atomic uint64_t read;
    uint8_t data[RING_BYTES];
};

/* Observers of the nodes' progress, such as wire.py, read magic, nodes and promise_ns. */
struct cluster {
    uint32_t magic, nodes;
    int64_t lookahead_ns;
    pthread_mutex_t lock;
    _Alignas(128) _Atomic uint32_t lowerings; /* odd while a promise is being lowered */
    _Atomic uint32_t sleepers;
    struct node node[NODES_MAX];
    struct end_reason end_reason[NODES_MAX];
    struct ring ring[]; /* [from * nodes + to] */
};

/* What goes with each frame. `arrival_ns` is at the far end of the sender's line. */
struct header {
    int64_t arrival_ns;
    uint32_t bytes, sequence;
    uint32_t network, source;
};

/* What was observed of an awaited node: its time, its processor time then and at the last check, and since when neither
 * changed. */
struct watch {
    int64_t since_ns, promise_ns, worked_ns, latest_ns;
    int stopped;
};

/* One node's view of the cluster. `deliver` takes what arrives, in no particular order between sources. */
struct member {
    struct cluster *shared;
    struct node *me;
    int self, nodes;
    int64_t lookahead_ns;
    uint32_t mail_seen;
    int peer_fd[NODES_MAX];
    uint32_t failures; /* of spinning, in a row */
    int64_t spin_ns, patience_ns;
    void (*deliver)(void *context, const struct header *header, const uint8_t *data);
    bool (*running)(void);
    void *context;
    struct counts *counts;
};

/* Map `path` and join as node `self` of `nodes`; the last one to join removes the path. Ends the process when the
 * memory is unavailable or belongs to another cluster. */
void cluster_join(struct member *member, const char *path, int self, int nodes, int64_t lookahead_ns);
void cluster_leave(struct member *member);

int64_t cluster_granted_ns(const struct cluster *shared, int node);
/* Promise to send nothing before `from_ns`, and wake the nodes that waited for that. */
void cluster_promise(struct member *member, int64_t from_ns);
/* Promise as an idle node whose own next event is at `event_ns`; return that or an earlier arrival. `earliest_ns`
 * returns the earliest frame that has been delivered and not handled. */
int64_t cluster_promise_idle(struct member *member, int64_t event_ns, int64_t (*earliest_ns)(void *context));
/* Send a frame to node `to`; `now_ns` is when it leaves. */
void cluster_send(struct member *member, int to, int64_t now_ns, const struct header *header, const uint8_t *data);
/* Deliver what has arrived. */
void cluster_drain(struct member *member);

/* Wait until the grant is what is needed: `need_ns`, or for an idle node what it promised, or an arrival before that.
 * False: the machine is being stopped. */
bool cluster_wait(struct member *member, int64_t need_ns);
bool cluster_wait_idle(struct member *member);
/* A ring to `to` is full: wait a moment for it to be read. False: the machine is being stopped. */
bool cluster_wait_for_room(struct member *member, int to, struct watch *seen);
/* Check the nodes that hold this one back from `need_ns`: end the process when one died, was stopped or hangs. `seen`
 * has an entry per node; the caller keeps it for the length of one wait. */
void cluster_watch(struct member *member, struct watch *seen, int64_t need_ns);
void cluster_wake_ready(struct member *member);

#endif
