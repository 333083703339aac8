// Ranks that share cores. A group of cores serves its ranks first come, first served, whichever core is free: a rank
// that computes keeps its core for a time slice, a rank that waits keeps it only as long as no other rank wants it. So
// does a fair scheduler that balances its run queues with ranks that poll and yield.
#include "engine.hpp"

#include <algorithm>
#include <utility>

namespace nearmetal {

namespace {
constexpr std::uint32_t kPlacementPurpose = 2; // of the random numbers that place ranks on cores
constexpr std::uint32_t kMostRanks = 16;       // on a core, of which each is looked at whenever one gives way
} // namespace

// Assign the ranks of each computer to its cores, where ranks outnumber cores.
void Engine::assign_cores() {
    if (machine_->cores == 0)
        return;
    std::vector<std::vector<std::uint32_t>> computers;
    bool crowded = false;
    for (std::uint32_t rank = 0; rank < job_->ranks; ++rank) {
        const std::uint32_t at = machine_->one_computer ? 0 : places_[rank].host;
        if (at >= computers.size())
            computers.resize(at + 1);
        computers[at].push_back(rank);
        crowded = crowded || computers[at].size() > machine_->cores;
    }
    if (!crowded)
        return;
    shares_.resize(job_->ranks);
    std::uint32_t draws = 0;
    for (std::vector<std::uint32_t> &ranks : computers)
        assign_ranks(ranks, draws);
}

void Engine::assign_ranks(std::vector<std::uint32_t> &ranks, std::uint32_t &draws) {
    const auto count = static_cast<std::uint32_t>(ranks.size()), cores = machine_->cores;
    for (std::size_t i = ranks.size(); i > 1; --i) // Fisher and Yates
        std::swap(ranks[i - 1], ranks[draw(0, draws, kPlacementPurpose) % i]);
    if (machine_->share_by_domain && count > cores) {
        if (count % cores != 0)
            share_fairly(ranks);
        else if (machine_->lead_ps == kNever || count / cores > kMostRanks)
            split_by_domain(ranks);
        else
            divide_by_domain(ranks);
        return;
    }
    add_core_group(cores);
    for (std::uint32_t i = 0; i < count; ++i)
        shares_[ranks[i]].core = core_groups_.back().first + i % cores;
    if (cores == 1 && count == 2 && machine_->lead_ps != kNever)
        for (const std::uint32_t rank : ranks)
            join(rank, shares_[rank].core, add_entity(shares_[rank].core));
}

void Engine::add_core_group(std::uint32_t cores) {
    const auto index = static_cast<std::uint32_t>(core_groups_.size());
    core_groups_.push_back({static_cast<std::uint32_t>(cores_.size()), cores, {}});
    cores_.resize(cores_.size() + cores, {.holder = kNone, .group = index});
}

// Whether the rank has its core now; else it is notified when it gets it.
bool Engine::take_core(std::uint32_t rank) {
    Share &share = shares_[rank];
    Rank &r = ranks_[rank];
    if (cores_[share.core].holder == rank)
        return true;
    follow_division(rank);
    CoreGroup &group = core_group(rank);
    std::uint32_t best = kNone; // the free core that was free first; its own when that is free as long
    for (std::uint32_t at = group.first; at < group.first + group.count; ++at)
        if (cores_[at].holder == kNone && (best == kNone || cores_[at].free_at < cores_[best].free_at ||
                                           (at == share.core && cores_[at].free_at == cores_[best].free_at)))
            best = at;
    if (best != kNone) {
        Core &core = cores_[best];
        share.core = best;
        core.holder = rank;
        if (core.free_at > r.clock) // its last holder is ahead of the global clock
            r.clock = core.free_at + machine_->switch_ps;
        core.slice_end = r.clock + machine_->slice_ps;
        return true;
    }
    queue(rank);
    preempt_waiting(group);
    return false;
}

// The rank wants its core from now on.
void Engine::queue(std::uint32_t rank) {
    Share &share = shares_[rank];
    if (share.entity != kNone) {
        count_polling(share.core, now_);
        if (machine_->blocking)
            claim_nothing(rank);
    }
    share.queued = true;
    append(core_group(rank).ready, shares_, rank);
}

// Let a holder that only waits give its core to a rank that wants one.
void Engine::preempt_waiting(const CoreGroup &group) {
    for (std::uint32_t at = group.first; at < group.first + group.count && group.ready.head != kNone; ++at)
        if (cores_[at].holder != kNone)
            yield_core(cores_[at].holder);
}

// Continue with the rest of a gap; false when the rank has to wait for its core or for the end of its slice.
bool Engine::compute(std::uint32_t rank) {
    Share &share = shares_[rank];
    Rank &r = ranks_[rank];
    if (!follow_division(rank))
        return false;
    Core &core = cores_[share.core];
    if (share.rest == 0)
        return true;
    if (core.slice_end <= r.clock) {
        if (gives_way(rank))
            return false;
        core.slice_end = r.clock + machine_->slice_ps;
    }
    const Ps now = std::min(share.rest, core.slice_end - r.clock);
    r.clock += now;
    share.rest -= now;
    use(rank, now);
    if (share.rest == 0)
        return true;
    // By core: in the order of ranks, the first of several would always get the next core at once.
    push(r.clock, EventKind::kSlice, share.core);
    return false;
}

// At the end of a slice: let another rank have the core.
bool Engine::gives_way(std::uint32_t rank) {
    Share &share = shares_[rank];
    const Ps time = ranks_[rank].clock;
    const std::uint32_t next = share.entity != kNone ? after_slice(rank) : core_group(rank).ready.head;
    if (next == rank || next == kNone)
        return false;
    share.queued = true;
    append(core_group(rank).ready, shares_, rank);
    give_core(share.core, next, time);
    return true;
}

// A rank that only waits gives the core to the next one; it returns when something arrives for it.
void Engine::yield_core(std::uint32_t rank) {
    if (shares_.empty())
        return;
    Rank &r = ranks_[rank];
    Share &share = shares_[rank];
    const bool waits = r.state == State::kWaiting || r.state == State::kProbing;
    if (!waits || cores_[share.core].holder != rank || share.busy > 0)
        return;
    Ps time = std::max(r.clock, now_);
    if (share.entity != kNone && share.works_until > time) {
        count_polling(share.core, time);
        use(rank, std::max(share.works_until - cores_[share.core].counted, Ps{0}));
        time = share.works_until;
    }
    const std::uint32_t next = share.entity != kNone ? after_look(rank, time) : core_group(rank).ready.head;
    if (next == kNone || (next == rank && (look_period(rank) == 0 || share.polls_until > time)))
        return;
    share.away = r.state;
    r.state = State::kOff;
    if (next != rank) {
        give_core(share.core, next, time);
        return;
    }
    cores_[share.core].holder = kNone; // all poll in turn
    cores_[share.core].free_at = time;
}

void Engine::give_core(std::uint32_t at, std::uint32_t rank, Ps time) {
    Core &core = cores_[at];
    Share &share = shares_[rank];
    if (share.queued) {
        remove(core_groups_[core.group].ready, shares_, rank);
        share.queued = false;
    }
    share.core = at;
    share.back_at = time + machine_->switch_ps;
    core.holder = rank;
    core.slice_end = share.back_at + machine_->slice_ps;
    push(std::max(share.back_at, now_), EventKind::kCore, rank);
}

// The rank that had the core has ended, or runs elsewhere.
void Engine::pass_core(std::uint32_t at, Ps time) {
    if (const std::uint32_t next = next_ready(at); next != kNone) {
        give_core(at, next, time);
        return;
    }
    cores_[at].holder = kNone;
    cores_[at].free_at = time;
}

// The program of a rank has ended.
void Engine::leave_core(std::uint32_t rank) {
    if (!shares_.empty())
        pass_core(shares_[rank].core, std::max(ranks_[rank].clock, now_));
}

// Something arrived for a rank: when it is off its core it wants it back.
void Engine::wake(std::uint32_t rank, Ps time) {
    if (ranks_[rank].state != State::kOff)
        return;
    const Ps seen = std::max(time, now_);
    if (!shares_[rank].queued)
        push(outside_ && look_period(rank) > 0 ? next_look(rank, seen) : seen, EventKind::kCore, rank);
    else
        preempt_waiting(core_group(rank));
}

void Engine::core_due(std::uint32_t rank) {
    Share &share = shares_[rank];
    Rank &r = ranks_[rank];
    const bool holds = cores_[share.core].holder == rank;
    if (holds && share.back_at == kNever) // it has polled for long enough, unless something came
        yield_core(rank);
    else if (holds ? now_ >= share.back_at : r.state == State::kOff && !share.queued && take_core(rank))
        resume_on_core(rank);
}

// The rank has its core again: it handles what arrived meanwhile, or continues computing.
void Engine::resume_on_core(std::uint32_t rank) {
    Share &share = shares_[rank];
    Rank &r = ranks_[rank];
    r.clock = std::max(r.clock, now_);
    share.back_at = kNever;
    if (r.state == State::kComputing) {
        run_rank(rank, false);
        return;
    }
    r.state = State::kInCall;
    enter(rank);
    if (share.away == State::kProbing) {
        const Program &p = program(r);
        if (run_probe(rank, p.ops[p.code[r.pc - 1] >> 2]))
            run_rank(rank, false);
        return;
    }
    if (wait_again(rank))
        run_rank(rank, false);
}

// A collective of the rank continues at `time`: until then the rank keeps its core.
void Engine::plan_context(std::uint32_t context, Ps time) {
    if (!shares_.empty())
        ++shares_[contexts_[context].rank].busy;
    push(time, EventKind::kContext, context);
}

void Engine::context_due(std::uint32_t context) {
    const std::uint32_t rank = contexts_[context].rank;
    if (!shares_.empty())
        --shares_[rank].busy;
    advance(context);
    yield_core(rank);
}

} // namespace nearmetal
