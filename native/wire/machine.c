// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAC_AT = 6, HEADER_BYTES = 14, TURNS_MOST = 100000 };

struct machine machine = {.began_ns = -1};

static struct timer arrival;
static int64_t armed_ns = NEVER_NS;
static NetClientState *client[NETWORKS];
static FILE *trace;

/* ---- out ---- */

static void send_to(int to, int64_t now_ns, const struct header *header, const uint8_t *data) {
    if (port_loses_frame(&machine.port[header->network], machine.options.seed, header, to)) {
        machine.counts.lost++;
        return;
    }
    cluster_send(&machine.member, to, now_ns, header, data);
}

/* The machine sends a frame, now. */
static void transmit(int network, const uint8_t *data, size_t bytes) {
    struct port *port = &machine.port[network];
    const int64_t now_ns = machine_now_ns();
    port_learn(port, data + MAC_AT, machine.options.node);
    const int owner = port_owner(port, data);
    if (owner == machine.options.node)
        return;
    const struct header header = {port_transmit(port, now_ns, (uint32_t)bytes), (uint32_t)bytes, port->sequence++,
                                  (uint32_t)network, (uint32_t)machine.options.node};
    machine.counts.sent++;
    machine.counts.sent_bytes += bytes;
    if (trace)
        fprintf(trace, "tx %" PRId64 " %d %zu\n", now_ns, network, bytes);
    for (int to = 0; to < machine.options.nodes; to++)
        if (to != machine.options.node && (owner == TO_ALL || owner == to))
            send_to(to, now_ns, &header, data);
}

static ssize_t from_network(NetClientState *from, const uint8_t *data, size_t bytes) {
    if (bytes > FRAME_BYTES_MAX)
        wire_die("a frame of %zu bytes is longer than the wire allows", bytes);
    if (machine.began_ns >= 0 && bytes >= HEADER_BYTES)
        transmit(from == client[0] ? 0 : 1, data, bytes);
    return (ssize_t)bytes;
}

/* ---- in ---- */

static void put_frame(void *context, const struct header *header, const uint8_t *data) {
    struct machine *m = context;
    if (header->arrival_ns <= m->known_ns)
        wire_die("a frame that arrives at %lld ns became known only when all until %lld ns should have been",
                 (long long)header->arrival_ns, (long long)m->known_ns);
    port_put(&m->port[header->network], header, data);
}

int64_t machine_next_frame_ns(void *unused) {
    (void)unused;
    const int64_t first = port_next_ns(&machine.port[0]), second = port_next_ns(&machine.port[1]);
    return first < second ? first : second;
}

int64_t machine_set_known(int64_t known_ns) {
    if (known_ns < machine.known_ns)
        wire_die("a grant of %lld ns follows one of %lld ns", (long long)known_ns, (long long)machine.known_ns);
    machine.known_ns = known_ns;
    int64_t due_ns = NEVER_NS;
    for (int i = 0; i < NETWORKS; i++) {
        struct port *port = &machine.port[i];
        if (port->inbox)
            machine.counts.dropped += (uint64_t)port_settle(port, known_ns);
        if (port->due && port->due->due_ns < due_ns)
            due_ns = port->due->due_ns;
    }
    if (due_ns <= known_ns && due_ns != armed_ns)
        timer_mod_ns(&arrival, (armed_ns = due_ns) + machine.began_ns);
    return due_ns;
}

static void deliver(int network, struct frame *frame) {
    port_learn(&machine.port[network], frame->data + MAC_AT, (int)frame->header.source);
    machine.counts.received++;
    if (trace)
        fprintf(trace, "rx %" PRId64 " %d %u %u %u\n", frame->due_ns, network, frame->header.source,
                frame->header.sequence, frame->header.bytes);
    qemu_send_packet(client[network], frame->data, (int)frame->header.bytes);
    free(frame);
}

/* Frames are due now. The machine's own timers of the same instant go first, so that it does not matter which were set
 * first: that depends on when the host delivered the frame. */
static void on_arrival(void *unused) {
    (void)unused;
    static int turns;
    const int64_t now_ns = machine_now_ns();
    if (qemu_clock_deadline_ns_all(CLOCK_VIRTUAL, NOT_EXTERNAL) == 0) {
        if (++turns > TURNS_MOST)
            wire_die("timers at %lld ns do not come to an end", (long long)now_ns);
        timer_mod_ns(&arrival, now_ns + machine.began_ns);
        return;
    }
    turns = 0;
    armed_ns = NEVER_NS;
    for (int i = 0; i < NETWORKS; i++)
        for (struct frame *frame; (frame = port_take(&machine.port[i], now_ns));)
            deliver(i, frame);
    machine_set_known(machine.known_ns);
}

/* ---- beginning and end ---- */

void machine_plug_in(void) {
    static struct net_client_info info = {.type = 0, .size = 1 << 16, .receive = from_network};
    static const char *names[NETWORKS] = {"wire0", "wire1"};
    for (int i = 0; i < NETWORKS; i++) {
        machine.port[i].link = machine.options.link[i];
        client[i] = qemu_new_net_client(&info, NULL, "wire", names[i]);
        net_hub_add_port(i, i ? "wireport1" : "wireport0", client[i]);
    }
    machine.member.deliver = put_frame;
    machine.member.context = &machine;
    machine.member.running = runstate_is_running;
    machine.member.counts = &machine.counts;
    if (machine.options.trace_path && !(trace = fopen(machine.options.trace_path, "we")))
        wire_die("cannot write %s", machine.options.trace_path);
}

void machine_begin(int64_t clock_ns) {
    timer_init_full(&arrival, NULL, CLOCK_VIRTUAL, SCALE_NS, 0, on_arrival, NULL);
    machine.known_ns = machine.member.lookahead_ns - 1; /* nothing was sent before the beginning */
    machine.began_ns = clock_ns;
    machine.began_host_ns = wire_host_ns();
}

void machine_end(void) {
    static bool over;
    if (over || machine.began_ns < 0)
        return;
    over = true;
    if (machine.member.shared)
        cluster_leave(&machine.member);
    if (trace && fclose(trace))
        wire_die("cannot write %s", machine.options.trace_path);
    if (machine.options.counts_path)
        wire_write_counts(machine.options.counts_path, &machine.counts, machine_now_ns(),
                          wire_host_ns() - machine.began_host_ns);
}
