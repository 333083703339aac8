// MPI matching, eager and rendezvous messages.
#include "engine.hpp"

#include <algorithm>

namespace nearmetal {

namespace {

// Remove the first node that `wanted` accepts from a list; kNone when there is none. `steps`: nodes examined.
template <typename List, typename Nodes, typename Wanted>
std::uint32_t unlink(List &list, Nodes &pool, std::uint64_t &steps, Wanted wanted) {
    std::uint32_t before = kNone;
    for (std::uint32_t node = list.head; node != kNone; before = node, node = pool[node].next) {
        ++steps;
        if (!wanted(pool[node]))
            continue;
        (before == kNone ? list.head : pool[before].next) = pool[node].next;
        if (list.tail == node)
            list.tail = before;
        return node;
    }
    return kNone;
}

bool matches(std::int32_t wanted_src, std::int32_t wanted_tag, std::uint32_t wanted_context, std::uint32_t src,
             std::int32_t tag, std::uint32_t context) {
    return wanted_context == context && (wanted_src == kAny || static_cast<std::uint32_t>(wanted_src) == src) &&
           (wanted_tag == kAny || wanted_tag == tag);
}

} // namespace

// ---------------------------------------------------------------- posting

void Engine::post_send(std::uint32_t rank, std::uint32_t dst, std::int32_t tag, std::uint32_t context,
                       std::uint64_t bytes, bool synchronous, std::uint32_t owner) {
    Rank &r = ranks_[rank];
    const Place to = places_[dst];
    const PairClass between = rank == dst ? PairClass::kSelf : pair(r.place, to);
    if ((owner & kContextOwner) == 0)
        detach(rank, owner);
    const std::uint32_t index = messages_.take();
    Message &m = messages_[index];
    m.src = rank;
    m.dst = dst;
    m.tag = tag;
    m.context = context;
    m.bytes = bytes;
    m.send_owner = owner;
    m.pair = between;
    m.from = r.place;
    m.to = to;
    const bool eager = bytes <= path(between).eager_up_to_bytes && !synchronous;
    m.kind = eager ? MessageKind::kEager : MessageKind::kRequest;
    const Ps overhead = send_overhead(m);
    const PathModel &way = path(between);
    if (const auto &works = works_of(way, way.send_work); eager && !works.empty() && !works_all_the_way(m))
        r.owed += std::max(own_time(rank, work_at(works, bytes)) - overhead, Ps{0});
    r.clock += overhead;
    add_overhead(rank, overhead);
    ++result_.messages;
    result_.bytes += bytes;
    if (!inside(m)) {
        ++result_.inter_messages;
        result_.inter_bytes += bytes;
    }
    if (eager) {
        if ((owner & kContextOwner) == 0)
            slot(r, owner) = {.time = r.clock, .state = SlotState::kDone};
    } else if (owner & kContextOwner) {
        ++contexts_[owner & ~kContextOwner].outstanding;
    } else {
        slot(r, owner) = {.time = index, .state = SlotState::kSending};
    }
    // A collective that progresses while its process computes takes the processor for a moment.
    inject(index, progresses(r, now_) ? r.clock : now_ + overhead);
}

void Engine::post_recv(std::uint32_t rank, std::int32_t src, std::int32_t tag, std::uint32_t context,
                       std::uint32_t owner) {
    Rank &r = ranks_[rank];
    if ((owner & kContextOwner) == 0) {
        detach(rank, owner);
        slot(r, owner) = {.state = SlotState::kPosted};
    }
    const std::uint32_t found = find_unexpected(r, src, tag, context, true);
    if (found == kNone) {
        const std::uint32_t index = owner & kContextOwner ? receives_.take() : r.slot_base + owner;
        receives_[index] = {.next = kNone, .owner = owner, .src = src, .tag = tag, .context = context};
        append(r.posted, receives_, index);
        return;
    }
    Message &m = messages_[found];
    match(found, owner);
    if (m.kind == MessageKind::kRequest) {
        control(found, m.time);
        return;
    }
    receive_eager(found, owner, m.time);
}

// A message matches the receive of `owner`.
void Engine::match(std::uint32_t message, std::uint32_t owner) {
    Message &m = messages_[message];
    m.recv_owner = owner;
    if ((owner & kContextOwner) == 0 && owner != kNobody) {
        Slot &s = slot(ranks_[m.dst], owner);
        s.state = SlotState::kReceiving;
        s.time = message;
    }
}

// A request is reused. If its operation is still under way, the program has freed it (MPI_Request_free): it continues,
// and nobody will wait for it.
void Engine::detach(std::uint32_t rank, std::uint32_t index) {
    Rank &r = ranks_[rank];
    const Slot &s = slot(r, index);
    if (s.state < SlotState::kSending) // as nearly always
        return;
    switch (s.state) {
    case SlotState::kSending:
        messages_[carrier(s)].send_owner = kNobody;
        break;
    case SlotState::kReceiving:
        messages_[carrier(s)].recv_owner = kNobody;
        break;
    case SlotState::kCollective:
        contexts_[carrier(s)].slot = kNobody;
        break;
    case SlotState::kPosted: { // its record is the request's own, so it moves to one from the pool
        const std::uint32_t own = r.slot_base + index, moved = receives_.take();
        std::uint32_t *link = &r.posted.head;
        std::uint32_t before = kNone;
        for (; *link != own; link = &receives_[before].next, ++steps_)
            before = *link;
        receives_[moved] = receives_[own];
        receives_[moved].owner = kNobody;
        *link = moved;
        if (r.posted.tail == own)
            r.posted.tail = moved;
        break;
    }
    default:
        break;
    }
}

// Receives that no message has met yet are complete without one.
void Engine::cancel(std::uint32_t rank, std::uint32_t set) {
    Rank &r = ranks_[rank];
    for (const std::uint32_t index : program(r).slot_sets[set]) {
        Slot &s = slot(r, index);
        if (s.state != SlotState::kPosted)
            continue;
        unlink(r.posted, receives_, steps_, [&](const Receive &posted) { return posted.owner == index; });
        s = {.time = r.clock, .state = SlotState::kDone};
    }
}

std::uint32_t Engine::find_unexpected(Rank &r, std::int32_t src, std::int32_t tag, std::uint32_t context, bool take) {
    const auto wanted = [&](const Message &m) { return matches(src, tag, context, m.src, m.tag, m.context); };
    if (take)
        return unlink(r.unexpected, messages_, steps_, wanted);
    for (std::uint32_t node = r.unexpected.head; node != kNone; node = messages_[node].next)
        if (wanted(messages_[node]))
            return node;
    return kNone;
}

std::uint32_t Engine::take_posted(Rank &r, const Message &m) {
    return unlink(r.posted, receives_, steps_, [&](const Receive &posted) {
        return matches(posted.src, posted.tag, posted.context, m.src, m.tag, m.context);
    });
}

// ---------------------------------------------------------------- arriving

// A message becomes visible to its process at `time` >= now.
void Engine::deliver(std::uint32_t index, Ps time) {
    Message &m = messages_[index];
    const PathModel &way = path(m.pair);
    m.crosses = !(way.crossing.empty() && way.trailing.empty()) && m.kind != MessageKind::kGrant && crosses(m);
    m.time = time;
    outside_ = !inside(m);
    if (outside_ && !shares_.empty())
        come_unseen(target(m));
    if (m.kind == MessageKind::kGrant) {
        control(index, time);
        return;
    }
    Rank &r = ranks_[m.dst];
    m.interrupts = r.state != State::kWaiting || time < r.computes_until;
    if (m.kind == MessageKind::kData) {
        const Ps overhead = recv_overhead(m);
        if (fetched(m))
            fetched_data(index, overhead);
        complete_recv(messages_[index].dst, messages_[index].recv_owner, time, overhead);
        messages_.give(index);
        return;
    }
    const std::uint32_t posted = take_posted(r, m);
    if (posted == kNone) {
        append(r.unexpected, messages_, index);
        if (r.state == State::kOff && shares_[m.dst].away == State::kProbing)
            wake(m.dst, time);
        if (r.state != State::kProbing)
            return;
        const Program &p = program(r);
        const Op &op = p.ops[p.code[r.pc - 1] >> 2];
        if (!matches(peer_of(r, m.dst, op, op.rule, op.peer), op.tag, 2 * p.comms[op.comm].context, m.src, m.tag,
                     m.context))
            return;
        r.clock = time_awake(m.dst, time);
        r.state = State::kInCall;
        runnable_.push_back(m.dst);
        return;
    }
    match(index, receives_[posted].owner);
    receives_.give(posted);
    if (m.kind == MessageKind::kRequest) {
        control(index, time);
        return;
    }
    receive_eager(index, m.recv_owner, time);
}

void Engine::receive_eager(std::uint32_t index, std::uint32_t owner, Ps time) {
    const Message &m = messages_[index];
    const std::uint32_t rank = m.dst;
    const Ps left = left_to_do(m);
    complete_recv(rank, owner, time, recv_overhead(m));
    ranks_[rank].owed += left;
    messages_.give(index);
}

void Engine::complete_recv(std::uint32_t rank, std::uint32_t owner, Ps time, Ps overhead) {
    add_overhead(rank, overhead);
    if (owner & kContextOwner) {
        const Context &c = contexts_[owner & ~kContextOwner];
        const auto reduce = time_of(c.reduce_bytes, machine_->reduce_fs_per_byte);
        context_step_done(owner & ~kContextOwner, time, overhead + reduce, true);
        return;
    }
    Rank &r = ranks_[rank];
    if (r.state == State::kWaiting) { // the library handles whatever arrives
        r.clock = time_awake(rank, time) + overhead;
        complete_slot(rank, owner, r.clock);
        return;
    }
    if (owner == kNobody) {
        wake(rank, time);
        return;
    }
    Slot &s = slot(r, owner);
    s.state = SlotState::kReady;
    s.time = time;
    s.overhead_ps = overhead;
    wake(rank, time);
}

void Engine::complete_send(std::uint32_t rank, std::uint32_t owner, Ps time) {
    if (owner & kContextOwner)
        context_step_done(owner & ~kContextOwner, time, 0, false);
    else
        complete_slot(rank, owner, time);
}

// ---------------------------------------------------------------- rendezvous

// What answering a request or a grant costs a process: the answer to a grant is the data.
Ps Engine::answer_overhead(const Message &m) {
    const PathModel &way = path(m.pair);
    const Ps data = m.kind == MessageKind::kGrant ? way.segment(m.bytes).send_overhead(m.bytes) : 0;
    return own_time(target(m), way.segment(0).recv_overhead_ps + data);
}

// A matched request or a grant has arrived; the process answers when it is inside MPI.
void Engine::control(std::uint32_t index, Ps time) {
    Message &m = messages_[index];
    const std::uint32_t rank = target(m);
    Rank &r = ranks_[rank];
    const Ps cost = answer_overhead(m);
    m.time = time;
    add_overhead(rank, cost);
    if (r.state != State::kInCall && progresses(r, time)) {
        r.clock = time_awake(rank, time) + cost;
        push(r.clock, EventKind::kControl, index);
    } else if (r.state == State::kInCall) { // just posted: the message may be visible a little later than now
        r.clock += cost;
        push(std::max(r.clock, time), EventKind::kControl, index);
    } else if (machine_->async_progress || r.state == State::kDone) {
        push(std::max(now_, time) + cost, EventKind::kControl, index);
    } else {
        append(r.deferred, messages_, index);
        wake(rank, time);
    }
}

void Engine::answer(std::uint32_t index) {
    Message &m = messages_[index];
    if (m.kind == MessageKind::kRequest && fetched(m)) {
        fetch_data(index);
        return;
    }
    if (m.kind == MessageKind::kRequest) {
        m.kind = MessageKind::kGrant;
        inject(index, now_);
        return;
    }
    m.kind = MessageKind::kData;
    const std::uint32_t owner = m.send_owner, rank = m.src;
    const Ps end = inject(index, now_);
    if (shares_.empty() || end <= now_)
        complete_send(rank, owner, end);
    else
        schedule_sent(index, end);
}

// The send of a message ends at `time`; until then its rank waits, so another can have the core.
void Engine::schedule_sent(std::uint32_t index, Ps time) {
    const std::uint32_t note = messages_.take();
    const Message &m = messages_[note] = messages_[index];
    if ((m.send_owner & kContextOwner) == 0 && m.send_owner != kNobody)
        slot(ranks_[m.src], m.send_owner).time = note;
    push(time, EventKind::kSent, note);
}

// The receiver copies the data from the sender's memory, without further work of the sender.
void Engine::fetch_data(std::uint32_t index) {
    Message &m = messages_[index];
    m.kind = MessageKind::kData;
    const Segment &segment = path(m.pair).segment(m.bytes);
    Ps takes = segment.latency_ps + time_of(m.bytes, segment.latency_fs_per_byte);
    if (segment.tail > 0)
        takes += job_->tables[segment.tail - 1].draw(draw(m.dst, ranks_[m.dst].draws, 0));
    push(now_ + std::max(takes, Ps{0}), EventKind::kReady, index);
}

void Engine::fetched_data(std::uint32_t index, Ps overhead) {
    const Message &m = messages_[index];
    const Segment &small = path(m.pair).segment(0);
    schedule_sent(index, now_ + overhead + small.latency_ps + own_time(m.src, small.recv_overhead_ps));
}

void Engine::sent(std::uint32_t note) {
    const Message m = messages_[note];
    messages_.give(note);
    complete_send(m.src, m.send_owner, now_);
}

// The process enters MPI: it answers what arrived while it computed.
void Engine::enter(std::uint32_t rank) {
    Rank &r = ranks_[rank];
    while (r.deferred.head != kNone) {
        const std::uint32_t index = r.deferred.head;
        Message &m = messages_[index];
        r.deferred.head = m.next;
        r.clock = std::max(r.clock, m.time) + answer_overhead(m);
        push(r.clock, EventKind::kControl, index);
    }
    r.deferred.tail = kNone;
    while (r.deferred_contexts != kNone) {
        const std::uint32_t index = r.deferred_contexts;
        Context &c = contexts_[index];
        r.deferred_contexts = c.next;
        end_round(c);
        c.granted = true;
        plan_context(index, std::max(r.clock, now_));
    }
}

} // namespace nearmetal
