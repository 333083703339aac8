// Cores that a fair scheduler divides by what was used of them. Whoever has used least of its share runs first, whether
// it computes or polls: a rank that polls yields after each look, but is the next again until it has caught up
// (`pick_eevdf` in kernel/sched/fair.c; `yield_task_fair` gives way within a group of processes only).
#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nearmetal {

namespace {
constexpr double kLeastPs = 1000.0;       // less than this apart is equal
constexpr std::uint32_t kLookPurpose = 4; // of the random numbers that say when a rank looks outside its node
} // namespace

// One for all ranks of a domain on a core, as a kernel sees them that groups processes by session.
std::uint32_t Engine::add_entity(std::uint32_t core) {
    const auto index = static_cast<std::uint32_t>(entities_.size());
    entities_.emplace_back();
    cores_[core].entities.push_back(index);
    return index;
}

void Engine::join(std::uint32_t rank, std::uint32_t core, std::uint32_t entity) {
    Share &share = shares_[rank];
    if (share.entity != kNone)
        std::erase(entities_[share.entity].ranks, rank);
    Entity &joined = entities_[entity];
    if (joined.ranks.empty()) { // it comes with neither a claim nor a debt
        double all = 0.0;
        std::uint32_t others = 0;
        for (const std::uint32_t index : cores_[core].entities)
            if (!entities_[index].ranks.empty()) {
                all += entities_[index].used;
                ++others;
            }
        joined.used = others ? all / others : 0.0;
    }
    joined.ranks.push_back(rank);
    share.entity = entity;
    share.core = share.home = core;
}

// A rank that slept has neither a claim nor a debt.
void Engine::claim_nothing(std::uint32_t rank) {
    Entity &entity = entities_[shares_[rank].entity];
    for (const std::uint32_t index : cores_[shares_[rank].core].entities) {
        const Entity &other = entities_[index];
        const bool runs = std::any_of(other.ranks.begin(), other.ranks.end(), [this](std::uint32_t one) {
            return shares_[one].queued || cores_[shares_[one].core].holder == one;
        });
        if (runs && &other != &entity)
            entity.used = std::max(entity.used, other.used);
    }
}

// A rank that neither computes, sends nor receives, and does not sleep.
bool Engine::polls(std::uint32_t rank) const {
    const State state = ranks_[rank].state;
    return !machine_->blocking &&
           (state == State::kWaiting || state == State::kProbing || (state == State::kOff && !shares_[rank].queued));
}

bool Engine::only_polls(const Entity &entity) const {
    bool any = false;
    for (const std::uint32_t rank : entity.ranks) {
        if (ranks_[rank].state == State::kDone)
            continue;
        if (!polls(rank))
            return false;
        any = true;
    }
    return any;
}

void Engine::use(std::uint32_t rank, Ps time) {
    const Share &share = shares_[rank];
    if (share.entity == kNone)
        return;
    entities_[share.entity].used += static_cast<double>(time) / entities_[share.entity].weight;
    cores_[share.core].counted += time;
}

// How often a rank that polls looks for messages from outside its node; 0: always.
Ps Engine::look_period(std::uint32_t rank) const {
    if (shares_.empty() || shares_[rank].entity == kNone || machine_->blocking)
        return 0;
    Ps ranks = 0;
    for (const std::uint32_t index : cores_[shares_[rank].core].entities)
        for (const std::uint32_t one : entities_[index].ranks)
            ranks += ranks_[one].state != State::kDone;
    return ranks > 1 ? ranks * machine_->look_ps : 0;
}

// Something came for the rank from outside its node: while it computes it does not see it.
void Engine::come_unseen(std::uint32_t rank) {
    if (look_period(rank) > 0 && !polls(rank))
        shares_[rank].unseen = true;
}

Ps Engine::next_look(std::uint32_t rank, Ps time) const {
    const Ps period = look_period(rank), late = time - shares_[rank].look_at;
    return late <= 0 ? shares_[rank].look_at : time + (period - late % period) % period;
}

// Whether the rank, which begins to wait, does not see yet what came.
bool Engine::looks_first(std::uint32_t rank, std::uint32_t set) {
    if (shares_.empty())
        return false;
    Rank &r = ranks_[rank];
    Share &share = shares_[rank];
    const Ps period = look_period(rank), time = std::max(r.clock, now_);
    if (period > 0)
        share.look_at = time + static_cast<Ps>(static_cast<Wide>(period) * draw(rank, r.draws, kLookPurpose) >> 32);
    if (!std::exchange(share.unseen, false))
        return false;
    if (period > 0) {
        r.left = 1;
        r.computes_until = r.clock;
        r.wait_set = set;
        r.state = State::kWaiting;
        yield_core(rank);
        if (r.state == State::kOff) {
            push(share.look_at, EventKind::kCore, rank);
            return true;
        }
        r.state = State::kInCall; // it has the core to itself, and so looks often
    }
    enter(rank);
    return false;
}

