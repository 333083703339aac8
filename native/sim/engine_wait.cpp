// A rank that waits for its requests, and what ends its wait.
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
    Rank &r = ranks_[rank];
    std::uint32_t left = 0;
    each_slot(r, set, [&](Slot &s) {
        if (s.state == SlotState::kReady) {
            r.clock = awake(rank, s.time) + s.overhead_ps;
            s.time = r.clock;
            s.state = SlotState::kDone;
        } else if (s.state >= SlotState::kSending && !s.waited) {
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
    give_way(rank);
    return false;
}

// Go on with a wait that was interrupted: count anew what is still to come.
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
    r.state = State::kInCall;
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
Ps Engine::awake(std::uint32_t rank, Ps time) {
    Rank &r = ranks_[rank];
    if (r.clock >= time)
        return r.clock;
    if (!machine_->blocking || time - r.clock <= machine_->spin_ps)
        return time + turn(rank);
    const Ps jitter = machine_->wakeup_tail ? job_->tables[machine_->wakeup_tail - 1].draw(draw(rank, r.draws, 0)) : 0;
    return time + turn(rank) + machine_->wakeup_ps + jitter;
}

} // namespace nearmetal
