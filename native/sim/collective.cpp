// What each algorithm does in each round; collective_rules.cpp chooses among them. Sources: Thakur, Rabenseifner,
// Gropp: Optimization of collective communication operations in MPICH (2005); Bruck et al. (1997) for the logarithmic
// all-to-all.
#include "collective.hpp"

#include <algorithm>
#include <bit>

namespace nearmetal {

namespace {

constexpr std::uint64_t kReduceSegment = 8 * 1024;

Round ring(const CollectiveCall &c, std::uint32_t round, std::uint32_t rounds, std::uint64_t bytes, bool reduce) {
    if (round >= rounds)
        return {.last = true};
    return {.send_to = as_rank((c.rank + 1) % c.size),
            .recv_from = as_rank((c.rank + c.size - 1) % c.size),
            .send_bytes = bytes,
            .reduce_bytes = reduce ? bytes : 0};
}

Round bruck_allgather(const CollectiveCall &c, std::uint32_t round) {
    const std::uint64_t distance = std::uint64_t{1} << round;
    if (distance >= c.size)
        return {.last = true};
    return {.send_to = as_rank((c.rank + c.size - distance) % c.size),
            .recv_from = as_rank((c.rank + distance) % c.size),
            .send_bytes = contributed(c, c.rank, std::min<std::uint64_t>(distance, c.size - distance))};
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
    const std::uint32_t to = (c.rank + round + 1) % c.size, from = (c.rank + c.size - round - 1) % c.size;
    return {.send_to = is_empty(c.sizes, to) ? kAny : as_rank(to),
            .recv_from = is_empty(c.recv_sizes, from) ? kAny : as_rank(from),
            .send_bytes = c.sizes.empty() ? c.bytes : c.sizes[to],
            .open = open};
}

// What a rank contributes, to all at once.
Round give_all(const CollectiveCall &c, std::uint32_t round) {
    Round given = exchange_with_all(c, round, true);
    given.send_bytes = contributed(c, c.rank, 1);
    if (is_empty(c.recv_sizes, c.rank))
        given.send_to = kAny;
    return given;
}

// With one rank after the other, the lowest first, and with those that have nothing to give, too.
Round exchange_in_order(const CollectiveCall &c, std::uint32_t round) {
    if (round + 1 >= c.size)
        return {.last = true};
    const std::uint32_t peer = round < c.rank ? round : round + 1;
    return {
        .send_to = as_rank(peer), .recv_from = as_rank(peer), .send_bytes = c.sizes.empty() ? c.bytes : c.sizes[peer]};
}

// Rank 0 receives from all, then sends to all.
Round linear_barrier(const CollectiveCall &c, std::uint32_t round) {
    const std::uint32_t others = c.size - 1;
    if (round >= (c.rank == 0 ? 2 * others : 2))
        return {.last = true};
    if (c.rank != 0)
        return round == 0 ? Round{.send_to = 0} : Round{.recv_from = 0};
    const std::int32_t peer = as_rank(1 + round % others);
    return round < others ? Round{.recv_from = peer, .open = round + 1 < others} : Round{.send_to = peer, .open = true};
}

// By doubling among a power of two ranks; each further one tells one of them before, and hears from it at the end.
Round doubling_barrier(const CollectiveCall &c, std::uint32_t round) {
    const std::uint32_t power = std::bit_floor(c.size), log2 = rounds_log2(power);
    const bool first = round == 0, further = c.rank >= power;
    if (round > log2 + 1)
        return {.last = true};
    if (!first && round <= log2) {
        const std::int32_t partner = further ? kAny : as_rank(c.rank ^ (1u << (round - 1)));
        return {.send_to = partner, .recv_from = partner};
    }
    const std::uint32_t other = further ? c.rank - power : c.rank + power;
    if (other >= c.size)
        return {};
    return first == further ? Round{.send_to = as_rank(other)} : Round{.recv_from = as_rank(other)};
}

// To rank 0, one after the other, and from there all of it by a broadcast.
Round gather_bcast(const CollectiveCall &c, std::uint32_t round) {
    const std::uint32_t others = c.size - 1, gathering = c.rank == 0 ? others : 1;
    if (round < gathering) {
        if (c.rank == 0)
            return {.recv_from = is_empty(c.recv_sizes, round + 1) ? kAny : as_rank(round + 1),
                    .open = round + 1 < others};
        return {.send_to = is_empty(c.recv_sizes, c.rank) ? kAny : 0, .send_bytes = contributed(c, c.rank, 1)};
    }
    CollectiveCall all{c};
    all.root = 0;
    all.sizes = all.recv_sizes = {};
    all.bytes = contributed(c, 0, c.size);
    all.algorithm = choose_algorithm(CollectiveChoice::kOpenMpi, Collective::kBcast, c.size, all.bytes, false);
    return collective_round(all, round - gathering);
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
            .send_bytes = growing ? contributed(c, c.rank >> round << round, 1u << round) : c.bytes,
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
    return {.send_to = peer,
            .recv_from = peer,
            .send_bytes = peer == kAny      ? 0
                          : c.sizes.empty() ? c.bytes
                                            : c.sizes[round],
            .open = true};
}

// Every rank of an allgatherv and a reduce_scatter has the same list: where it is empty all return at once.
bool all_empty(const CollectiveCall &c) {
    switch (c.algorithm) {
    case Algorithm::kRecursiveDoublingAllgather:
    case Algorithm::kBruckAllgather:
    case Algorithm::kRingAllgather:
    case Algorithm::kGatherBcast:
    case Algorithm::kPairwiseReduceScatter:
    case Algorithm::kHalvingReduceScatter:
    case Algorithm::kRingReduceScatter:
        return c.bytes == 0 && !c.recv_sizes.empty() && contributed(c, 0, c.size) == 0;
    default:
        return false;
    }
}

} // namespace

// What `count` ranks contribute, from `first` on around the end.
std::uint64_t contributed(const CollectiveCall &c, std::uint32_t first, std::uint64_t count) {
    if (c.recv_sizes.empty())
        return c.bytes * count;
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < count; ++i)
        sum += c.recv_sizes[(first + i) % c.size];
    return sum;
}

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

