// Ranks of several domains that share cores: nodes with namespaces of their own, or guests.
#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

namespace nearmetal {

namespace {
constexpr std::uint32_t kDivisionPurpose = 3; // of the random numbers that divide ranks anew
constexpr std::uint32_t kTogetherPurpose = 5; // of those that deal ranks to cores by domain
constexpr std::uint32_t kStartPurpose = 6;    // of those that say on which core a computer's first domain started
constexpr std::uint32_t kLeftPurpose = 16;    // of those for load that is left on cores
constexpr double kDraws = 4294967296.0;       // different random numbers
constexpr Ps kTurnPs = 100'000'000'000;       // a division of ranks lasts
constexpr std::uint32_t kLater = 3;           // how many times rarer uneven divisions are after the first
// How often a domain's ranks are dealt to as few cores as hold them. Of 203 launches of two ranks on each of two nodes,
// traced by the scheduler's events, they shared a core in 60 %; by chance they do in a third.
constexpr double kTogether = 0.4;

// A domain's ranks on the cores of a computer. Its weight is divided between cores by its load on each; what its other
// threads loaded a core with as they started counts, too (`calc_group_shares` in kernel/sched/fair.c).
struct Domain {
    std::vector<double> left; // by core, in ranks
    std::vector<std::uint32_t> ranks_on;

    [[nodiscard]] double weight(std::uint32_t core) const {
        double all = 0.0;
        for (std::size_t at = 0; at < left.size(); ++at)
            all += left[at] + ranks_on[at];
        return (left[core] + ranks_on[core]) / all;
    }
};
} // namespace

// A kernel shares a core evenly between its guests, whose ranks use their guest's share up when they poll: each domain
// has a core of its own, as many times slower as there are. Which ranks share one is drawn again in each replica.
void Engine::split_by_domain(const std::vector<std::uint32_t> &ranks) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> own; // (core, domain) -> core group
    std::vector<std::uint32_t> domains(machine_->cores), at_core(ranks.size());
    for (std::size_t i = 0; i < ranks.size(); ++i)
        at_core[i] = static_cast<std::uint32_t>(i % machine_->cores);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        const std::uint32_t at = at_core[i];
        const auto [found, is_new] =
            own.try_emplace({at, places_[ranks[i]].domain}, static_cast<std::uint32_t>(core_groups_.size()));
        if (is_new) {
            add_core_group(1);
            ++domains[at];
        }
        shares_[ranks[i]].core = core_groups_[found->second].first;
    }
    for (std::size_t i = 0; i < ranks.size(); ++i)
        shares_[ranks[i]].slow = domains[at_core[i]];
}

// Ranks that yield to others: each domain's on one core are an entity there. With equally many ranks on each core there
// is nothing to balance, so which ranks share one is drawn again in each replica; often those of a domain do. The
// kernel is slow to balance one rank too many: for a part of the time a core has one (`divide`).
void Engine::divide_by_domain(const std::vector<std::uint32_t> &ranks) {
    const auto number = static_cast<std::uint32_t>(divisions_.size());
    Division division{.ranks = ranks,
                      .first_core = static_cast<std::uint32_t>(cores_.size()),
                      .first_entity = static_cast<std::uint32_t>(entities_.size())};
    for (const std::uint32_t rank : ranks)
        division.domains.push_back(places_[rank].domain);
    std::sort(division.domains.begin(), division.domains.end());
    division.domains.erase(std::unique(division.domains.begin(), division.domains.end()), division.domains.end());
    for (std::uint32_t core = 0; core < machine_->cores; ++core) {
        add_core_group(1);
        for (std::size_t i = 0; i < division.domains.size(); ++i)
            add_entity(division.first_core + core);
    }
    if (philox({number, 0, replica_, kTogetherPurpose}, seed_)[0] < kTogether * kDraws) {
        std::vector<std::uint32_t> sorted = ranks;
        std::stable_sort(sorted.begin(), sorted.end(), [this](std::uint32_t a, std::uint32_t b) {
            return places_[a].domain < places_[b].domain;
        });
        for (std::size_t i = 0; i < sorted.size(); ++i)
            shares_[sorted[i]].dealt = static_cast<std::uint32_t>(i * machine_->cores / sorted.size());
    } else {
        for (std::size_t i = 0; i < ranks.size(); ++i)
            shares_[ranks[i]].dealt = static_cast<std::uint32_t>(i % machine_->cores);
    }
    divisions_.push_back(std::move(division));
    divide(divisions_.back(), number, 0);
    for (const std::uint32_t rank : ranks) {
        join(rank, shares_[rank].home, entity_at(divisions_.back(), rank));
        if (machine_->cores > 1 && machine_->uneven_share > 0)
            shares_[rank].division = number;
    }
}

