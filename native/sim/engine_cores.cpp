// Ranks that share cores. Each core serves its ranks first come, first served: a rank that computes keeps its core for
// a time slice, a rank that waits keeps it only as long as nobody else wants it. This is what a fair scheduler makes of
// ranks that poll and yield. Which ranks share a core is drawn anew in each replica, as a kernel places them anew in
// each launch.
#include "engine.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace nearmetal {

namespace {
constexpr std::uint32_t kDealPurpose = 2; // of the random numbers that place ranks on cores
} // namespace

// Deal the ranks of each computer out to its cores, in random order; nothing is to do where cores are enough.
void Engine::deal_cores() {
    if (machine_->cores == 0)
        return;
    std::vector<std::vector<std::uint32_t>> computers;
    bool crowded = false;
    for (std::uint32_t rank = 0; rank < job_->ranks; ++rank) {
        const std::uint32_t at = machine_->one_computer ? 0 : host(rank);
        if (at >= computers.size())
            computers.resize(at + 1);
        computers[at].push_back(rank);
        crowded = crowded || computers[at].size() > machine_->cores;
    }
    if (!crowded)
        return;
    shares_.resize(job_->ranks);
    cores_.resize(computers.size() * machine_->cores);
    std::uint32_t draws = 0, first = 0;
    for (std::vector<std::uint32_t> &ranks : computers) {
        for (std::size_t i = ranks.size(); i > 1; --i) // Fisher and Yates
            std::swap(ranks[i - 1], ranks[draw(0, draws, kDealPurpose) % i]);
        for (std::size_t i = 0; i < ranks.size(); ++i)
            shares_[ranks[i]].core = first + static_cast<std::uint32_t>(i % machine_->cores);
        first += machine_->cores;
    }
    if (machine_->share_by_host)
        split_cores();
}

// A kernel that groups processes by session shares a core evenly between hosts that are sessions of one machine, and a
// rank that polls uses its host's share up: each host has a core of its own there, as many times slower as there are.
void Engine::split_cores() {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> own;
    std::vector<std::uint32_t> hosts(cores_.size());
    for (std::uint32_t rank = 0; rank < job_->ranks; ++rank)
        if (own.try_emplace({shares_[rank].core, host(rank)}, static_cast<std::uint32_t>(own.size())).second)
            ++hosts[shares_[rank].core];
    for (std::uint32_t rank = 0; rank < job_->ranks; ++rank) {
        shares_[rank].slowdown = hosts[shares_[rank].core];
        shares_[rank].core = own.at({shares_[rank].core, host(rank)});
    }
    cores_.assign(own.size(), {});
}

// Whether the rank has its core now; else it is told when it gets it.
bool Engine::take_core(std::uint32_t rank) {
    Share &share = shares_[rank];
    Rank &r = ranks_[rank];
    Core &core = cores_[share.core];
    if (core.holder == rank)
        return true;
    if (core.holder == kNone) {
        core.holder = rank;
        if (core.free_at > r.clock) // whoever had it is ahead of the global clock
            r.clock = core.free_at + machine_->switch_ps;
        core.slice_end = r.clock + machine_->slice_ps;
        return true;
    }
    share.queued = true;
    append(core.ready, shares_, rank);
    give_way(core.holder);
    return false;
}

// Go on with what is left of a gap; false when the rank has to wait for its core or for the end of its slice.
bool Engine::compute(std::uint32_t rank) {
    Share &share = shares_[rank];
    Rank &r = ranks_[rank];
    Core &core = cores_[share.core];
    if (share.rest == 0)
        return true;
    if (core.slice_end <= r.clock) {
        if (core.ready.head != kNone) {
            share.queued = true;
            append(core.ready, shares_, rank);
            hand_on(core, r.clock);
            return false;
        }
        core.slice_end = r.clock + machine_->slice_ps;
    }
    const Ps now = std::min(share.rest, core.slice_end - r.clock);
    r.clock += now;
    share.rest -= now;
    if (share.rest == 0)
        return true;
    push(r.clock, EventKind::kRank, rank);
    return false;
}

// A rank that only waits lets the next one have the core; it is back when something comes for it.
void Engine::give_way(std::uint32_t rank) {
    if (shares_.empty())
        return;
    Rank &r = ranks_[rank];
    Share &share = shares_[rank];
    Core &core = cores_[share.core];
    const bool waits = r.state == State::kWaiting || r.state == State::kProbing;
    if (!waits || core.holder != rank || share.busy > 0 || core.ready.head == kNone)
        return;
    share.away = r.state;
    r.state = State::kOff;
    hand_on(core, std::max(r.clock, now_));
}

void Engine::hand_on(Core &core, Ps time) {
    const std::uint32_t rank = core.ready.head;
    if (rank == kNone) {
        core.holder = kNone;
        core.free_at = time;
        return;
    }
    Share &share = shares_[rank];
    core.ready.head = share.next;
    share.queued = false;
    share.back_at = time + machine_->switch_ps;
    core.holder = rank;
    core.slice_end = share.back_at + machine_->slice_ps;
    push(std::max(share.back_at, now_), EventKind::kCore, rank);
}

// The program of a rank is over.
void Engine::leave_core(std::uint32_t rank) {
    if (!shares_.empty())
        hand_on(cores_[shares_[rank].core], std::max(ranks_[rank].clock, now_));
}

// Something came for a rank: when it is off its core it wants it back.
void Engine::wake(std::uint32_t rank, Ps time) {
    if (ranks_[rank].state != State::kOff)
        return;
    Core &core = cores_[shares_[rank].core];
    if (!shares_[rank].queued)
        push(std::max(time, now_), EventKind::kCore, rank);
    else if (core.holder != kNone)
        give_way(core.holder);
}

void Engine::core_due(std::uint32_t rank) {
    Share &share = shares_[rank];
    Rank &r = ranks_[rank];
    Core &core = cores_[share.core];
    const bool holds = core.holder == rank;
    if (holds ? now_ >= share.back_at : r.state == State::kOff && !share.queued && take_core(rank))
        come_back(rank);
}

// The rank has its core again: it looks at what came meanwhile, or goes on computing.
void Engine::come_back(std::uint32_t rank) {
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

// A collective of the rank goes on at `time`: until then the rank keeps its core.
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
    give_way(rank);
}

} // namespace nearmetal
