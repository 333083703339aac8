// SPDX-License-Identifier: GPL-2.0-or-later
/* One port of a machine on one network: its line, and its place on a switch. Pure functions of time.
 *
 * A frame that leaves at t waits until the line is free, takes its serialization time and then the line's delay. At the
 * switch it passes to the receiver's line without being stored, or waits there, in a queue of limited length, behind
 * frames of other senders. Bytes on a line: the frame, at least 60, and 24 of preamble, check sum and gap.
 */
#ifndef WIRE_PORT_H
#define WIRE_PORT_H

#include <stdbool.h>
#include <stdint.h>

#include "cluster.h"

enum { NETWORKS = 2, MACS_MAX = 1024, MAC_BYTES = 6, TO_ALL = -1 };

struct link {
    int64_t delay_ns;
    int64_t rate_mbps;   /* 0: frames take no time on the line */
    int64_t queue_bytes; /* how much may wait at a port of the switch */
    int64_t loss_ppm;    /* of frames, each receiver for itself */
};

struct frame {
    struct frame *next;
    struct header header;
    int64_t due_ns; /* when the machine gets it */
    uint8_t data[];
};

struct port {
    struct link link;
    int64_t line_free_ns, egress_free_ns;
    uint32_t sequence;
    struct frame *inbox;       /* in order of (arrival, source, sequence); more may come in between */
    struct frame *due, **tail; /* in order of due_ns; complete */
    struct {
        uint8_t mac[MAC_BYTES];
        int node;
    } learned[MACS_MAX];
    int learned_count;
};

/* The shortest time that a frame can take. */
int64_t port_lookahead_ns(const struct link *link);
/* Send a frame of `bytes` at `now_ns`; return when it is at the far end of the line. */
int64_t port_transmit(struct port *port, int64_t now_ns, uint32_t bytes);
/* Return whether the seed drops this frame on its way to node `to`. */
bool port_loses_frame(const struct port *port, uint64_t seed, const struct header *header, int to);

void port_learn(struct port *port, const uint8_t *mac, int node);
/* Return the node that an address was learned at, or TO_ALL. */
int port_owner(const struct port *port, const uint8_t *mac);

void port_put(struct port *port, const struct header *header, const uint8_t *data);
/* Pass all that arrived by `known_ns` through the switch; return how many its queue had no room for. */
int port_settle(struct port *port, int64_t known_ns);
/* When the first frame is due, or may be due at the earliest; NEVER_NS without one. */
int64_t port_next_ns(const struct port *port);
/* Take the first frame out, when it is due at `now_ns`; the caller frees it. */
struct frame *port_take(struct port *port, int64_t now_ns);

#endif
