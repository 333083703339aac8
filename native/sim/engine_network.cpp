// From the sending process to the receiving one: ports, switches, shared receive queues, interrupt stages.
#include "engine.hpp"

#include <algorithm>

namespace nearmetal {

Ps PathModel::cold_extra(Ps computed_ps) const {
    ColdPoint before{0, 0};
    for (const ColdPoint &point : cold) {
        if (computed_ps < point.computed_ps) {
            const auto risen =
                static_cast<Wide>(point.extra_ps - before.extra_ps) * std::max(computed_ps - before.computed_ps, Ps{0});
            return before.extra_ps + static_cast<Ps>(risen / (point.computed_ps - before.computed_ps));
        }
        before = point;
    }
    return before.extra_ps;
}

Ps work_at(const std::vector<WorkPoint> &points, std::uint64_t bytes) {
    WorkPoint before{0, 0};
    for (const WorkPoint &point : points) {
        if (bytes <= point.bytes) {
            const auto risen = static_cast<Wide>(point.ps - before.ps) * (bytes - before.bytes);
            return bytes == point.bytes ? point.ps
                                        : before.ps + static_cast<Ps>(risen / (point.bytes - before.bytes));
        }
        before = point;
    }
    return before.bytes ? static_cast<Ps>(static_cast<Wide>(before.ps) * bytes / before.bytes) : before.ps;
}

Ps PathModel::copy_time(std::uint64_t bytes) const {
    const std::uint64_t first = std::min(bytes, single_up_to_bytes);
    return time_of(first, single_copy_fs_per_byte) + time_of(bytes - first, copy_fs_per_byte);
}

// On lines through points, constant below the first and beyond the last.
static Ps between(const std::vector<WorkPoint> &points, std::uint64_t bytes) {
    if (points.empty() || bytes <= points.front().bytes)
        return points.empty() ? 0 : points.front().ps;
    WorkPoint before = points.front();
    for (const WorkPoint &point : points) {
        if (bytes <= point.bytes) {
            const auto risen = static_cast<Wide>(point.ps - before.ps) * static_cast<Wide>(bytes - before.bytes);
            return before.ps + static_cast<Ps>(risen / static_cast<Wide>(point.bytes - before.bytes));
        }
        before = point;
    }
    return before.ps;
}

Ps PathModel::crossing_for(std::uint64_t bytes) const { return between(crossing, bytes); }

Ps PathModel::trailing_for(std::uint64_t bytes) const { return between(trailing, bytes); }

// Whether the receiver of a message has sent its sender one that had not arrived when this one left.
bool Engine::crosses(const Message &m) const {
    const Rank &r = ranks_[m.dst];
    const Flow *flows = &flows_[std::size_t{m.dst} * kInlineFlows];
    for (std::uint8_t i = 0; i < r.flows; ++i)
        if (flows[i].dst == m.src)
            return flows[i].arrival > m.time;
    if (!r.flow_overflow)
        return false;
    const auto found = more_flows_.find(std::uint64_t{m.dst} << 32 | m.src);
    return found != more_flows_.end() && found->second > m.time;
}

Ps Engine::send_overhead(const Message &m) {
    Rank &r = ranks_[m.src];
    const PathModel &way = path(m.pair);
    const Ps cold = way.cold_extra(r.compute - r.compute_at_send);
    r.compute_at_send = r.compute;
    return own_time(m.src, way.segment(wire_bytes(m)).send_overhead(wire_bytes(m)) + cold);
}

// What the receiver of a message works at least if it did not wait for it. Where ranks share cores and the kernel
// carries messages, nothing that one end does overlaps what the other does: the receiver does what the sender left of
// both ends' work. Above the eager limit that is no more than copying, where it is known what that takes: streams of
// such messages are slow for want of caches.
Ps Engine::least_work(const Message &m) const {
    const PathModel &way = path(m.pair);
    const std::vector<WorkPoint> &works = works_of(way, way.receive_work);
    if (!m.interrupts || works.empty())
        return 0;
    const Ps each = work_at(works, m.bytes);
    if (!works_all_the_way(m))
        return each;
    const Segment &of = way.segment(m.bytes);
    const Ps left =
        2 * each - of.send_overhead(m.bytes) - of.latency_ps - time_of(m.bytes, of.latency_fs_per_byte);
    if (m.bytes <= way.eager_up_to_bytes || way.copy_fs_per_byte == 0)
        return left;
    return std::min(left, way.copy_time(m.bytes));
}

// What is left to do is the acknowledgement of what the rank has sent. If it computes meanwhile, that is a part of what
// sending takes (`owed`), and done.
Ps Engine::left_to_do(const Message &m) const {
    const bool leaves = m.crosses && !m.interrupts && m.kind == MessageKind::kEager;
    return leaves ? own_time(m.dst, path(m.pair).trailing_for(m.bytes)) : 0;
}

Ps Engine::recv_overhead(const Message &m) {
    Rank &r = ranks_[m.dst];
    const PathModel &way = path(m.pair);
    const Ps cold = way.cold_extra(r.compute - r.compute_at_recv);
    r.compute_at_recv = r.compute;
    const Segment &segment = way.segment(m.bytes);
    const Ps copying = m.kind == MessageKind::kData && fetched(m) ? segment.send_overhead(m.bytes) : 0;
    const Ps crossing = m.crosses ? way.crossing_for(m.bytes) : 0;
    return own_time(m.dst, std::max(segment.recv_overhead(m.bytes), least_work(m)) + copying + cold + crossing);
}

// When the first byte of a message leaves. The process, its copying and its port take one message after the other; what
// the process itself does for a message is a part of those times, because bytes leave while it copies others.
Ps Engine::take_turn(const Message &m, const Segment &segment, Ps own, Ps time) {
    const std::uint64_t bytes = wire_bytes(m);
    const std::uint32_t from = sender(m);
    Rank &r = ranks_[from];
    const Ps pipe = way_time(from, segment.gap_ps + time_of(bytes, segment.fs_per_byte));
    Copying *copying = copying_.empty() ? nullptr : &copying_[from];
    const Ps copies = copying ? way_time(from, path(m.pair).copy_time(bytes)) : 0;
    const Ps busy = machine_->port_gap_ps + time_of(bytes, machine_->port_fs_per_byte);
    Port *port = inside(m) ? nullptr : &ports_[r.place.host];
    Ps start = std::max(time, r.tx_free + std::min(own, pipe));
    if (copying)
        start = std::max(start, copying->free + std::min(own, copies));
    if (port)
        start = std::max(start, port->tx_free + std::min(own, busy));
    r.tx_free = start + std::max(Ps{0}, pipe - own);
    if (copying)
        copying->free = start + std::max(Ps{0}, copies - own);
    if (port)
        port->tx_free = start + std::max(Ps{0}, busy - own);
    return start;
}

// An interrupt stage takes packets as they arrive: the first of them so long before the last.
Ps Engine::spread_of(const Message &m) const {
    const Ps gap = machine_->has_stage ? machine_->stage.packet_gap_ps : 0;
    return gap > 0 && !inside(m) ? static_cast<Ps>(packets(wire_bytes(m)) - 1) * gap : 0;
}

// Send a message off at `time` >= now; returns when its last byte has left the sender.
Ps Engine::inject(std::uint32_t index, Ps time) {
    Message &m = messages_[index];
    const std::uint32_t from = sender(m), to = target(m);
    const std::uint64_t bytes = wire_bytes(m);
    const Segment &segment = path(m.pair).segment(bytes);
    Rank &r = ranks_[from];
    const Ps own = own_time(from, segment.send_overhead(bytes));
    const Ps wire = way_time(from, time_of(bytes, segment.fs_per_byte));
    const Ps flight = way_time(from, time_of(bytes, segment.latency_fs_per_byte));
    Ps latency = way_time(from, segment.latency_ps);
    if (segment.tail > 0)
        latency += job_->tables[segment.tail - 1].draw(draw(from, r.draws, 0));
    if (!inside(m))
        latency += machine_->hop_ps * machine_->extra_switches(r.place.host, place_of_target(m).host);
    // A request or a grant is a packet of its own: it does not wait for data that left before, nor overtakes them.
    const bool control = m.kind == MessageKind::kRequest || m.kind == MessageKind::kGrant;
    const Ps start = m.time = control ? time : take_turn(m, segment, own, time);
    const Ps spread = spread_of(m);
    const Ps first = in_order(from, to, std::max(start + latency + flight - spread, now_), spread);
    if (machine_->has_stage && machine_->stage.acknowledged && !inside(m))
        ++ways_[std::uint64_t{from} << 32 | to].open;
    if (works_all_the_way(m))
        shares_[from].works_until = std::max(shares_[from].works_until, first);
    push(first, EventKind::kArrive, index);
    return start + std::clamp(wire - own, Ps{0}, std::max(Ps{0}, latency + flight)); // before it arrives
}

// MPI messages of a pair do not overtake each other: the first packet of one comes after the last of the one before.
// Events of one time are handled by index, hence the picosecond. A rank remembers only pairs with messages in flight.
Ps Engine::in_order(std::uint32_t src, std::uint32_t dst, Ps first, Ps spread) {
    Rank &r = ranks_[src];
    Flow *flows = &flows_[std::size_t{src} * kInlineFlows];
    const std::uint64_t key = std::uint64_t{src} << 32 | dst;
    if (r.flow_overflow) {
        const auto found = more_flows_.find(key);
        if (found != more_flows_.end()) {
            first = std::max(first, found->second + 1);
            found->second = first + spread;
            return first;
        }
    }
    std::uint8_t keep = 0;
    bool placed = false;
    for (std::uint8_t i = 0; i < r.flows; ++i) {
        if (flows[i].dst == dst) {
            first = std::max(first, flows[i].arrival + 1);
            flows[keep++] = {first + spread, dst};
            placed = true;
        } else if (flows[i].arrival > now_) {
            flows[keep++] = flows[i];
        }
    }
    r.flows = keep;
    if (placed)
        return first;
    if (r.flows < kInlineFlows) {
        flows[r.flows++] = {first + spread, dst};
    } else {
        if (more_flows_.size() >= more_flows_limit_) {
            std::erase_if(more_flows_, [&](const auto &flow) { return flow.second <= now_; });
            more_flows_limit_ = std::max<std::size_t>(1 << 16, 2 * more_flows_.size());
        }
        more_flows_.emplace(key, first + spread);
        r.flow_overflow = true;
    }
    return first;
}

void Engine::arrive(std::uint32_t index) {
    const Message &m = messages_[index];
    const std::uint64_t bytes = wire_bytes(m);
    const Ps spread = spread_of(m), last = now_ + spread;
    Ps through = last; // of its last packet
    if (!inside(m)) {
        Port &port = ports_[place_of_target(m).host];
        const Ps apart = machine_->port_fs_per_byte > 0 ? 1 : 0; // messages without bytes stay behind what waits there
        const Ps busy = std::max(time_of(bytes, machine_->port_fs_per_byte), apart);
        through = std::max(last, port.rx_free + busy);
        if (spread > 0)
            port.rx_late = through - last;
        else if (machine_->has_stage && machine_->stage.packet_gap_ps > 0) // a packet passes between those of a message
            through = std::max(now_, std::min(through, now_ + port.rx_late));
        if (bytes > 0 || through > last) // one without bytes does not hold up the data that follow
            port.rx_free = std::max(port.rx_free, through);
    }
    if (!machine_->has_stage || inside(m))
        through = copied(m, through);
    if (through > last)
        push(through - spread, EventKind::kReady, index);
    else
        ready(index);
}

// When a message that is there at `time` has been copied: one process copies in and out, what comes in while it comes.
Ps Engine::copied(const Message &m, Ps time) {
    if (copying_.empty() || path(m.pair).copy_fs_per_byte == 0)
        return time;
    Copying &c = copying_[target(m)];
    const Ps takes = way_time(target(m), path(m.pair).copy_time(wire_bytes(m)));
    time = std::max(time, c.rx_free + 1);
    if (takes > 0)
        time = c.free = std::max(time, c.free + takes);
    return c.rx_free = time;
}

void Engine::ready(std::uint32_t index, bool again) {
    const Message &m = messages_[index];
    if (inside(m)) {
        deliver(index, now_);
        return;
    }
    const std::uint32_t to = place_of_target(m).domain;
    if (machine_->srq_buffers > 0 && !take_buffer(index, to, again))
        return;
    if (!machine_->has_stage) {
        deliver(index, now_);
        return;
    }
    const StageSetting &stage = machine_->stage;
    const std::uint32_t count = packets(wire_bytes(m));
    const std::uint64_t bytes = wire_bytes(m) + stage.message_header_bytes + std::uint64_t{count} * stage.header_bytes;
    take_packets(to, {index, count, bytes});
}

void Engine::take_packets(std::uint32_t domain, const InterruptStage::Item &item) {
    stages_[domain].arrive(now_, item, stage_jitter(domain));
    schedule_stage(domain);
}

// TCP answers packets of a message; that takes as long as a small message does, without MPI's share.
void Engine::acknowledge(std::uint32_t index, Ps time) {
    const Message &m = messages_[index];
    const Segment &small = path(m.pair).segments.front();
    const Ps takes = small.send_overhead_ps + small.latency_ps + small.recv_overhead_ps;
    push(time + takes, EventKind::kAnswer, (m.kind == MessageKind::kGrant ? m.to : m.from).domain);
}

// Whether a message of one packet that becomes visible now gets its own acknowledgement: its sender had not yet seen
// what its receiver had sent, so neither carries the other's.
bool Engine::needs_own_ack(const Message &m, Ps time) {
    const std::uint64_t from = sender(m), to = target(m);
    Way &way = ways_[from << 32 | to];
    --way.open;
    way.seen = time;
    const Way &back = ways_[to << 32 | from];
    return packets(wire_bytes(m)) == 1 && (back.open > 0 || back.seen > m.time);
}

// A shared receive queue is refilled `srq_refill_ps` after it fell to the low watermark. A message that finds it empty
// is refused and sent again (receiver not ready), with all that follow it.
bool Engine::take_buffer(std::uint32_t index, std::uint32_t to, bool again) {
    SharedQueue &queue = shared_[to];
    if (queue.refill_at <= now_) {
        queue.used = 0;
        queue.refill_at = kNever;
    }
    const bool empty = queue.used >= machine_->srq_buffers;
    if (empty || (queue.refused > 0 && !again)) {
        queue.last_ready = std::max(queue.last_ready + 1, empty ? queue.refill_at + machine_->srq_retry_ps : now_);
        queue.refused += again ? 0 : 1;
        push(queue.last_ready, EventKind::kAgain, index);
        return false;
    }
    queue.refused -= again ? 1 : 0;
    ++queue.used;
    if (queue.refill_at == kNever && machine_->srq_buffers - queue.used <= machine_->srq_low)
        queue.refill_at = now_ + machine_->srq_refill_ps;
    return true;
}

Ps Engine::stage_jitter(std::uint32_t to) {
    const std::uint32_t table = machine_->stage.delivery_tail;
    return table > 0 ? job_->tables[table - 1].draw(draw(to, stage_draws_[to], 1)) : 0;
}

// The event queue cannot remove an event, so one that is no longer due is recognised by its time.
void Engine::schedule_stage(std::uint32_t to) {
    const Ps due = stages_[to].due();
    if (due != kNever && due != stage_planned_[to]) {
        stage_planned_[to] = due;
        push(std::max(due, now_), EventKind::kStage, to);
    }
}

void Engine::stage_due(std::uint32_t to) {
    if (stage_planned_[to] == now_) // consumed, even if the stage has moved on: it may be due once more at this time
        stage_planned_[to] = kNever;
    if (stages_[to].due() != now_)
        return;
    visible_.clear();
    stages_[to].handle(now_, stage_jitter(to), visible_);
    schedule_stage(to);
    if (many_)
        fetch_visible();
    for (const InterruptStage::Visible &v : visible_) {
        if (v.acknowledges || (machine_->stage.acknowledged && needs_own_ack(messages_[v.id], v.time)))
            acknowledge(v.id, v.time);
        if (v.acknowledges)
            continue;
        if (const Ps time = copied(messages_[v.id], v.time); time > v.time)
            push(time, EventKind::kCopied, v.id);
        else
            deliver(v.id, v.time);
    }
}

} // namespace nearmetal
