// Waits of a rank, for its requests or for all others in a measured collective, and what ends them.
#include "engine.hpp"

#include <algorithm>

namespace nearmetal {

template <typename Visit> void Engine::each_slot(const Rank &r, std::uint32_t set, Visit visit) {
    const Program &p = program(r);
    if (set == kInternalSet) {
        for (std::uint32_t i = 0; i < kInternalSlots; ++i)
            visit(slot(r, p.slots + i));
        return;
    }
    for (const std::uint32_t index : p.slot_sets[set])
        visit(slot(r, index));
}

bool Engine::wait(std::uint32_t rank, std::uint32_t set) {
    if (looks_first(rank, set))
        return false;
    Rank &r = ranks_[rank];
    std::uint32_t left = 0;
    each_slot(r, set, [&](Slot &s) {
        if (s.state == SlotState::kReady) {
            r.clock = time_awake(rank, s.time) + s.overhead_ps;
            s.time = r.clock;
            s.state = SlotState::kDone;
        } else if (s.state >= SlotState::kSending && !s.waited) {
            if (s.state == SlotState::kCollective && carrier(s) != kNone)
                handle_received(contexts_[carrier(s)]);
            s.waited = true;
            ++left;
        }
    });
    if (left == 0) {
        finish_wait(r, set);
        return true;
    }
    r.left = left;
    r.computes_until = r.clock;
    r.wait_set = set;
    r.state = State::kWaiting;
    yield_core(rank);
    return false;
}

// Resume an interrupted wait: count again what is still to come.
bool Engine::wait_again(std::uint32_t rank) {
    const Rank &r = ranks_[rank];
    each_slot(r, r.wait_set, [](Slot &s) { s.waited = false; });
    return wait(rank, r.wait_set);
}

void Engine::finish_wait(Rank &r, std::uint32_t set) {
    each_slot(r, set, [&](Slot &s) {
        if (s.state == SlotState::kDone)
            r.clock = std::max(r.clock, s.time);
        s = Slot{};
    });
}

void Engine::resume(std::uint32_t rank) {
    Rank &r = ranks_[rank];
    if (!shares_.empty() && shares_[rank].entity != kNone)
        count_polling(shares_[rank].core, r.clock);
    r.state = State::kInCall;
    r.owed = 0; // done while it waited, for what a collective sent meanwhile, too
    finish_wait(r, r.wait_set);
    r.wait_set = kNone;
    runnable_.push_back(rank);
}

void Engine::complete_slot(std::uint32_t rank, std::uint32_t index, Ps time) {
    Rank &r = ranks_[rank];
    if (index == kNobody) {
        wake(rank, time);
        return;
    }
    Slot &s = slot(r, index);
    s.state = SlotState::kDone;
    s.time = time;
    if (s.waited && r.state == State::kWaiting && --r.left == 0)
        resume(rank);
    wake(rank, time);
}

// The first arrival after a sleep pays for waking the process; a process that still has work is awake.
Ps Engine::time_awake(std::uint32_t rank, Ps time) {
    Rank &r = ranks_[rank];
    if (r.clock >= time)
        return r.clock;
    if (!machine_->blocking || time - r.clock <= machine_->spin_ps)
        return time + turn(rank);
    const Ps jitter = machine_->wakeup_tail ? job_->tables[machine_->wakeup_tail - 1].draw(draw(rank, r.draws, 0)) : 0;
    return time + turn(rank) + machine_->wakeup_ps + jitter;
}

// ---------------------------------------------------------------- collectives as measured

// Whether a collective takes the time that it was measured to take among all ranks.
bool Engine::as_measured(const Op &op, const Comm &comm) const {
    return machine_->was_measured(op.collective, op.bytes) && (op.flags & (kNonblocking | kVector)) == 0 &&
           comm.members.empty() && comm.size == job_->ranks;
}

// All leave together, the measured time after the last one called. What computing adds to a message is added: to the
// first that a rank sends, and to the first that it receives.
void Engine::enter_measured(std::uint32_t rank, const Op &op, std::uint32_t context, std::uint32_t seq) {
    Rank &r = ranks_[rank];
    const PathModel &way = path(pair(r.place, places_[rank == 0 ? std::min(1u, job_->ranks - 1) : 0]));
    const Ps out = way.cold_extra(r.compute - r.compute_at_send), in = way.cold_extra(r.compute - r.compute_at_recv);
    r.compute_at_send = r.compute_at_recv = r.compute;
    add_overhead(rank, out + in);
    r.clock += out;
    const std::uint32_t index = program(r).slots + kCollectiveSlot;
    slot(r, index) = {.time = kNone, .overhead_ps = in, .state = SlotState::kCollective, .waited = true};
    r.left = 1;
    r.computes_until = r.clock;
    r.wait_set = kInternalSet;
    r.state = State::kWaiting;
    const auto at = measured_calls_.try_emplace({context, seq, static_cast<std::uint32_t>(op.collective)}).first;
    at->second.last = std::max(at->second.last, r.clock);
    if (++at->second.arrived < job_->ranks) {
        yield_core(rank);
        return;
    }
    const Ps end = at->second.last + measured_time(op, draw(rank, r.draws, 0));
    measured_calls_.erase(at);
    ++result_.collectives_as_measured;
    for (std::uint32_t one = 0; one < job_->ranks; ++one) {
        const std::uint32_t own = program(ranks_[one]).slots + kCollectiveSlot;
        complete_slot(one, own, end + slot(ranks_[one], own).overhead_ps);
    }
}

// On the line between two measured sizes, each at the quantile that was drawn.
Ps Engine::measured_time(const Op &op, std::uint32_t u) const {
    const std::vector<CollectivePoint> &points = machine_->measured[static_cast<std::size_t>(op.collective)];
    std::size_t at = 0;
    while (points[at].bytes < op.bytes)
        ++at;
    const Ps above = job_->tables[points[at].table].draw(u);
    if (points[at].bytes == op.bytes)
        return std::max(above, Ps{0});
    const CollectivePoint &low = points[at - 1];
    const Ps below = job_->tables[low.table].draw(u);
    const Wide risen = static_cast<Wide>(above - below) * (op.bytes - low.bytes);
    return std::max(below + static_cast<Ps>(risen / (points[at].bytes - low.bytes)), Ps{0});
}

} // namespace nearmetal
