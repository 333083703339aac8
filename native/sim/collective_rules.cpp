// Which algorithm an MPI chooses: ompi/mca/coll/tuned (fixed decisions) and coll/libnbc, and MPICH's selections for
// collectives that are not divided by nodes (coll_selection.json), simplified where stated.
#include "collective.hpp"

#include <algorithm>
#include <bit>

namespace nearmetal {

namespace {

using enum Algorithm;
using enum Collective;

// Of some variants of a collective, for fewer than so many ranks: for fewer than so many bytes, else `otherwise`. The
// first that matches counts.
struct Below {
    std::uint64_t bytes = 0;
    Algorithm algorithm = kNothing;
};
struct Rule {
    Collective collective;
    std::uint8_t variants;
    std::uint32_t ranks;
    Below steps[7];
    Algorithm otherwise;
    bool power = false; // for powers of two alone
};
constexpr std::uint8_t kPlain = 1, kLists = 2, kImmediate = 4, kAll = 7;
constexpr std::uint32_t kAnyRanks = ~std::uint32_t{0};

// clang-format off
// As Open MPI chooses since 4.1 (pull requests 7730 and 7952), earlier versions by other rules, and by libnbc where a
// call returns at once. Algorithms that are not modelled use the nearest that is: linear_sync of an alltoall, which
// sends all at once unless given a limit, as linear; a split binary tree as k-nomial; neighbour exchange and segmented
// rings as rings; a ring of fewer elements than ranks, and a reduction with a broadcast behind it, as recursive
// doubling. An allreduce in place that returns at once is modelled as others.
constexpr Rule kOpenMpiRules[] = {
    {kBarrier, kImmediate, kAnyRanks, {}, kDissemination},
    {kBarrier, kAll, 4, {}, kDoublingBarrier},
    {kBarrier, kAll, 8, {}, kLinearBarrier},
    {kBarrier, kAll, 64, {}, kDoublingBarrier},
    {kBarrier, kAll, kAnyRanks, {}, kDissemination},
    {kBcast, kImmediate, 5, {}, kLinearBcast},
    {kBcast, kImmediate, kAnyRanks, {}, kSwappedBcast},
    {kBcast, kAll, 4, {{32, kChainBcast}, {256, kBinaryBcast}, {512, kChainBcast}, {32 * kKi, kLinearBcast},
     {128 * kKi, kBinaryBcast}, {256 * kKi, kChainBcast}, {512 * kKi, kLinearBcast}}, kBinaryBcast},
    {kBcast, kAll, 8, {{64, kBinaryBcast}, {128, kDoublingBcast}, {2 * kKi, kBinaryBcast}, {8 * kKi, kDoublingBcast},
     {1024 * kKi, kLinearBcast}}, kChainBcast},
    {kBcast, kAll, 16, {{8, kKnomialBcast}, {64, kBinaryBcast}, {4 * kKi, kKnomialBcast}, {16 * kKi, kBinaryBcast},
     {32 * kKi, kDoublingBcast}}, kLinearBcast},
    {kBcast, kAll, 32, {{4 * kKi, kKnomialBcast}, {1024 * kKi, kDoublingBcast}}, kScatterDoublingBcast},
    {kBcast, kAll, 64, {{2 * kKi, kDoublingBcast}}, kKnomialBcast},
    {kBcast, kAll, 128, {}, kKnomialBcast},
    {kBcast, kAll, 256, {{2, kDoublingBcast}, {16 * kKi, kBinaryBcast}, {32 * kKi, kLinearBcast},
     {64 * kKi, kBinaryBcast}}, kKnomialBcast},
    {kBcast, kAll, 1024, {}, kKnomialBcast},
    {kBcast, kAll, 2048, {{512 * kKi, kKnomialBcast}}, kScatterDoublingBcast},
    {kBcast, kAll, 4096, {{256 * kKi, kKnomialBcast}}, kScatterDoublingBcast},
    {kBcast, kAll, kAnyRanks, {{8 * kKi, kKnomialBcast}, {16 * kKi, kBinaryBcast}, {256 * kKi, kKnomialBcast}},
     kScatterDoublingBcast},
    {kReduce, kImmediate, 3, {{64 * kKi, kBinomialReduce}}, kChainReduce},
    {kReduce, kImmediate, kAnyRanks, {}, kRabenseifnerReduce},
    {kReduce, kAll, 4, {{16, kBinaryReduce}, {32, kLineReduce}, {256 * kKi, kLinearReduce}}, kLineReduce},
    {kReduce, kAll, 8, {{4 * kKi, kBinaryReduce}, {64 * kKi, kLineReduce}, {256 * kKi, kBinomialReduce},
     {512 * kKi, kLinearReduce}, {1024 * kKi, kBinomialReduce}}, kLinearReduce},
    {kReduce, kAll, 16, {{8 * kKi, kBinaryReduce}}, kBinomialReduce},
    {kReduce, kAll, 32, {{4 * kKi, kBinaryReduce}}, kBinomialReduce},
    {kReduce, kAll, kAnyRanks, {}, kBinomialReduce},
    {kAllreduce, kImmediate, 4, {}, kReduceBcast},
    {kAllreduce, kImmediate, kAnyRanks, {{64 * kKi, kReduceBcast}}, kRabenseifnerAllreduce},
    {kAllreduce, kAll, 4, {{4 * kKi, kRecursiveDoublingAllreduce}, {8 * kKi, kRingAllreduce},
     {16 * kKi, kRecursiveDoublingAllreduce}, {256 * kKi, kRingAllreduce}}, kRabenseifnerAllreduce},
    {kAllreduce, kAll, 16, {{8 * kKi, kRecursiveDoublingAllreduce}}, kRabenseifnerAllreduce},
    {kAllreduce, kAll, 32, {{4 * kKi, kRecursiveDoublingAllreduce}}, kRabenseifnerAllreduce},
    {kAllreduce, kAll, 64, {{128, kRecursiveDoublingAllreduce}}, kRabenseifnerAllreduce},
    {kAllreduce, kAll, 256, {{256 * kKi, kRecursiveDoublingAllreduce}}, kRabenseifnerAllreduce},
    {kAllreduce, kAll, 512, {{4 * kKi, kRecursiveDoublingAllreduce}}, kRabenseifnerAllreduce},
    {kAllreduce, kAll, 2048, {{16 * kKi, kRecursiveDoublingAllreduce}}, kRabenseifnerAllreduce},
    {kAllreduce, kAll, 4096, {{2 * kKi, kRecursiveDoublingAllreduce}, {4 * kKi, kRingAllreduce},
     {16 * kKi, kRecursiveDoublingAllreduce}}, kRabenseifnerAllreduce},
    {kAllreduce, kAll, kAnyRanks, {{2 * kKi, kRecursiveDoublingAllreduce}, {16 * kKi, kRingAllreduce},
     {32 * kKi, kRecursiveDoublingAllreduce}}, kRabenseifnerAllreduce},
    {kGather, kImmediate, kAnyRanks, {}, kLinearGather},
    {kGather, kLists, kAnyRanks, {}, kLinearGather},
    {kGather, kPlain, 4, {{32 * kKi, kBinomialGather}, {64 * kKi, kLinearGather}, {128 * kKi, kBinomialGather}},
     kAskedGather},
    {kGather, kPlain, 8, {{kKi, kBinomialGather}, {8 * kKi, kLinearGather}, {32 * kKi, kBinomialGather},
     {256 * kKi, kLinearGather}}, kAskedGather},
    {kGather, kPlain, 256, {}, kBinomialGather},
    {kGather, kPlain, 512, {{2 * kKi, kBinomialGather}, {8 * kKi, kLinearGather}}, kBinomialGather},
    {kGather, kPlain, kAnyRanks, {}, kBinomialGather},
    {kScatter, kImmediate, kAnyRanks, {}, kLinearScatter},
    {kScatter, kLists, kAnyRanks, {}, kLinearScatter},
    {kScatter, kPlain, 4, {}, kLinearScatter},
    {kScatter, kPlain, 8, {{2 * kKi, kBinomialScatter}, {4 * kKi, kLinearScatter}, {8 * kKi, kBinomialScatter}},
     kLinearScatter},
    {kScatter, kPlain, 32, {{16 * kKi, kBinomialScatter}}, kLinearScatter},
    {kScatter, kPlain, 64, {{512, kBinomialScatter}, {8 * kKi, kLinearScatter}, {16 * kKi, kBinomialScatter}},
     kLinearScatter},
    {kScatter, kPlain, kAnyRanks, {{512, kBinomialScatter}}, kLinearScatter},
    {kAllgather, kImmediate, kAnyRanks, {}, kLinearAllgather},
    {kAllgather, kLists, 3, {}, kRingAllgather},
    {kAllgather, kLists, 8, {{256, kGatherBcast}, {16 * kKi, kRingAllgather}, {256 * kKi, kBruckAllgather}},
     kRingAllgather},
    {kAllgather, kLists, 16, {{kKi, kGatherBcast}}, kBruckAllgather},
    {kAllgather, kLists, 32, {{128, kGatherBcast}, {256 * kKi, kBruckAllgather}}, kRingAllgather},
    {kAllgather, kLists, 64, {{256, kGatherBcast}, {8 * kKi, kBruckAllgather}}, kRingAllgather},
    {kAllgather, kLists, 128, {{256, kGatherBcast}, {4 * kKi, kBruckAllgather}}, kRingAllgather},
    {kAllgather, kLists, 512, {{kKi, kBruckAllgather}}, kRingAllgather},
    {kAllgather, kLists, 1024, {{512, kBruckAllgather}, {kKi, kGatherBcast}, {4 * kKi, kBruckAllgather}},
     kRingAllgather},
    {kAllgather, kLists, kAnyRanks, {{4 * kKi, kBruckAllgather}}, kRingAllgather},
    {kAllgather, kPlain, 32, {}, kRecursiveDoublingAllgather},
    {kAllgather, kPlain, 64, {{kKi, kRecursiveDoublingAllgather}}, kRingAllgather},
    {kAllgather, kPlain, 256, {{512, kRecursiveDoublingAllgather}}, kRingAllgather},
    {kAllgather, kPlain, 512, {{kKi, kRecursiveDoublingAllgather}}, kRingAllgather},
    {kAllgather, kPlain, 1024, {{2 * kKi, kRecursiveDoublingAllgather}}, kRingAllgather},
    {kAllgather, kPlain, kAnyRanks, {{4 * kKi, kRecursiveDoublingAllgather}}, kRingAllgather},
    {kAlltoall, kImmediate, kAnyRanks, {}, kLinearAlltoall},
    {kAlltoall, kLists, 4, {}, kPairwiseAlltoall},
    {kAlltoall, kLists, 64, {}, kLinearAlltoall},
    {kAlltoall, kLists, 128, {}, kPairwiseAlltoall},
    {kAlltoall, kLists, 256, {}, kLinearAlltoall},
    {kAlltoall, kLists, 1024, {}, kPairwiseAlltoall},
    {kAlltoall, kLists, kAnyRanks, {}, kLinearAlltoall},
    {kAlltoall, kPlain, 3, {}, kPairwiseAlltoall},
    {kAlltoall, kPlain, 8, {{512 * kKi, kLinearAlltoall}, {1024 * kKi, kPairwiseAlltoall}}, kLinearAlltoall},
    {kAlltoall, kPlain, 16, {}, kLinearAlltoall},
    {kAlltoall, kPlain, 32, {{4, kLinearAlltoall}, {512, kBruckAlltoall}}, kLinearAlltoall},
    {kAlltoall, kPlain, 64, {{512, kBruckAlltoall}}, kLinearAlltoall},
    {kAlltoall, kPlain, 256, {{kKi, kBruckAlltoall}, {256 * kKi, kLinearAlltoall}}, kPairwiseAlltoall},
    {kAlltoall, kPlain, 512, {{kKi, kBruckAlltoall}, {32 * kKi, kLinearAlltoall}}, kPairwiseAlltoall},
    {kAlltoall, kPlain, 1024, {{512, kBruckAlltoall}, {256 * kKi, kLinearAlltoall}}, kPairwiseAlltoall},
    {kAlltoall, kPlain, 2048, {{512, kBruckAlltoall}}, kLinearAlltoall},
    {kAlltoall, kPlain, 4096, {{kKi, kBruckAlltoall}}, kLinearAlltoall},
    {kAlltoall, kPlain, kAnyRanks, {{2 * kKi, kBruckAlltoall}}, kLinearAlltoall},
    {kAlltoallInPlace, kAll, kAnyRanks, {}, kPairwiseAlltoall},
    {kReduceScatter, kImmediate, kAnyRanks, {}, kBinomialReduceScatter},
    {kReduceScatter, kLists, 4, {{64 * kKi, kRingReduceScatter}, {128 * kKi, kHalvingReduceScatter}},
     kRingReduceScatter},
    {kReduceScatter, kLists, 32, {{256 * kKi, kHalvingReduceScatter}}, kRingReduceScatter},
    {kReduceScatter, kLists, 64, {{512 * kKi, kHalvingReduceScatter}}, kRingReduceScatter},
    {kReduceScatter, kLists, kAnyRanks, {}, kHalvingReduceScatter},
    {kReduceScatter, kPlain, 4, {{128 * kKi, kHalvingReduceScatter}}, kReduceThenScatter},
    {kReduceScatter, kPlain, 8, {{8, kHalvingReduceScatter}, {32, kDoublingReduceScatter},
     {256, kButterflyReduceScatter}, {8 * kKi, kHalvingReduceScatter}, {16 * kKi, kButterflyReduceScatter},
     {1024 * kKi, kHalvingReduceScatter}}, kReduceThenScatter},
    {kReduceScatter, kPlain, 16, {{4, kReduceThenScatter}, {32, kHalvingReduceScatter}, {128, kButterflyReduceScatter},
     {512 * kKi, kHalvingReduceScatter}, {4096 * kKi, kReduceThenScatter}}, kButterflyReduceScatter},
    {kReduceScatter, kPlain, 32, {{32, kReduceThenScatter}, {512 * kKi, kHalvingReduceScatter},
     {2048 * kKi, kReduceThenScatter}, {4096 * kKi, kHalvingReduceScatter}}, kButterflyReduceScatter},
    {kReduceScatter, kPlain, kAnyRanks, {{4, kHalvingReduceScatter}, {16, kReduceThenScatter},
     {64 * kKi, kButterflyReduceScatter}, {256 * kKi, kReduceThenScatter}}, kButterflyReduceScatter},
    {kScan, kAll, kAnyRanks, {}, kLinearScan},
    {kExscan, kAll, kAnyRanks, {}, kLinearScan},
    {kNeighborAllgather, kAll, kAnyRanks, {}, kNeighbors},
    {kNeighborAlltoall, kAll, kAnyRanks, {}, kNeighbors},
    {kNewCommunicator, kAll, kAnyRanks, {}, kAgreeThrice},
};

// Of MPICH 5 (coll_selection.json). By the bytes of all blocks for an allgather and a reduce-scatter.
constexpr Rule kMpichRules[] = {
    {kBarrier, kAll, kAnyRanks, {}, kDissemination},
    {kBcast, kAll, 8, {}, kBinomialBcast},
    {kBcast, kImmediate, kAnyRanks, {{12 * kKi, kBinomialBcast}, {512 * kKi, kOverfullDoublingBcast}},
     kOverfullRingBcast},
    {kBcast, kAll, kAnyRanks, {{12289, kBinomialBcast}, {512 * kKi + 1, kScatterDoublingBcast}}, kScatterRingBcast},
    {kReduce, kAll, kAnyRanks, {{2 * kKi + 1, kBinomialReduce}}, kFoldedReduce},
    {kAllreduce, kImmediate, kAnyRanks, {{2 * kKi + 1, kRecursiveDoublingAllreduce}}, kFoldedAllreduce},
    {kAllreduce, kAll, kAnyRanks, {{9, kRecursiveDoublingAllreduce}}, kFoldedAllreduce},
    {kGather, kLists, kAnyRanks, {}, kLinearGather},
    {kGather, kAll, kAnyRanks, {}, kBinomialGather},
    {kScatter, kLists, kAnyRanks, {}, kLinearScatter},
    {kScatter, kAll, kAnyRanks, {}, kBinomialScatter},
    {kAllgather, kAll, kAnyRanks, {{512 * kKi, kRecursiveDoublingAllgather}}, kRingAllgather, true},
    {kAllgather, kAll, kAnyRanks, {{80 * kKi, kBruckAllgather}}, kRingAllgather},
    {kAlltoall, kLists, kAnyRanks, {}, kLinearAlltoall},
    {kAlltoall, kAll, 9, {{32 * kKi + 1, kLinearAlltoall}}, kPairwiseAlltoall},
    {kAlltoall, kImmediate, kAnyRanks, {{2 * kKi + 1, kBruckAlltoall}, {32 * kKi + 1, kLinearAlltoall}},
     kPairwiseAlltoall},
    {kAlltoall, kAll, kAnyRanks, {{257, kBruckAlltoall}, {32 * kKi + 1, kLinearAlltoall}}, kPairwiseAlltoall},
    {kAlltoallInPlace, kAll, kAnyRanks, {}, kOrderedAlltoall},
    {kReduceScatter, kLists, kAnyRanks, {{512 * kKi, kHalvingReduceScatter}}, kPairwiseReduceScatter},
    {kReduceScatter, kImmediate, kAnyRanks, {{kElement * 512 * kKi, kHalvingReduceScatter}}, kPairwiseReduceScatter},
    {kReduceScatter, kAll, kAnyRanks, {{512 * kKi, kHalvingReduceScatter}}, kPairwiseReduceScatter},
    {kScan, kAll, kAnyRanks, {}, kRecursiveDoublingScan},
    {kExscan, kAll, kAnyRanks, {}, kRecursiveDoublingScan},
    {kNeighborAllgather, kAll, kAnyRanks, {}, kNeighbors},
    {kNeighborAlltoall, kAll, kAnyRanks, {}, kNeighbors},
    {kNewCommunicator, kImmediate, kAnyRanks, {}, kAgreeOnMaskLater},
    {kNewCommunicator, kAll, kAnyRanks, {}, kAgreeOnMask},
};
// clang-format on

template <std::size_t kRows>
Algorithm apply_rules(const Rule (&rules)[kRows], Collective collective, std::uint8_t variant, std::uint32_t size,
                      std::uint64_t bytes) {
    const auto matches = [&](const Rule &rule) {
        return rule.collective == collective && rule.variants & variant && size < rule.ranks &&
               (!rule.power || std::has_single_bit(size));
    };
    const Rule *rule = std::find_if(rules, rules + kRows - 1, matches);
    for (const Below &step : rule->steps)
        if (bytes < step.bytes)
            return step.algorithm;
    return rule->otherwise;
}

// What takes the place of an algorithm for another number of ranks, or for fewer elements than ranks.
Algorithm fitting(Algorithm chosen, std::uint32_t size, std::uint64_t bytes) {
    const bool few = bytes < kElement * std::bit_floor(size), power = std::has_single_bit(size);
    switch (chosen) {
    case kFoldedReduce:
        return few ? kBinomialReduce : chosen;
    case kRabenseifnerReduce:
        return few ? kSwappedReduce : chosen;
    case kFoldedAllreduce:
        return few ? kRecursiveDoublingAllreduce : chosen;
    case kRecursiveDoublingAllgather:
        return power ? chosen : kBruckAllgather;
    case kScatterDoublingBcast:
        return power ? chosen : kScatterRingBcast;
    case kOverfullDoublingBcast:
        return power ? chosen : kOverfullRingBcast;
    case kButterflyReduceScatter:
        return power ? chosen : kHalvingReduceScatter;
    default:
        return chosen;
    }
}

// Without data Open MPI 5 returns at once from all but a barrier; MPICH 5 also from all but an
// allreduce and exchanges with neighbours.
// Of a vector variant the counts of one rank do not say what the others send: see collective_round.
bool sends_nothing(CollectiveChoice choice, Collective collective, std::uint64_t bytes, bool vector) {
    if (bytes > 0 || vector || collective == Collective::kBarrier || collective == Collective::kNewCommunicator)
        return false;
    return choice == CollectiveChoice::kOpenMpi ||
           (collective != Collective::kAllreduce && collective != Collective::kNeighborAllgather &&
            collective != Collective::kNeighborAlltoall);
}

} // namespace

Algorithm choose_algorithm(CollectiveChoice choice, Collective collective, std::uint32_t size, std::uint64_t bytes,
                           bool vector, bool nonblocking) {
    if (sends_nothing(choice, collective, bytes, vector))
        return kNothing;
    const std::uint8_t variant = (nonblocking ? kImmediate : 0) | (vector ? kLists : nonblocking ? 0 : kPlain);
    const bool mpich = choice == CollectiveChoice::kMpich;
    const bool whole = collective == kReduceScatter ? mpich || vector : mpich && collective == kAllgather;
    const std::uint64_t judged = whole ? bytes * size : bytes;
    return fitting(mpich ? apply_rules(kMpichRules, collective, variant, size, judged)
                         : apply_rules(kOpenMpiRules, collective, variant, size, judged),
                   size, bytes);
}

} // namespace nearmetal