// What nobody computed, sent or received in was spent polling: by those who had used least, until all have used alike.
void Engine::count_polling(std::uint32_t at, Ps time) {
    Core &core = cores_[at];
    if (time <= core.counted)
        return;
    auto rest = static_cast<double>(time - core.counted);
    core.counted = time;
    polling_.clear();
    for (const std::uint32_t index : core.entities)
        if (only_polls(entities_[index]))
            polling_.push_back(index);
    if (polling_.empty())
        return;
    std::sort(polling_.begin(), polling_.end(), [this](std::uint32_t a, std::uint32_t b) {
        return entities_[a].used < entities_[b].used || (entities_[a].used == entities_[b].used && a < b);
    });
    const double last = entities_[polling_.back()].used - lead();
    double weight = 0.0;
    for (std::size_t some = 1; some <= polling_.size() && rest > 0; ++some) {
        const double level = entities_[polling_[some - 1]].used;
        weight += entities_[polling_[some - 1]].weight;
        const double next = some < polling_.size() ? std::min(entities_[polling_[some]].used, last) : level;
        const double rise = some < polling_.size() ? std::clamp(next - level, 0.0, rest / weight) : rest / weight;
        for (std::size_t i = 0; i < some; ++i)
            entities_[polling_[i]].used += rise;
        rest -= rise * weight;
    }
}

// How long others poll before a rank of this entity has the core.
double Engine::behind(std::uint32_t entity) const {
    const double until = entities_[entity].used - lead();
    double time = 0.0;
    for (const std::uint32_t index : cores_[shares_[entities_[entity].ranks.front()].core].entities)
        if (index != entity && only_polls(entities_[index]))
            time += std::max(until - entities_[index].used, 0.0) * entities_[index].weight;
    return time < kLeastPs ? 0.0 : time;
}

// The rank that wants the core and has used least of it; of one entity's the one that has waited longest.
std::uint32_t Engine::next_ready(std::uint32_t at) const {
    std::uint32_t best = core_groups_[cores_[at].group].ready.head;
    if (best == kNone || shares_[best].entity == kNone)
        return best;
    for (std::uint32_t rank = shares_[best].next; rank != kNone; rank = shares_[rank].next)
        if (entities_[shares_[rank].entity].used < entities_[shares_[best].entity].used)
            best = rank;
    return best;
}

// The rank off its core that has used least of it, of those that poll.
std::uint32_t Engine::next_polling(std::uint32_t at) const {
    std::uint32_t best = kNone;
    for (const std::uint32_t index : cores_[at].entities) {
        const Entity &entity = entities_[index];
        if ((best != kNone && entity.used >= entities_[shares_[best].entity].used) || !only_polls(entity))
            continue;
        for (const std::uint32_t rank : entity.ranks)
            if (ranks_[rank].state == State::kOff)
                best = rank;
    }
    return best;
}

// Who has the core when the rank that has it polls: itself, another that polls and has used less, or one that wants it.
// It has the core to itself until another has used as little; then those that poll take turns.
std::uint32_t Engine::after_look(std::uint32_t rank, Ps time) {
    Share &share = shares_[rank];
    count_polling(share.core, time);
    const std::uint32_t next = next_ready(share.core), other = next_polling(share.core);
    const double more = next == kNone ? 0.0 : behind(shares_[next].entity);
    if (next != kNone && more == 0.0)
        return next;
    const double own = entities_[share.entity].used - lead();
    if (other != kNone && entities_[shares_[other].entity].used + kLeastPs < own)
        return other;
    const double alone = next != kNone ? more : other != kNone ? behind(shares_[other].entity) : 0.0;
    const Ps until = alone > 0.0 ? time + static_cast<Ps>(std::ceil(alone)) : 0;
    if (until > 0 && share.polls_until != until)
        push(until, EventKind::kCore, rank);
    share.polls_until = until;
    return rank;
}

// At the end of a slice: who has the core next.
std::uint32_t Engine::after_slice(std::uint32_t rank) {
    const Share &share = shares_[rank];
    count_polling(share.core, ranks_[rank].clock);
    const double own = entities_[share.entity].used;
    const std::uint32_t next = next_ready(share.core), other = next_polling(share.core);
    const double wants = next == kNone ? own : entities_[shares_[next].entity].used;
    const double polls = other == kNone ? own : entities_[shares_[other].entity].used;
    if (polls + kLeastPs < own - lead() && (next == kNone || polls < wants))
        return other;
    return next != kNone && (wants < own || shares_[next].entity == share.entity) ? next : rank;
}

} // namespace nearmetal