std::uint32_t Engine::entity_at(const Division &division, std::uint32_t rank) const {
    const auto &domains = division.domains;
    const auto domain = std::lower_bound(domains.begin(), domains.end(), places_[rank].domain) - domains.begin();
    const auto each = static_cast<std::uint32_t>(domains.size()), core = shares_[rank].home - division.first_core;
    return division.first_entity + core * each + static_cast<std::uint32_t>(domain);
}

// Divide a computer's ranks anew: as they were dealt, or with one on another core. A core is divided between domains by
// their weights. Ranks that only poll follow at once, the others when they next compute.
void Engine::divide(Division &division, std::uint32_t index, std::uint32_t turn) {
    const auto count = static_cast<std::uint32_t>(division.ranks.size());
    const auto words = philox({index, turn, replica_, kDivisionPurpose}, seed_);
    const bool even = machine_->cores == 1 || words[0] >= machine_->uneven_share * kDraws / (turn == 0 ? 1 : kLater);
    const std::uint32_t moved = even ? kNone : words[1] % count;
    std::map<std::uint32_t, Domain> domains;
    std::uint32_t start = philox({index, 0, replica_, kStartPurpose}, seed_)[0] % machine_->cores;
    for (const std::uint32_t at : division.domains) {
        Domain &domain = domains[at];
        domain.left.resize(machine_->cores);
        domain.ranks_on.resize(machine_->cores);
        // Domains start side by side, so each on another core. With up to one rank's load left there, two domains'
        // ranks on a core share it as in 59 launches: 1.2 to 1.8 times as much for one in half of them, median 1.5.
        if (machine_->uneven_share > 0 && turn == 0)
            domain.left[start++ % machine_->cores] = philox({index, at, replica_, kLeftPurpose}, seed_)[0] / kDraws;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
        Share &share = shares_[division.ranks[i]];
        const std::uint32_t other = i == moved ? words[2] % (machine_->cores - 1) : 0;
        share.home = i == moved ? other + (other >= share.dealt) : share.dealt;
        ++domains[places_[division.ranks[i]].domain].ranks_on[share.home];
        share.home += division.first_core;
    }
    for (std::uint32_t core = 0, entity = division.first_entity; core < machine_->cores; ++core)
        for (const auto &[at, domain] : domains) {
            if (domain.ranks_on[core] > 0) // a rank that has not left yet keeps the weight that it had
                entities_[entity].weight = domain.weight(core);
            ++entity;
        }
    division.turn = turn;
    for (const std::uint32_t rank : division.ranks)
        if (ranks_[rank].state == State::kOff && !shares_[rank].queued && cores_[shares_[rank].core].holder != rank)
            join(rank, shares_[rank].home, entity_at(division, rank));
}

// Let a rank run where the division of its computer's ranks has it now; false when it had a core and has to wait for
// one.
bool Engine::follow_division(std::uint32_t rank) {
    Share &share = shares_[rank];
    if (share.division == kNone)
        return true;
    Division &division = divisions_[share.division];
    const Ps time = std::max(ranks_[rank].clock, now_);
    if (const auto turn = static_cast<std::uint32_t>(time / kTurnPs); turn != division.turn)
        divide(division, share.division, turn);
    if (share.home == share.core)
        return true;
    count_polling(share.core, time);
    const std::uint32_t left = share.core;
    join(rank, share.home, entity_at(division, rank));
    if (cores_[left].holder != rank)
        return true;
    pass_core(left, time);
    return take_core(rank);
}

// Where ranks cannot be divided evenly the kernel balances: every domain gets an even share of all cores, but no more
// than its ranks can use; the others get the rest.
void Engine::share_fairly(const std::vector<std::uint32_t> &ranks) {
    std::map<std::uint32_t, std::uint32_t> size;
    for (const std::uint32_t rank : ranks)
        ++size[places_[rank].domain];
    std::vector<std::pair<std::uint32_t, std::uint32_t>> by_size; // (ranks, domain)
    for (const auto &[at, count] : size)
        by_size.emplace_back(count, at);
    std::sort(by_size.begin(), by_size.end());
    std::uint32_t cores = machine_->cores, domains = static_cast<std::uint32_t>(by_size.size());
    std::map<std::uint32_t, std::pair<std::uint32_t, std::uint32_t>> times; // domain -> (slow, fast)
    for (const auto &[count, at] : by_size) {
        if (count * domains <= cores) { // it needs less than an even share
            times[at] = {1, 1};
            cores -= count;
            --domains;
        } else {
            times[at] = {domains * count, cores};
        }
    }
    for (const std::uint32_t rank : ranks) {
        add_core_group(1);
        Share &share = shares_[rank];
        share.core = core_groups_.back().first;
        std::tie(share.slow, share.fast) = times[places_[rank].domain];
    }
}

} // namespace nearmetal
