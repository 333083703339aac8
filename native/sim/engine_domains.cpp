// Ranks of several domains that share cores: nodes with namespaces of their own, or guests.
#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

namespace nearmetal {

namespace {
constexpr std::uint32_t kDivisionPurpose = 3;  // of the random numbers that divide ranks anew
constexpr std::uint32_t kLeftPurpose = 16;     // of those that leave load on cores, and one more for each domain
constexpr double kDraws = 4294967296.0;        // different random numbers
constexpr Ps kTurnPs = 50'000'000'000;         // what starting left counts as long: it halves every 32 ms (pelt.c)
constexpr std::uint32_t kTurns = 2;            // that a division of ranks lasts
constexpr std::uint32_t kLater = 3;            // how many times rarer uneven divisions are after the first
constexpr double kLeft = 2.0;                  // what starting left of a domain's load on one core, in ranks
constexpr double kLeftShare = 0.4;             // of domains that it left some of
constexpr std::uint32_t kMostTurns = 2000;     // of one computing time

// A domain's ranks on the cores of a computer. Its weight is divided between cores by its load on each; what its programs
// loaded a core with as they started still counts for a while (`calc_group_shares` in kernel/sched/fair.c).
struct Domain {
    struct OnCore {
        std::uint32_t ranks = 0, dealt = 0; // of which so many were dealt to the core
    };
    std::map<std::uint32_t, OnCore> cores;
    std::uint32_t ranks = 0, left_on = kNone;

    void add(std::uint32_t core, bool dealt) {
        ++ranks;
        ++cores[core].ranks;
        cores[core].dealt += dealt ? 1 : 0;
    }
    [[nodiscard]] double weight(std::uint32_t core) const {
        const double left = left_on == kNone ? 0.0 : kLeft;
        return (cores.at(core).ranks + (left_on == core ? left : 0.0)) / (ranks + left);
    }
};
} // namespace

// A kernel shares a core evenly between its guests, and one that groups processes by session between those: between
// domains. A rank that polls uses its domain's share up. With equally many ranks on each core there is nothing to
// balance, so which ranks share one is drawn again in each replica; each domain has a core of its own there, as many
// times slower as there are. It is slow to balance one rank too many: for a part of the time a core has one (`divide`).
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
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        shares_[ranks[i]].slow = domains[at_core[i]];
        shares_[ranks[i]].dealt = at_core[i];
    }
    if (machine_->cores == 1 || machine_->uneven_share <= 0)
        return;
    for (std::uint32_t i = 0; i < ranks.size(); ++i) {
        shares_[ranks[i]].division = static_cast<std::uint32_t>(divisions_.size());
        shares_[ranks[i]].member = i;
    }
    divisions_.push_back({.ranks = ranks, .times = std::vector<double>(ranks.size())});
}

// Divide a computer's ranks anew: as they were dealt, or with one on another core. A core is divided between domains by
// their weights, and a domain's part between its ranks there; those that were dealt to one core take turns anyway.
void Engine::divide(Division &division, std::uint32_t index, std::uint32_t turn) const {
    const auto count = static_cast<std::uint32_t>(division.ranks.size());
    const auto words = philox({index, turn / kTurns, replica_, kDivisionPurpose}, seed_);
    const bool even = words[0] >= machine_->uneven_share * kDraws / (turn < kTurns ? 1 : kLater);
    const std::uint32_t moved = even ? kNone : words[1] % count;
    std::vector<std::uint32_t> at_core(count);
    std::map<std::uint32_t, Domain> domains;
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t dealt = shares_[division.ranks[i]].dealt, other = words[2] % (machine_->cores - 1);
        at_core[i] = i == moved ? other + (other >= dealt) : dealt;
        domains[places_[division.ranks[i]].domain].add(at_core[i], i != moved);
    }
    std::vector<double> weights(machine_->cores);
    for (auto &[number, domain] : domains) {
        const auto draws = philox({index, turn, replica_, kLeftPurpose + number}, seed_);
        if (turn == 0 && draws[0] < kLeftShare * kDraws)
            domain.left_on = draws[1] % machine_->cores;
        for (const auto &[core, on_core] : domain.cores)
            weights[core] += domain.weight(core);
    }
    division.turn = turn;
    for (std::uint32_t i = 0; i < count; ++i) {
        const Domain &domain = domains.at(places_[division.ranks[i]].domain);
        const Domain::OnCore &here = domain.cores.at(at_core[i]);
        division.times[i] = weights[at_core[i]] / domain.weight(at_core[i]) * here.ranks / (i == moved ? 1 : here.dealt);
    }
}

// How long work of `time` takes a rank from now on, which may share its core with ranks of other domains.
Ps Engine::shared_time(std::uint32_t rank, Ps time) {
    const Share &share = shares_[rank];
    Ps left = time;
    if (share.division == kNone) {
        if (__builtin_mul_overflow(time, share.slow, &left))
            return kLongest;
        return left / share.fast;
    }
    Division &division = divisions_[share.division];
    const Ps begin = std::max(ranks_[rank].clock, now_);
    Ps at = begin;
    for (std::uint32_t turns = 0; turns < kMostTurns && left > 0; ++turns) { // beyond that they even out
        const Ps turn = at / kTurnPs, end = (turn + 1) * kTurnPs;
        if (division.turn != static_cast<std::uint32_t>(turn))
            divide(division, share.division, static_cast<std::uint32_t>(turn));
        const double times = division.times[share.member];
        if (const auto needs = static_cast<double>(left) * times; needs <= static_cast<double>(end - at))
            return at - begin + static_cast<Ps>(std::llround(needs));
        left -= static_cast<Ps>(static_cast<double>(end - at) / times);
        at = end;
    }
    return __builtin_mul_overflow(left, share.slow, &left) ? kLongest : at - begin + left;
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