Round collective_round(const CollectiveCall &c, std::uint32_t round) {
    const bool alone = c.size <= 1 && c.algorithm != Algorithm::kNeighbors; // one rank may be its own neighbour
    if (alone || all_empty(c))
        return {.last = true};
    switch (c.algorithm) {
    case Algorithm::kDissemination:
        return dissemination(c, round);
    case Algorithm::kLinearBarrier:
        return linear_barrier(c, round);
    case Algorithm::kDoublingBarrier:
        return doubling_barrier(c, round);
    case Algorithm::kLinearBcast:
        return linear_rooted(c, round, false);
    case Algorithm::kBinomialBcast:
        return binomial(c, round, true, 0, false);
    case Algorithm::kDoublingBcast:
        return doubling_bcast(c, round, false);
    case Algorithm::kSwappedBcast:
        return doubling_bcast(c, round, true);
    case Algorithm::kBinaryBcast:
        return binary_bcast(c, round);
    case Algorithm::kKnomialBcast:
        return knomial_bcast(c, round);
    case Algorithm::kScatterDoublingBcast:
        return scatter_allgather(c, round, true, false);
    case Algorithm::kScatterRingBcast:
        return scatter_allgather(c, round, false, false);
    case Algorithm::kOverfullDoublingBcast:
        return scatter_allgather(c, round, true, true);
    case Algorithm::kOverfullRingBcast:
        return scatter_allgather(c, round, false, true);
    case Algorithm::kChainBcast:
        return chain(c, round, std::max<std::uint64_t>(c.bytes, 1), false);
    case Algorithm::kLinearReduce:
        return linear_reduce(c, round);
    case Algorithm::kBinomialReduce:
        return binomial(c, round, false, 0, true);
    case Algorithm::kSwappedReduce:
        return binomial(c, round, false, 0, true, true);
    case Algorithm::kBinaryReduce:
        return binary_reduce(c, round);
    case Algorithm::kLineReduce:
        return chain(c, round, std::max<std::uint64_t>(c.bytes, 1), true);
    case Algorithm::kChainReduce:
        return chain(c, round, kReduceSegment, true);
    case Algorithm::kRabenseifnerReduce:
        return halving_reduce(c, round, true);
    case Algorithm::kFoldedReduce:
        return halving_reduce(c, round, false);
    case Algorithm::kRecursiveDoublingAllreduce:
        return recursive_doubling_allreduce(c, round);
    case Algorithm::kReduceBcast:
        return reduce_first(c, round, c.bytes, Algorithm::kBinomialReduce, Algorithm::kDoublingBcast);
    case Algorithm::kBinomialReduceScatter:
        return reduce_first(c, round, contributed(c, 0, c.size), Algorithm::kBinomialReduce, Algorithm::kLinearScatter);
    case Algorithm::kReduceThenScatter:
        return reduce_then_scatter(c, round);
    case Algorithm::kRingAllreduce:
        return ring(c, round, 2 * (c.size - 1), block_of(c.bytes, c.size), round + 1 < c.size);
    case Algorithm::kRabenseifnerAllreduce:
        return halving_allreduce(c, round, true);
    case Algorithm::kFoldedAllreduce:
        return halving_allreduce(c, round, false);
    case Algorithm::kRecursiveDoublingAllgather:
        return recursive_doubling(c, round, true, false);
    case Algorithm::kBruckAllgather:
        return bruck_allgather(c, round);
    case Algorithm::kRingAllgather:
        return ring(c, round, c.size - 1,
                    c.recv_sizes.empty() ? c.bytes : c.recv_sizes[(c.rank + c.size - round % c.size) % c.size], false);
    case Algorithm::kLinearAllgather:
        return give_all(c, round);
    case Algorithm::kBruckAlltoall:
        return bruck_alltoall(c, round);
    case Algorithm::kPairwiseAlltoall:
        return exchange_with_all(c, round, false);
    case Algorithm::kLinearAlltoall:
        return exchange_with_all(c, round, true);
    case Algorithm::kOrderedAlltoall:
        return exchange_in_order(c, round);
    case Algorithm::kBinomialGather:
        return binomial(c, round, false, std::max<std::uint64_t>(c.bytes, 1), false);
    case Algorithm::kBinomialScatter:
        return binomial(c, round, true, std::max<std::uint64_t>(c.bytes, 1), false);
    case Algorithm::kLinearGather:
        return linear_rooted(c, round, true);
    case Algorithm::kAskedGather:
        return asked_gather(c, round);
    case Algorithm::kLinearScatter:
        return linear_rooted(c, round, false);
    case Algorithm::kGatherBcast:
        return gather_bcast(c, round);
    case Algorithm::kPairwiseReduceScatter:
        return pairwise_reduce_scatter(c, round);
    case Algorithm::kHalvingReduceScatter:
        return halving_reduce_scatter(c, round);
    case Algorithm::kButterflyReduceScatter:
        return butterfly_reduce_scatter(c, round);
    case Algorithm::kDoublingReduceScatter:
        return doubling_reduce_scatter(c, round);
    case Algorithm::kRingReduceScatter:
        return ring(c, round, c.size - 1, contributed(c, (c.rank + 2 * c.size - 1 - round) % c.size, 1), true);
    case Algorithm::kLinearScan:
        return linear_scan(c, round);
    case Algorithm::kRecursiveDoublingScan:
        return recursive_doubling(c, round, false, true);
    case Algorithm::kNeighbors:
        return neighbors(c, round);
    case Algorithm::kAgreeOnMask:
        return agree_on_mask(c, round, false);
    case Algorithm::kAgreeOnMaskLater:
        return agree_on_mask(c, round, true);
    case Algorithm::kAgreeThrice:
        return agree_thrice(c, round);
    case Algorithm::kNothing:
        return {.last = true};
    }
    return {.last = true};
}

} // namespace nearmetal
