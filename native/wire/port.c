// SPDX-License-Identifier: GPL-2.0-or-later
#include "port.h"

#include <stdlib.h>
#include <string.h>

enum { FRAME_BYTES_MIN = 60, FRAME_OVERHEAD_BYTES = 24 };

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t serialization_ns(const struct link *link, uint32_t bytes) {
    if (!link->rate_mbps)
        return 0;
    return (most(bytes, FRAME_BYTES_MIN) + FRAME_OVERHEAD_BYTES) * 8000 / link->rate_mbps;
}

int64_t port_lookahead_ns(const struct link *link) { return link->delay_ns + serialization_ns(link, FRAME_BYTES_MIN); }

int64_t port_transmit(struct port *port, int64_t now_ns, uint32_t bytes) {
    port->line_free_ns = most(port->line_free_ns, now_ns) + serialization_ns(&port->link, bytes);
    return port->line_free_ns + port->link.delay_ns;
}

/* splitmix64 (Steele, Lea, Flood 2014), one step per value: every input bit affects every output bit. */
static uint64_t mixed(uint64_t state, uint64_t value) {
    uint64_t z = (state ^ value) + UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

bool port_loses_frame(const struct port *port, uint64_t seed, const struct header *header, int to) {
    const uint64_t values[] = {header->network, header->source, (uint64_t)to, header->sequence};
    uint64_t drawn = mixed(0, seed);
    for (int i = 0; i < 4; i++)
        drawn = mixed(drawn, values[i]);
    return (int64_t)(drawn % 1000000) < port->link.loss_ppm;
}

/* ---- the switch's table ---- */

void port_learn(struct port *port, const uint8_t *mac, int node) {
    for (int i = 0; i < port->learned_count; i++)
        if (!memcmp(port->learned[i].mac, mac, MAC_BYTES)) {
            port->learned[i].node = node;
            return;
        }
    if (port->learned_count == MACS_MAX || mac[0] & 1)
        return; /* a full table floods, as a switch's does */
    memcpy(port->learned[port->learned_count].mac, mac, MAC_BYTES);
    port->learned[port->learned_count++].node = node;
}

int port_owner(const struct port *port, const uint8_t *mac) {
    if (mac[0] & 1)
        return TO_ALL;
    for (int i = 0; i < port->learned_count; i++)
        if (!memcmp(port->learned[i].mac, mac, MAC_BYTES))
            return port->learned[i].node;
    return TO_ALL;
}

/* ---- receiving ---- */

static bool before(const struct header *a, const struct header *b) {
    if (a->arrival_ns != b->arrival_ns)
        return a->arrival_ns < b->arrival_ns;
    return a->source != b->source ? a->source < b->source : a->sequence < b->sequence;
}

void port_put(struct port *port, const struct header *header, const uint8_t *data) {
    struct frame *frame = malloc(sizeof *frame + header->bytes), **place = &port->inbox;
    if (!frame)
        wire_die("no memory for a frame of %u bytes", header->bytes);
    frame->header = *header;
    memcpy(frame->data, data, header->bytes);
    while (*place && before(&(*place)->header, header))
        place = &(*place)->next;
    frame->next = *place;
    *place = frame;
}

/* Cut-through: the frame's first bit leaves the switch as it arrives, unless other frames are queued. */
static bool pass_switch(struct port *port, struct frame *frame) {
    const int64_t takes_ns = serialization_ns(&port->link, frame->header.bytes);
    const int64_t first_bit_ns = frame->header.arrival_ns - takes_ns;
    const int64_t start_ns = most(first_bit_ns, port->egress_free_ns);
    const int64_t waiting_bytes = (start_ns - first_bit_ns) * port->link.rate_mbps / 8000;
    if (waiting_bytes && waiting_bytes + frame->header.bytes > port->link.queue_bytes)
        return false;
    frame->due_ns = port->egress_free_ns = start_ns + takes_ns;
    return true;
}

int port_settle(struct port *port, int64_t known_ns) {
    int dropped = 0;
    while (port->inbox && port->inbox->header.arrival_ns <= known_ns) {
        struct frame *frame = port->inbox;
        port->inbox = frame->next;
        frame->next = NULL;
        if (!pass_switch(port, frame)) {
            free(frame);
            dropped++;
            continue;
        }
        if (!port->due)
            port->tail = &port->due;
        *port->tail = frame;
        port->tail = &frame->next;
    }
    return dropped;
}

int64_t port_next_ns(const struct port *port) {
    const int64_t due_ns = port->due ? port->due->due_ns : NEVER_NS;
    const int64_t arrival_ns = port->inbox ? port->inbox->header.arrival_ns : NEVER_NS;
    return due_ns < arrival_ns ? due_ns : arrival_ns;
}

struct frame *port_take(struct port *port, int64_t now_ns) {
    struct frame *frame = port->due;
    if (!frame || frame->due_ns > now_ns)
        return NULL;
    if (frame->due_ns < now_ns)
        wire_die("a frame that is due at %lld ns is delivered at %lld ns", (long long)frame->due_ns, (long long)now_ns);
    port->due = frame->next;
    return frame;
}
