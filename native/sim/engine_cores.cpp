// Ranks that share cores. A group of cores serves its ranks first come, first served, whichever core is free: a rank
// that computes keeps its core for a time slice, a rank that waits keeps it only as long as no other rank wants it. So
// does a fair scheduler that balances its run queues with ranks that poll and yield.
#include "engine.hpp"

#include <algorithm>
#include <utility>

namespace nearmetal {

namespace {
constexpr std::uint32_t kPlacementPurpose = 2; // of the random numbers that place ranks on cores
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
        if (count % cores == 0)
            split_by_domain(ranks);
        else
            share_fairly(ranks);
        return;
    }
    add_core_group(cores);
    for (std::uint32_t i = 0; i < count; ++i)
        shares_[ranks[i]].core = core_groups_.back().first + i % cores;
    if (cores == 1 && count == 2 && machine_->lead_ps != kNever)
        for (const std::uint32_t i : {0U, 1U})
            shares_[ranks[i]].corunner = ranks[1 - i];
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
    if (share.corunner != kNone)
        share_polling(rank, now_);
    share.queued = true;
    append(group.ready, shares_, rank);
    preempt_waiting(group);
    return false;
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
    Core &core = cores_[share.core];
    if (share.rest == 0)
        return true;
    if (core.slice_end <= r.clock) {
        if (CoreGroup &group = core_group(rank); group.ready.head != kNone) {
            share.queued = true;
            append(group.ready, shares_, rank);
            pass_core(share.core, r.clock);
            return false;
        }
        if (share.corunner != kNone && let_corunner_poll(rank))
            return false;
        core.slice_end = r.clock + machine_->slice_ps;
    }
    const Ps now = std::min(share.rest, core.slice_end - r.clock);
    r.clock += now;
    share.rest -= now;
    share.used += now;
    if (share.rest == 0)
        return true;
    // By core: in the order of ranks, the first of several would always get the next core at once.
    push(r.clock, EventKind::kSlice, share.core);
    return false;
}

// A rank that only waits gives the core to the next one; it returns when something arrives for it.
void Engine::yield_core(std::uint32_t rank) {
    if (shares_.empty())
        return;
    Rank &r = ranks_[rank];
    Share &share = shares_[rank];
    const bool waits = r.state == State::kWaiting || r.state == State::kProbing;
    if (!waits || cores_[share.core].holder != rank || share.busy > 0 || core_group(rank).ready.head == kNone)
        return;
    const Ps time = std::max(r.clock, now_);
    if (share.corunner != kNone && keeps_polling(rank, time))
        return;
    share.away = r.state;
    r.state = State::kOff;
    pass_core(share.core, time);
}

// Two ranks of a core. A fair scheduler runs the one first that has used less of it; when that one polls and yields it
// is passed over, unless the other is further ahead than `lead_ps`. So the other's polling makes up what one has used
// more before it continues.
bool Engine::polls(std::uint32_t rank) const {
    const State state = ranks_[rank].state;
    return state == State::kWaiting || state == State::kProbing || (state == State::kOff && !shares_[rank].queued);
}

// What neither computed, sent nor received in was spent polling: by the one that goes first, or by both in turn.
void Engine::share_polling(std::uint32_t rank, Ps time) {
    Share &own = shares_[rank], &other = shares_[own.corunner];
    Ps rest = time - own.used - other.used;
    if (rest <= 0)
        return;
    if (!polls(rank) || !polls(own.corunner)) {
        (polls(rank) ? own : other).used += rest;
        return;
    }
    Share &first = own.used < other.used ? own : other;
    const Ps alone = std::clamp(std::max(own.used, other.used) - machine_->lead_ps - first.used, Ps{0}, rest);
    first.used += alone;
    rest -= alone;
    own.used += rest / 2;
    other.used += rest - rest / 2;
}

// How much longer a rank that polls does so before its co-runner continues.
Ps Engine::behind(std::uint32_t rank) const {
    return polls(rank) ? std::max(shares_[shares_[rank].corunner].used - machine_->lead_ps - shares_[rank].used, Ps{0})
                       : 0;
}

// Whether the rank keeps the core, polling, though its co-runner wants it; it is notified when that ends.
bool Engine::keeps_polling(std::uint32_t rank, Ps time) {
    Share &share = shares_[rank];
    const bool over = time == share.polls_until;
    share_polling(rank, time);
    const Ps more = behind(rank);
    share.polls_until = kNever;
    if (over)
        share.used += more;
    if (over || more == 0)
        return false;
    share.polls_until = time + more;
    push(share.polls_until, EventKind::kCore, rank);
    return true;
}

// At the end of a slice: the co-runner has the core for as long as it is behind.
bool Engine::let_corunner_poll(std::uint32_t rank) {
    Share &share = shares_[rank], &corunner = shares_[share.corunner];
    const Ps time = ranks_[rank].clock;
    share_polling(rank, time);
    if (behind(share.corunner) == 0)
        return false;
    share.queued = true;
    append(core_group(rank).ready, shares_, rank);
    corunner.core = share.core;
    corunner.back_at = time + machine_->switch_ps;
    cores_[share.core].holder = share.corunner;
    cores_[share.core].slice_end = corunner.back_at + machine_->slice_ps;
    push(std::max(corunner.back_at, now_), EventKind::kCore, share.corunner);
    return true;
}

void Engine::pass_core(std::uint32_t at, Ps time) {
    Core &core = cores_[at];
    List &ready = core_groups_[core.group].ready;
    const std::uint32_t rank = ready.head;
    if (rank == kNone) {
        core.holder = kNone;
        core.free_at = time;
        return;
    }
    Share &share = shares_[rank];
    ready.head = share.next;
    share.queued = false;
    share.core = at;
    share.back_at = time + machine_->switch_ps;
    core.holder = rank;
    core.slice_end = share.back_at + machine_->slice_ps;
    push(std::max(share.back_at, now_), EventKind::kCore, rank);
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
    if (!shares_[rank].queued)
        push(std::max(time, now_), EventKind::kCore, rank);
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
