// Collectives: from a call to the messages of its rounds.
#include "engine.hpp"

#include <algorithm>
#include <utility>

namespace nearmetal {

bool Engine::run_collective(std::uint32_t rank, const Op &op, std::uint32_t op_index) {
    Rank &r = ranks_[rank];
    const Program &p = program(r);
    const Comm &comm = p.comms[op.comm];
    const bool blocking = (op.flags & kNonblocking) == 0;
    const std::uint32_t own = blocking ? p.slots + kCollectiveSlot : op.slot;
    if (!r.posts) {
        const std::uint32_t seq = sequence_[r.comm_base + op.comm]++;
        if (as_measured(op, comm)) {
            enter_measured(rank, op, comm.context, seq);
            return false;
        }
        const std::uint32_t index = contexts_.take();
        Context &c = contexts_[index];
        c.rank = rank;
        c.op = op_index;
        c.seq = seq;
        c.slot = own;
        c.algorithm = choose_algorithm(machine_->collectives, op.collective, comm_size(comm), op.bytes,
                                       op.flags & kVector, !blocking);
        if (machine_->by_nodes && c.algorithm != Algorithm::kNothing)
            c.nodes = nodes_for(c);
        detach(rank, own);
        slot(r, own) = {.time = index, .state = SlotState::kCollective};
    }
    r.posts = false;
    advance(carrier(slot(r, own)));
    if (r.posts) { // the call goes on when the clock is there
        --r.pc;
        return true;
    }
    return !blocking || wait(rank, kInternalSet);
}

CollectiveCall Engine::call_of(const Context &c) const {
    const Program &p = program(ranks_[c.rank]);
    const Op &op = p.ops[c.op];
    const Comm &comm = p.comms[op.comm];
    const auto list = [&](std::uint32_t at) {
        return at == kNone ? std::span<const std::uint64_t>{} : std::span<const std::uint64_t>(p.size_lists[at]);
    };
    return {c.algorithm,
            comm_size(comm),
            comm_rank(comm, c.rank),
            op.peer == kAny ? 0 : static_cast<std::uint32_t>(op.peer),
            op.bytes,
            list(op.sizes),
            list(op.recv_sizes),
            &comm,
            (op.flags & kNonblocking) != 0};
}

// The nodes of a communicator's ranks if the collective is divided by them.
const Nodes *Engine::nodes_for(const Context &c) {
    const CollectiveCall call = call_of(c);
    const Op &op = program(ranks_[c.rank]).ops[c.op];
    const Comm &comm = *call.comm;
    const std::uint64_t key = static_cast<std::uint64_t>(comm.context) << 32 | world_rank(comm, c.rank, 0);
    auto found = nodes_.find(key);
    if (found == nodes_.end()) {
        std::vector<std::uint32_t> node_of(call.size);
        for (std::uint32_t member = 0; member < call.size; ++member)
            node_of[member] = places_[world_rank(comm, c.rank, member)].domain;
        found = nodes_.emplace(key, Nodes(node_of)).first;
    }
    const bool divided =
        (op.flags & kVector) == 0 && is_divided(machine_->collectives, op.collective, call, found->second);
    return divided ? &found->second : nullptr;
}

// Go through rounds until one has to wait for a message or for the clock.
void Engine::advance(std::uint32_t index) {
    Context &c = contexts_[index];
    const std::uint32_t rank = c.rank;
    Rank &r = ranks_[rank];
    const bool away = r.state == State::kOff;
    if (away || (!in_call(r) && !machine_->async_progress && !c.granted)) { // it computes again: later
        c.next = r.deferred_contexts;
        r.deferred_contexts = index;
        wake(rank, now_);
        return;
    }
    r.clock = std::max(r.clock, now_);
    const CollectiveCall call = call_of(c);
    const Comm &comm = *call.comm;
    bool due = r.state == State::kInCall; // the call's own turn: its next message leaves as that of a send does
    for (;;) {
        Progress next = c.at;
        const Round round = next_round(machine_->collectives, program(r).ops[c.op].collective, call, c.nodes, next);
        if (round.last) {
            c.closing = true;
            if (c.outstanding == 0) {
                end_round(c);
                finish_context(index);
            }
            return;
        }
        if (round.send_to != kAny && !std::exchange(due, false) && progresses(r, now_) && r.clock > now_) {
            if (r.state == State::kInCall) { // its own call, which returns only after what need not wait
                r.posts = true;
                return;
            }
            c.granted = true;
            plan_context(index, r.clock);
            return;
        }
        c.at = next;
        c.open = round.open;
        c.reduce_bytes = round.reduce_bytes;
        const auto tag = static_cast<std::int32_t>(c.seq);
        c.posting = true; // completions in here do not start the next round
        if (round.recv_from != kAny) {
            ++c.outstanding;
            post_recv(rank,
                      static_cast<std::int32_t>(world_rank(comm, rank, static_cast<std::uint32_t>(round.recv_from))),
                      tag, 2 * comm.context + 1, index | kContextOwner);
        }
        if (round.send_to != kAny)
            post_send(rank, world_rank(comm, rank, static_cast<std::uint32_t>(round.send_to)), tag,
                      2 * comm.context + 1, round.send_bytes, false, index | kContextOwner);
        c.posting = false;
        if (round.open) // arrivals are handled when all is posted
            continue;
        if (c.outstanding > 0) {
            if (r.state == State::kWaiting && progresses(r, now_))
                handle_received(c);
            c.granted = false;
            return;
        }
        end_round(c);
    }
}

// The process looks at what it has received for a collective meanwhile.
void Engine::handle_received(Context &c) {
    Rank &r = ranks_[c.rank];
    r.clock = std::max(r.clock, c.late_time) + c.late_cost;
    c.late_cost = 0;
}

// Everything of a round is there or has left.
void Engine::end_round(Context &c) {
    handle_received(c);
    Rank &r = ranks_[c.rank];
    r.clock = std::max(r.clock, c.sent);
}

// One send or receive of a collective is complete at `time`; handling it costs `cost`.
void Engine::context_step_done(std::uint32_t index, Ps time, Ps cost, bool receive) {
    Context &c = contexts_[index];
    Rank &r = ranks_[c.rank];
    --c.outstanding;
    if (!receive) {
        c.sent = std::max(c.sent, time);
    } else if (r.state == State::kWaiting && !c.posting && progresses(r, time)) {
        r.clock = time_awake(c.rank, time) + cost;
    } else {
        c.late_time = std::max(c.late_time, time);
        c.late_cost += cost;
    }
    if (c.outstanding > 0 || (c.open && !c.closing) || c.posting)
        return;
    if (progresses(r, time)) {
        end_round(c);
        c.granted = true;
        plan_context(index, std::max(r.clock, now_));
    } else if (machine_->async_progress) {
        plan_context(index, std::max(std::max(now_, c.late_time) + c.late_cost, c.sent));
        c.late_cost = 0;
    } else {
        c.next = r.deferred_contexts;
        r.deferred_contexts = index;
        wake(c.rank, time);
    }
}

void Engine::finish_context(std::uint32_t index) {
    const Context c = contexts_[index];
    contexts_.give(index);
    complete_slot(c.rank, c.slot, std::max(ranks_[c.rank].clock, now_));
}

} // namespace nearmetal
