// Decision rules: ompi/mca/coll/tuned (fixed decisions) and MPICH's src/mpi/coll, simplified where said.
// Algorithms: Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005);
// Bruck et al. (1997) for the logarithmic all-to-all.
#include "collective.hpp"

#include <algorithm>
#include <bit>

namespace nearmetal {

namespace {

constexpr std::uint64_t kChainSegment = 128 * 1024;

std::uint32_t rounds_log2(std::uint32_t size) {
    return size <= 1 ? 0 : static_cast<std::uint32_t>(std::bit_width(size - 1));
}
std::int32_t as_rank(std::uint64_t rank) { return static_cast<std::int32_t>(rank); }
std::uint64_t block_of(std::uint64_t bytes, std::uint32_t size) { return (bytes + size - 1) / size; }

// Of fewer than so many ranks, with fewer than so many bytes: the first row that holds.
struct Rule {
    std::uint32_t ranks;
    std::uint64_t bytes;
    Algorithm algorithm;
};
constexpr std::uint32_t kAnyRanks = ~std::uint32_t{0};
constexpr std::uint64_t kAnyBytes = ~std::uint64_t{0}, kKi = 1024;

// As Open MPI chooses since 4.1 (pull requests 7730 and 7952), earlier versions by other rules. Algorithms that are not
// played stand as the nearest that is: linear_sync, which sends all at once unless told a limit, as linear; trees of
// other widths as binomial; neighbour exchange and segmented rings as rings; a ring of fewer elements than ranks, and a
// reduction with a broadcast behind it, as recursive doubling.
constexpr Rule kAlltoallRules[] = {
    {3, kAnyBytes, Algorithm::kPairwiseAlltoall},      {8, 512 * kKi, Algorithm::kLinearAlltoall},
    {8, 1024 * kKi, Algorithm::kPairwiseAlltoall},     {16, kAnyBytes, Algorithm::kLinearAlltoall},
    {32, 4, Algorithm::kLinearAlltoall},               {64, 512, Algorithm::kBruckAlltoall},
    {64, kAnyBytes, Algorithm::kLinearAlltoall},       {512, kKi, Algorithm::kBruckAlltoall},
    {1024, 512, Algorithm::kBruckAlltoall},            {256, 256 * kKi, Algorithm::kLinearAlltoall},
    {512, 32 * kKi, Algorithm::kLinearAlltoall},       {512, kAnyBytes, Algorithm::kPairwiseAlltoall},
    {1024, 256 * kKi, Algorithm::kLinearAlltoall},     {1024, kAnyBytes, Algorithm::kPairwiseAlltoall},
    {2048, 512, Algorithm::kBruckAlltoall},            {2048, kAnyBytes, Algorithm::kLinearAlltoall},
    {4096, kKi, Algorithm::kBruckAlltoall},            {4096, kAnyBytes, Algorithm::kLinearAlltoall},
    {kAnyRanks, 2 * kKi, Algorithm::kBruckAlltoall},   {kAnyRanks, kAnyBytes, Algorithm::kLinearAlltoall},
};
constexpr Rule kAlltoallvRules[] = {
    {4, kAnyBytes, Algorithm::kPairwiseAlltoall},    {64, kAnyBytes, Algorithm::kLinearAlltoall},
    {128, kAnyBytes, Algorithm::kPairwiseAlltoall},  {256, kAnyBytes, Algorithm::kLinearAlltoall},
    {1024, kAnyBytes, Algorithm::kPairwiseAlltoall}, {kAnyRanks, kAnyBytes, Algorithm::kLinearAlltoall},
};
constexpr Rule kAllreduceRules[] = {
    {4, 4 * kKi, Algorithm::kRecursiveDoublingAllreduce},
    {4, 8 * kKi, Algorithm::kRingAllreduce},
    {4, 16 * kKi, Algorithm::kRecursiveDoublingAllreduce},
    {4, 256 * kKi, Algorithm::kRingAllreduce},
    {16, 8 * kKi, Algorithm::kRecursiveDoublingAllreduce},
    {32, 4 * kKi, Algorithm::kRecursiveDoublingAllreduce},
    {64, 128, Algorithm::kRecursiveDoublingAllreduce},
    {64, kAnyBytes, Algorithm::kRabenseifnerAllreduce},
    {256, 256 * kKi, Algorithm::kRecursiveDoublingAllreduce},
    {512, 4 * kKi, Algorithm::kRecursiveDoublingAllreduce},
    {512, kAnyBytes, Algorithm::kRabenseifnerAllreduce},
    {2048, 16 * kKi, Algorithm::kRecursiveDoublingAllreduce},
    {2048, kAnyBytes, Algorithm::kRabenseifnerAllreduce},
    {kAnyRanks, 2 * kKi, Algorithm::kRecursiveDoublingAllreduce},
    {4096, 4 * kKi, Algorithm::kRingAllreduce},
    {4096, 16 * kKi, Algorithm::kRecursiveDoublingAllreduce},
    {4096, kAnyBytes, Algorithm::kRabenseifnerAllreduce},
    {kAnyRanks, 16 * kKi, Algorithm::kRingAllreduce},
    {kAnyRanks, 32 * kKi, Algorithm::kRecursiveDoublingAllreduce},
    {kAnyRanks, kAnyBytes, Algorithm::kRabenseifnerAllreduce},
};
constexpr Rule kAllgatherRules[] = {
    {32, kAnyBytes, Algorithm::kRecursiveDoublingAllgather}, {64, kKi, Algorithm::kRecursiveDoublingAllgather},
    {256, 512, Algorithm::kRecursiveDoublingAllgather},      {256, kAnyBytes, Algorithm::kRingAllgather},
    {512, kKi, Algorithm::kRecursiveDoublingAllgather},      {512, kAnyBytes, Algorithm::kRingAllgather},
    {1024, 2 * kKi, Algorithm::kRecursiveDoublingAllgather}, {1024, kAnyBytes, Algorithm::kRingAllgather},
    {kAnyRanks, 4 * kKi, Algorithm::kRecursiveDoublingAllgather}, {kAnyRanks, kAnyBytes, Algorithm::kRingAllgather},
};
constexpr Rule kBcastRules[] = {
    {4, kKi, Algorithm::kBinomialBcast},
    {4, 32 * kKi, Algorithm::kLinearBcast},
    {4, 128 * kKi, Algorithm::kBinomialBcast},
    {4, 256 * kKi, Algorithm::kChainBcast},
    {4, 512 * kKi, Algorithm::kLinearBcast},
    {4, kAnyBytes, Algorithm::kBinomialBcast},
    {8, 8 * kKi, Algorithm::kBinomialBcast},
    {8, 1024 * kKi, Algorithm::kLinearBcast},
    {8, kAnyBytes, Algorithm::kChainBcast},
    {16, 32 * kKi, Algorithm::kBinomialBcast},
    {16, kAnyBytes, Algorithm::kLinearBcast},
    {32, 1024 * kKi, Algorithm::kBinomialBcast},
    {32, kAnyBytes, Algorithm::kScatterAllgatherBcast},
    {1024, kAnyBytes, Algorithm::kBinomialBcast},
    {2048, 512 * kKi, Algorithm::kBinomialBcast},
    {kAnyRanks, 256 * kKi, Algorithm::kBinomialBcast},
    {kAnyRanks, kAnyBytes, Algorithm::kScatterAllgatherBcast},
};

template <std::size_t kRows>
Algorithm by_rules(const Rule (&rules)[kRows], std::uint32_t size, std::uint64_t bytes) {
    for (const Rule &rule : rules)
        if (size < rule.ranks && bytes < rule.bytes)
            return rule.algorithm;
    return rules[kRows - 1].algorithm;
}

Algorithm choose_openmpi(Collective collective, std::uint32_t size, std::uint64_t bytes, bool vector) {
    switch (collective) {
    case Collective::kBarrier:
        return size >= 4 && size < 8 ? Algorithm::kLinearBarrier : Algorithm::kDissemination;
    case Collective::kBcast:
        return by_rules(kBcastRules, size, bytes);
    case Collective::kReduce:
        return Algorithm::kBinomialReduce;
    case Collective::kAllreduce:
        return by_rules(kAllreduceRules, size, bytes);
    case Collective::kGather:
        return !vector && bytes < 6000 ? Algorithm::kBinomialGather : Algorithm::kLinearGather;
    case Collective::kScatter:
        return !vector && bytes < 300 && size > 10 ? Algorithm::kBinomialScatter : Algorithm::kLinearScatter;
    case Collective::kAllgather: {
        const Algorithm chosen = vector ? Algorithm::kRingAllgather : by_rules(kAllgatherRules, size, bytes);
        const bool doubling = chosen == Algorithm::kRecursiveDoublingAllgather;
        return doubling && !std::has_single_bit(size) ? Algorithm::kBruckAllgather : chosen;
    }
    case Collective::kAlltoall:
        return vector ? by_rules(kAlltoallvRules, size, bytes) : by_rules(kAlltoallRules, size, bytes);
    case Collective::kReduceScatter:
        return Algorithm::kRingReduceScatter;
    case Collective::kScan:
    case Collective::kExscan:
        return Algorithm::kLinearScan;
    case Collective::kNeighborAllgather:
    case Collective::kNeighborAlltoall:
        return Algorithm::kNeighbors;
    }
    return Algorithm::kDissemination;
}

Algorithm choose_mpich(Collective collective, std::uint32_t size, std::uint64_t bytes, bool vector) {
    const bool power = std::has_single_bit(size);
    switch (collective) {
    case Collective::kBarrier:
        return Algorithm::kDissemination;
    case Collective::kBcast:
        return bytes < 12288 || size < 8 ? Algorithm::kBinomialBcast : Algorithm::kScatterAllgatherBcast;
    case Collective::kAllreduce:
        return bytes <= 2048 ? Algorithm::kRecursiveDoublingAllreduce : Algorithm::kRabenseifnerAllreduce;
    case Collective::kGather:
        return vector ? Algorithm::kLinearGather : Algorithm::kBinomialGather;
    case Collective::kScatter:
        return vector ? Algorithm::kLinearScatter : Algorithm::kBinomialScatter;
    case Collective::kAllgather:
        if (vector || bytes * size >= 524288 || (!power && bytes * size >= 81920))
            return Algorithm::kRingAllgather;
        return power ? Algorithm::kRecursiveDoublingAllgather : Algorithm::kBruckAllgather;
    case Collective::kAlltoall:
        if (!vector && bytes <= 256 && size >= 8)
            return Algorithm::kBruckAlltoall;
        return vector || bytes <= 32768 ? Algorithm::kLinearAlltoall : Algorithm::kPairwiseAlltoall;
    case Collective::kScan:
    case Collective::kExscan:
        return Algorithm::kRecursiveDoublingScan;
    default:
        return choose_openmpi(collective, size, bytes, vector);
    }
}

// Ranks beyond the largest power of two hand their part to a neighbour first and get the result at the end.
struct Folded {
    std::uint32_t power, rest, log2; // largest power of two, ranks beyond it
    std::int32_t rank;               // rank among the power of two, or kAny for those that wait
    Folded(std::uint32_t size, std::uint32_t me)
        : power(std::bit_floor(size)), rest(size - power), log2(rounds_log2(power)),
          rank(me >= 2 * rest ? as_rank(me - rest)
               : me % 2       ? as_rank(me / 2)
                              : kAny) {}
    [[nodiscard]] std::int32_t original(std::uint32_t folded) const {
        return as_rank(folded < rest ? 2 * folded + 1 : folded + rest);
    }
};

Round fold_first(const CollectiveCall &c, const Folded &f) {
    if (c.rank >= 2 * f.rest)
        return {};
    if (c.rank % 2)
        return {.recv_from = as_rank(c.rank - 1), .reduce_bytes = c.bytes};
    return {.send_to = as_rank(c.rank + 1), .send_bytes = c.bytes};
}

Round fold_last(const CollectiveCall &c, const Folded &f) {
    if (c.rank >= 2 * f.rest)
        return {};
    if (c.rank % 2)
        return {.send_to = as_rank(c.rank - 1), .send_bytes = c.bytes};
    return {.recv_from = as_rank(c.rank + 1)};
}

Round recursive_doubling_allreduce(const CollectiveCall &c, std::uint32_t round) {
    const Folded f(c.size, c.rank);
    if (round == 0)
        return fold_first(c, f);
    if (round == f.log2 + 1)
        return fold_last(c, f);
    if (round > f.log2 + 1)
        return {.last = true};
    if (f.rank == kAny)
        return {};
    const std::int32_t partner = f.original(static_cast<std::uint32_t>(f.rank) ^ (1u << (round - 1)));
    return {.send_to = partner, .recv_from = partner, .send_bytes = c.bytes, .reduce_bytes = c.bytes};
}

Round rabenseifner_allreduce(const CollectiveCall &c, std::uint32_t round) {
    const Folded f(c.size, c.rank);
    if (round == 0)
        return fold_first(c, f);
    if (round == 2 * f.log2 + 1)
        return fold_last(c, f);
    if (round > 2 * f.log2 + 1)
        return {.last = true};
    if (f.rank == kAny)
        return {};
    const bool scatter = round <= f.log2;
    const std::uint32_t step = scatter ? round - 1 : 2 * f.log2 - round; // bit that the partners differ in
    const std::uint64_t bytes = block_of(c.bytes, 2u << step);
    const std::uint32_t bit = f.power >> 1 >> step;
    const std::int32_t partner = f.original(static_cast<std::uint32_t>(f.rank) ^ bit);
    return {.send_to = partner, .recv_from = partner, .send_bytes = bytes, .reduce_bytes = scatter ? bytes : 0};
}

Round ring(const CollectiveCall &c, std::uint32_t round, std::uint32_t rounds, std::uint64_t bytes, bool reduce) {
    if (round >= rounds)
        return {.last = true};
    return {.send_to = as_rank((c.rank + 1) % c.size),
            .recv_from = as_rank((c.rank + c.size - 1) % c.size),
            .send_bytes = bytes,
            .reduce_bytes = reduce ? bytes : 0};
}

// A tree over ranks counted from the root. Down: the widest distance first. Up: the narrowest first.
// `block` > 0: each edge carries that much for every rank of the subtree below it, else `c.bytes`.
Round binomial(const CollectiveCall &c, std::uint32_t round, bool down, std::uint64_t block, bool reduce) {
    const std::uint32_t rounds = rounds_log2(c.size);
    if (round >= rounds)
        return {.last = true};
    const std::uint32_t width = 1u << (down ? rounds - 1 - round : round);
    const std::uint32_t me = (c.rank + c.size - c.root) % c.size, within = me % (2 * width);
    const auto real = [&](std::uint32_t relative) { return as_rank((relative + c.root) % c.size); };
    const auto volume = [&](std::uint32_t child) { return block ? block * std::min(width, c.size - child) : c.bytes; };
    if (within == width) { // a child: its parent is `width` below
        if (down)
            return {.recv_from = real(me - width)};
        return {.send_to = real(me - width), .send_bytes = volume(me)};
    }
    if (within != 0 || me + width >= c.size)
        return {};
    if (down)
        return {.send_to = real(me + width), .send_bytes = volume(me + width)};
    return {.recv_from = real(me + width), .reduce_bytes = reduce ? c.bytes : 0};
}

Round scatter_allgather(const CollectiveCall &c, std::uint32_t round) {
    const std::uint32_t scatter = rounds_log2(c.size);
    const std::uint64_t block = block_of(c.bytes, c.size);
    if (round < scatter)
        return binomial(c, round, true, std::max<std::uint64_t>(block, 1), false);
    return ring(c, round - scatter, c.size - 1, block, false);
}

Round chain(const CollectiveCall &c, std::uint32_t round) {
    const auto segments = static_cast<std::uint32_t>((c.bytes + kChainSegment - 1) / kChainSegment);
    const std::uint32_t me = (c.rank + c.size - c.root) % c.size;
    if (round > segments)
        return {.last = true};
    Round r;
    if (me > 0 && round < segments)
        r.recv_from = as_rank((c.rank + c.size - 1) % c.size);
    if (me + 1 < c.size && round > 0) {
        r.send_to = as_rank((c.rank + 1) % c.size);
        r.send_bytes = std::min(kChainSegment, c.bytes - (round - 1) * kChainSegment);
    }
    return r;
}

Round bruck_allgather(const CollectiveCall &c, std::uint32_t round) {
    const std::uint64_t distance = std::uint64_t{1} << round;
    if (distance >= c.size)
        return {.last = true};
    return {.send_to = as_rank((c.rank + c.size - distance) % c.size),
            .recv_from = as_rank((c.rank + distance) % c.size),
            .send_bytes = c.bytes * std::min<std::uint64_t>(distance, c.size - distance)};
}

Round bruck_alltoall(const CollectiveCall &c, std::uint32_t round) {
    const std::uint64_t distance = std::uint64_t{1} << round;
    if (distance >= c.size)
        return {.last = true};
    // How many of 0..size-1 have bit `round` set.
    const std::uint64_t whole = c.size >> (round + 1) << round, part = c.size & (2 * distance - 1);
    const std::uint64_t blocks = whole + (part > distance ? part - distance : 0);
    return {.send_to = as_rank((c.rank + distance) % c.size),
            .recv_from = as_rank((c.rank + c.size - distance) % c.size),
            .send_bytes = c.bytes * blocks};
}

Round exchange_with_all(const CollectiveCall &c, std::uint32_t round, bool open) {
    if (round + 1 >= c.size)
        return {.last = true};
    const std::uint32_t to = (c.rank + round + 1) % c.size;
    return {.send_to = as_rank(to),
            .recv_from = as_rank((c.rank + c.size - round - 1) % c.size),
            .send_bytes = c.sizes.empty() ? c.bytes : c.sizes[to],
            .open = open};
}

Round linear_rooted(const CollectiveCall &c, std::uint32_t round, bool gather) {
    if (c.rank != c.root) {
        if (round > 0)
            return {.last = true};
        if (!gather)
            return {.recv_from = as_rank(c.root)};
        return {.send_to = as_rank(c.root), .send_bytes = c.bytes};
    }
    if (round + 1 >= c.size)
        return {.last = true};
    const std::uint32_t peer = round < c.root ? round : round + 1;
    if (gather)
        return {.recv_from = as_rank(peer), .open = true};
    return {.send_to = as_rank(peer), .send_bytes = c.sizes.empty() ? c.bytes : c.sizes[peer], .open = true};
}

// Rank 0 hears from all, then tells all.
Round linear_barrier(const CollectiveCall &c, std::uint32_t round) {
    const std::uint32_t others = c.size - 1;
    if (round >= (c.rank == 0 ? 2 * others : 2))
        return {.last = true};
    if (c.rank != 0)
        return round == 0 ? Round{.send_to = 0} : Round{.recv_from = 0};
    const std::int32_t peer = as_rank(1 + round % others);
    return round < others ? Round{.recv_from = peer, .open = round + 1 < others}
                          : Round{.send_to = peer, .open = true};
}

Round linear_scan(const CollectiveCall &c, std::uint32_t round) {
    if (round > 1)
        return {.last = true};
    if (round == 0)
        return c.rank > 0 ? Round{.recv_from = as_rank(c.rank - 1), .reduce_bytes = c.bytes} : Round{};
    return c.rank + 1 < c.size ? Round{.send_to = as_rank(c.rank + 1), .send_bytes = c.bytes} : Round{};
}

Round recursive_doubling(const CollectiveCall &c, std::uint32_t round, bool growing, bool reduce) {
    if ((std::uint64_t{1} << round) >= c.size)
        return {.last = true};
    const std::uint32_t partner = c.rank ^ (1u << round);
    if (partner >= c.size)
        return {};
    return {.send_to = as_rank(partner),
            .recv_from = as_rank(partner),
            .send_bytes = growing ? c.bytes << round : c.bytes,
            .reduce_bytes = reduce ? c.bytes : 0};
}

Round dissemination(const CollectiveCall &c, std::uint32_t round) {
    const std::uint64_t distance = std::uint64_t{1} << round;
    if (distance >= c.size)
        return {.last = true};
    return {.send_to = as_rank((c.rank + distance) % c.size),
            .recv_from = as_rank((c.rank + c.size - distance) % c.size)};
}

Round neighbors(const CollectiveCall &c, std::uint32_t round) {
    const std::vector<std::uint32_t> &dims = c.comm->dims;
    if (round >= 2 * dims.size())
        return {.last = true};
    const std::int32_t peer = grid_neighbor(dims, c.comm->periods, c.rank, round);
    return {.send_to = peer, .recv_from = peer, .send_bytes = peer == kAny ? 0 : c.bytes, .open = true};
}

} // namespace

std::int32_t grid_neighbor(const std::vector<std::uint32_t> &dims, const std::vector<std::uint32_t> &periods,
                           std::uint32_t rank, std::uint32_t direction) {
    const std::uint32_t dimension = direction / 2;
    std::uint32_t stride = 1;
    for (std::size_t d = dims.size(); --d > dimension;)
        stride *= dims[d];
    const std::uint32_t extent = dims[dimension], at = rank / stride % extent;
    if (direction % 2) {
        if (at + 1 < extent)
            return as_rank(rank + stride);
        return periods[dimension] ? as_rank(rank - (extent - 1) * stride) : kAny;
    }
    if (at > 0)
        return as_rank(rank - stride);
    return periods[dimension] ? as_rank(rank + (extent - 1) * stride) : kAny;
}

Algorithm choose_algorithm(CollectiveChoice choice, Collective collective, std::uint32_t size, std::uint64_t bytes,
                           bool vector) {
    return choice == CollectiveChoice::kMpich ? choose_mpich(collective, size, bytes, vector)
                                              : choose_openmpi(collective, size, bytes, vector);
}

Round collective_round(const CollectiveCall &c, std::uint32_t round) {
    if (c.size <= 1)
        return {.last = true};
    switch (c.algorithm) {
    case Algorithm::kDissemination:
        return dissemination(c, round);
    case Algorithm::kLinearBarrier:
        return linear_barrier(c, round);
    case Algorithm::kLinearBcast:
        return linear_rooted(c, round, false);
    case Algorithm::kBinomialBcast:
        return binomial(c, round, true, 0, false);
    case Algorithm::kScatterAllgatherBcast:
        return scatter_allgather(c, round);
    case Algorithm::kChainBcast:
        return chain(c, round);
    case Algorithm::kBinomialReduce:
        return binomial(c, round, false, 0, true);
    case Algorithm::kRecursiveDoublingAllreduce:
        return recursive_doubling_allreduce(c, round);
    case Algorithm::kRingAllreduce:
        return ring(c, round, 2 * (c.size - 1), block_of(c.bytes, c.size), round + 1 < c.size);
    case Algorithm::kRabenseifnerAllreduce:
        return rabenseifner_allreduce(c, round);
    case Algorithm::kRecursiveDoublingAllgather:
        return recursive_doubling(c, round, true, false);
    case Algorithm::kBruckAllgather:
        return bruck_allgather(c, round);
    case Algorithm::kRingAllgather:
        return ring(c, round, c.size - 1,
                    c.recv_sizes.empty() ? c.bytes : c.recv_sizes[(c.rank + c.size - round % c.size) % c.size], false);
    case Algorithm::kBruckAlltoall:
        return bruck_alltoall(c, round);
    case Algorithm::kPairwiseAlltoall:
        return exchange_with_all(c, round, false);
    case Algorithm::kLinearAlltoall:
        return exchange_with_all(c, round, true);
    case Algorithm::kBinomialGather:
        return binomial(c, round, false, std::max<std::uint64_t>(c.bytes, 1), false);
    case Algorithm::kBinomialScatter:
        return binomial(c, round, true, std::max<std::uint64_t>(c.bytes, 1), false);
    case Algorithm::kLinearGather:
        return linear_rooted(c, round, true);
    case Algorithm::kLinearScatter:
        return linear_rooted(c, round, false);
    case Algorithm::kRingReduceScatter:
        return ring(c, round, c.size - 1, c.bytes, true);
    case Algorithm::kLinearScan:
        return linear_scan(c, round);
    case Algorithm::kRecursiveDoublingScan:
        return recursive_doubling(c, round, false, true);
    case Algorithm::kNeighbors:
        return neighbors(c, round);
    }
    return {.last = true};
}

} // namespace nearmetal
