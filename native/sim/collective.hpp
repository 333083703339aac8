// Collectives as the point-to-point messages that Open MPI and MPICH send for them.
//
// An algorithm is a function of (size, rank, bytes, round): what this rank sends and receives in that round. Rounds are
// computed when they are reached, so a collective over a million ranks needs no schedule in memory.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "program.hpp"

namespace nearmetal {

inline constexpr std::uint64_t kKi = 1024;
inline constexpr std::uint64_t kElement = 8; // bytes, assumed: a trace does not tell

enum class CollectiveChoice : std::uint8_t { kOpenMpi = 0, kMpich = 1 };

enum class Algorithm : std::uint8_t {
    kDissemination,
    kLinearBarrier,
    kDoublingBarrier,
    kLinearBcast,
    kBinomialBcast,
    kDoublingBcast,
    kSwappedBcast,
    kBinaryBcast,
    kKnomialBcast,
    kScatterDoublingBcast,
    kScatterRingBcast,
    kOverfullDoublingBcast,
    kOverfullRingBcast,
    kChainBcast,
    kLinearReduce,
    kBinomialReduce,
    kSwappedReduce,
    kBinaryReduce,
    kLineReduce,
    kChainReduce,
    kRabenseifnerReduce,
    kFoldedReduce,
    kRecursiveDoublingAllreduce,
    kRingAllreduce,
    kRabenseifnerAllreduce,
    kFoldedAllreduce,
    kReduceBcast,
    kRecursiveDoublingAllgather,
    kBruckAllgather,
    kRingAllgather,
    kGatherBcast,
    kLinearAllgather,
    kBruckAlltoall,
    kPairwiseAlltoall,
    kLinearAlltoall,
    kOrderedAlltoall,
    kBinomialGather,
    kBinomialScatter,
    kLinearGather,
    kAskedGather,
    kLinearScatter,
    kRingReduceScatter,
    kPairwiseReduceScatter,
    kHalvingReduceScatter,
    kButterflyReduceScatter,
    kDoublingReduceScatter,
    kBinomialReduceScatter,
    kReduceThenScatter,
    kLinearScan,
    kRecursiveDoublingScan,
    kNeighbors,
    kAgreeOnMask,
    kAgreeOnMaskLater,
    kAgreeThrice,
    kNothing, // there are no data, and the library knows it
};

struct CollectiveCall {
    Algorithm algorithm;
    std::uint32_t size, rank, root;
    std::uint64_t bytes; // as in the trace format: whole buffer, or block of one rank
    // Vector variants: bytes for each peer, in neighbour collectives for each direction, and `bytes` are their mean.
    std::span<const std::uint64_t> sizes, recv_sizes;
    const Comm *comm; // neighbour collectives: the grid
    bool nonblocking = false;
};

// One round: at most one send and one receive. The round ends when both are done, unless `open`: then the next
// round starts at once and the collective ends when all are done.
struct Round {
    std::int32_t send_to = kAny, recv_from = kAny;
    std::uint64_t send_bytes = 0;
    std::uint64_t reduce_bytes = 0; // combined after the receive
    bool open = false;
    bool last = false; // nothing to do: the collective is over
};

// The neighbour of `rank` in a row-major grid; direction is 2 * dimension + (1 for the upper one); kAny off the edge.
std::int32_t grid_neighbor(const std::vector<std::uint32_t> &dims, const std::vector<std::uint32_t> &periods,
                           std::uint32_t rank, std::uint32_t direction);

Algorithm choose_algorithm(CollectiveChoice choice, Collective collective, std::uint32_t size, std::uint64_t bytes,
                           bool vector, bool nonblocking = false);
Round collective_round(const CollectiveCall &call, std::uint32_t round);

// What all rounds need.
inline std::uint32_t rounds_log2(std::uint32_t size) {
    return size <= 1 ? 0 : static_cast<std::uint32_t>(std::bit_width(size - 1));
}
inline std::int32_t as_rank(std::uint64_t rank) { return static_cast<std::int32_t>(rank); }
inline std::uint64_t block_of(std::uint64_t bytes, std::uint32_t size) { return (bytes + size - 1) / size; }

// Both MPIs leave out the empty parts of an alltoallv, a gatherv and a scatterv.
inline bool is_empty(std::span<const std::uint64_t> sizes, std::uint32_t peer) {
    return !sizes.empty() && sizes[peer] == 0;
}

// The same in both directions.
inline Round exchange(std::int32_t partner, std::uint64_t bytes, std::uint64_t reduce = 0) {
    return {.send_to = partner, .recv_from = partner, .send_bytes = bytes, .reduce_bytes = reduce};
}

// What `count` ranks contribute, from `first` on around the end.
std::uint64_t contributed(const CollectiveCall &c, std::uint32_t first, std::uint64_t count);

// Rounds with a root (collective_rooted.cpp).
Round binomial(const CollectiveCall &c, std::uint32_t round, bool down, std::uint64_t block, bool reduce,
               bool swapped = false);
Round doubling_bcast(const CollectiveCall &c, std::uint32_t round, bool swapped);
Round binary_bcast(const CollectiveCall &c, std::uint32_t round);
Round knomial_bcast(const CollectiveCall &c, std::uint32_t round);
Round scatter_allgather(const CollectiveCall &c, std::uint32_t round, bool doubling, bool overfull);
Round chain(const CollectiveCall &c, std::uint32_t round, std::uint64_t segment, bool reduce);
Round linear_reduce(const CollectiveCall &c, std::uint32_t round);
Round binary_reduce(const CollectiveCall &c, std::uint32_t round);
Round linear_rooted(const CollectiveCall &c, std::uint32_t round, bool gather);
Round asked_gather(const CollectiveCall &c, std::uint32_t round);

// Rounds that combine parts (collective_reduce.cpp).
Round recursive_doubling_allreduce(const CollectiveCall &c, std::uint32_t round);
Round halving_allreduce(const CollectiveCall &c, std::uint32_t round, bool shared);
Round halving_reduce(const CollectiveCall &c, std::uint32_t round, bool shared);
Round reduce_first(const CollectiveCall &c, std::uint32_t round, std::uint64_t whole, Algorithm reduce, Algorithm then);
Round reduce_then_scatter(const CollectiveCall &c, std::uint32_t round);
Round agree_thrice(const CollectiveCall &c, std::uint32_t round);
Round agree_on_mask(const CollectiveCall &c, std::uint32_t round, bool nonblocking);
Round halving_reduce_scatter(const CollectiveCall &c, std::uint32_t round);
Round butterfly_reduce_scatter(const CollectiveCall &c, std::uint32_t round);
Round doubling_reduce_scatter(const CollectiveCall &c, std::uint32_t round);
Round pairwise_reduce_scatter(const CollectiveCall &c, std::uint32_t round);

} // namespace nearmetal
