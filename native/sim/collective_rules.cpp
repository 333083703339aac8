// Which algorithm an MPI chooses: ompi/mca/coll/tuned (fixed decisions) and MPICH's src/mpi/coll, simplified where
// stated.
#include "collective.hpp"

#include <bit>

namespace nearmetal {

namespace {

// For fewer than so many ranks and bytes: the first row that matches.
struct Rule {
    std::uint32_t ranks;
    std::uint64_t bytes;
    Algorithm algorithm;
};
constexpr std::uint32_t kAnyRanks = ~std::uint32_t{0};
constexpr std::uint64_t kAnyBytes = ~std::uint64_t{0};

// As Open MPI chooses since 4.1 (pull requests 7730 and 7952), earlier versions by other rules. Algorithms that are not
// modelled use the nearest that is: linear_sync, which sends all at once unless given a limit, as linear; trees of
// other widths as binomial; neighbour exchange and segmented rings as rings; a ring of fewer elements than ranks, and a
// reduction with a broadcast behind it, as recursive doubling; butterflies, and a reduction with a scatter behind it,
// as recursive halving.
constexpr Rule kAlltoallRules[] = {
    {3, kAnyBytes, Algorithm::kPairwiseAlltoall},
    {8, 512 * kKi, Algorithm::kLinearAlltoall},
    {8, 1024 * kKi, Algorithm::kPairwiseAlltoall},
    {16, kAnyBytes, Algorithm::kLinearAlltoall},
    {32, 4, Algorithm::kLinearAlltoall},
    {64, 512, Algorithm::kBruckAlltoall},
    {64, kAnyBytes, Algorithm::kLinearAlltoall},
    {512, kKi, Algorithm::kBruckAlltoall},
    {1024, 512, Algorithm::kBruckAlltoall},
    {256, 256 * kKi, Algorithm::kLinearAlltoall},
    {512, 32 * kKi, Algorithm::kLinearAlltoall},
    {512, kAnyBytes, Algorithm::kPairwiseAlltoall},
    {1024, 256 * kKi, Algorithm::kLinearAlltoall},
    {1024, kAnyBytes, Algorithm::kPairwiseAlltoall},
    {2048, 512, Algorithm::kBruckAlltoall},
    {2048, kAnyBytes, Algorithm::kLinearAlltoall},
    {4096, kKi, Algorithm::kBruckAlltoall},
    {4096, kAnyBytes, Algorithm::kLinearAlltoall},
    {kAnyRanks, 2 * kKi, Algorithm::kBruckAlltoall},
    {kAnyRanks, kAnyBytes, Algorithm::kLinearAlltoall},
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
    {32, kAnyBytes, Algorithm::kRecursiveDoublingAllgather},      {64, kKi, Algorithm::kRecursiveDoublingAllgather},
    {256, 512, Algorithm::kRecursiveDoublingAllgather},           {256, kAnyBytes, Algorithm::kRingAllgather},
    {512, kKi, Algorithm::kRecursiveDoublingAllgather},           {512, kAnyBytes, Algorithm::kRingAllgather},
    {1024, 2 * kKi, Algorithm::kRecursiveDoublingAllgather},      {1024, kAnyBytes, Algorithm::kRingAllgather},
    {kAnyRanks, 4 * kKi, Algorithm::kRecursiveDoublingAllgather}, {kAnyRanks, kAnyBytes, Algorithm::kRingAllgather},
};
constexpr Rule kBcastRules[] = {
    {4, kKi, Algorithm::kDoublingBcast},
    {4, 32 * kKi, Algorithm::kLinearBcast},
    {4, 128 * kKi, Algorithm::kDoublingBcast},
    {4, 256 * kKi, Algorithm::kChainBcast},
    {4, 512 * kKi, Algorithm::kLinearBcast},
    {4, kAnyBytes, Algorithm::kDoublingBcast},
    {8, 8 * kKi, Algorithm::kDoublingBcast},
    {8, 1024 * kKi, Algorithm::kLinearBcast},
    {8, kAnyBytes, Algorithm::kChainBcast},
    {16, 32 * kKi, Algorithm::kDoublingBcast},
    {16, kAnyBytes, Algorithm::kLinearBcast},
    {32, 1024 * kKi, Algorithm::kDoublingBcast},
    {32, kAnyBytes, Algorithm::kScatterAllgatherBcast},
    {1024, kAnyBytes, Algorithm::kDoublingBcast},
    {2048, 512 * kKi, Algorithm::kDoublingBcast},
    {kAnyRanks, 256 * kKi, Algorithm::kDoublingBcast},
    {kAnyRanks, kAnyBytes, Algorithm::kScatterAllgatherBcast},
};
constexpr Rule kGatherRules[] = {
    {4, 32 * kKi, Algorithm::kBinomialGather},    {4, 64 * kKi, Algorithm::kLinearGather},
    {4, 128 * kKi, Algorithm::kBinomialGather},   {4, kAnyBytes, Algorithm::kLinearGather},
    {8, kKi, Algorithm::kBinomialGather},         {8, 8 * kKi, Algorithm::kLinearGather},
    {8, 32 * kKi, Algorithm::kBinomialGather},    {8, kAnyBytes, Algorithm::kLinearGather},
    {256, kAnyBytes, Algorithm::kBinomialGather}, {512, 2 * kKi, Algorithm::kBinomialGather},
    {512, 8 * kKi, Algorithm::kLinearGather},     {kAnyRanks, kAnyBytes, Algorithm::kBinomialGather},
};
constexpr Rule kScatterRules[] = {
    {4, kAnyBytes, Algorithm::kLinearScatter},         {8, 2 * kKi, Algorithm::kBinomialScatter},
    {8, 4 * kKi, Algorithm::kLinearScatter},           {8, 8 * kKi, Algorithm::kBinomialScatter},
    {8, kAnyBytes, Algorithm::kLinearScatter},         {32, 16 * kKi, Algorithm::kBinomialScatter},
    {32, kAnyBytes, Algorithm::kLinearScatter},        {kAnyRanks, 512, Algorithm::kBinomialScatter},
    {64, 8 * kKi, Algorithm::kLinearScatter},          {64, 16 * kKi, Algorithm::kBinomialScatter},
    {kAnyRanks, kAnyBytes, Algorithm::kLinearScatter},
};
constexpr Rule kAllgathervRules[] = {
    {3, kAnyBytes, Algorithm::kRingAllgather},
    {8, 256, Algorithm::kGatherBcast},
    {8, 16 * kKi, Algorithm::kRingAllgather},
    {8, 256 * kKi, Algorithm::kBruckAllgather},
    {8, kAnyBytes, Algorithm::kRingAllgather},
    {16, kKi, Algorithm::kGatherBcast},
    {16, kAnyBytes, Algorithm::kBruckAllgather},
    {32, 128, Algorithm::kGatherBcast},
    {32, 256 * kKi, Algorithm::kBruckAllgather},
    {32, kAnyBytes, Algorithm::kRingAllgather},
    {128, 256, Algorithm::kGatherBcast},
    {64, 8 * kKi, Algorithm::kBruckAllgather},
    {128, 4 * kKi, Algorithm::kBruckAllgather},
    {512, kKi, Algorithm::kBruckAllgather},
    {512, kAnyBytes, Algorithm::kRingAllgather},
    {1024, 512, Algorithm::kBruckAllgather},
    {1024, kKi, Algorithm::kGatherBcast},
    {kAnyRanks, 4 * kKi, Algorithm::kBruckAllgather},
    {kAnyRanks, kAnyBytes, Algorithm::kRingAllgather},
};
// By the bytes of all blocks; MPI_Reduce_scatter_block has its own rules, which nearly always halve.
constexpr Rule kReduceScatterRules[] = {
    {4, kAnyBytes, Algorithm::kRingReduceScatter},  {32, 256 * kKi, Algorithm::kHalvingReduceScatter},
    {32, kAnyBytes, Algorithm::kRingReduceScatter}, {64, 512 * kKi, Algorithm::kHalvingReduceScatter},
    {64, kAnyBytes, Algorithm::kRingReduceScatter}, {kAnyRanks, kAnyBytes, Algorithm::kHalvingReduceScatter},
};

template <std::size_t kRows>
Algorithm apply_rules(const Rule (&rules)[kRows], std::uint32_t size, std::uint64_t bytes) {
    for (const Rule &rule : rules)
        if (size < rule.ranks && bytes < rule.bytes)
            return rule.algorithm;
    return rules[kRows - 1].algorithm;
}

Algorithm choose_openmpi(Collective collective, std::uint32_t size, std::uint64_t bytes, bool vector) {
    switch (collective) {
    case Collective::kBarrier:
        return size >= 3 && size < 8 ? Algorithm::kLinearBarrier : Algorithm::kDissemination;
    case Collective::kBcast:
        return apply_rules(kBcastRules, size, bytes);
    case Collective::kReduce:
        return Algorithm::kBinomialReduce;
    case Collective::kAllreduce:
        return apply_rules(kAllreduceRules, size, bytes);
    case Collective::kGather:
        return vector ? Algorithm::kLinearGather : apply_rules(kGatherRules, size, bytes);
    case Collective::kScatter:
        return vector ? Algorithm::kLinearScatter : apply_rules(kScatterRules, size, bytes);
    case Collective::kAllgather: {
        const Algorithm chosen =
            vector ? apply_rules(kAllgathervRules, size, bytes) : apply_rules(kAllgatherRules, size, bytes);
        const bool doubling = chosen == Algorithm::kRecursiveDoublingAllgather;
        return doubling && !std::has_single_bit(size) ? Algorithm::kBruckAllgather : chosen;
    }
    case Collective::kAlltoall:
        return vector ? apply_rules(kAlltoallvRules, size, bytes) : apply_rules(kAlltoallRules, size, bytes);
    case Collective::kNewCommunicator:
        return Algorithm::kAgreeThrice;
    case Collective::kAlltoallInPlace: // two ranks at each distance in turn; before 5.0 as MPICH
        return Algorithm::kPairwiseAlltoall;
    case Collective::kReduceScatter:
        return vector ? apply_rules(kReduceScatterRules, size, bytes * size) : Algorithm::kHalvingReduceScatter;
    case Collective::kScan:
    case Collective::kExscan:
        return Algorithm::kLinearScan;
    case Collective::kNeighborAllgather:
    case Collective::kNeighborAlltoall:
        return Algorithm::kNeighbors;
    }
    return Algorithm::kDissemination;
}

// Open MPI's libnbc, which has all non-blocking and persistent ones. An allreduce in place is modelled as others, and a
// reduction whose root's neighbour would work for it as that to the neighbour.
Algorithm choose_libnbc(Collective collective, std::uint32_t size, std::uint64_t bytes, bool vector) {
    switch (collective) {
    case Collective::kBarrier:
        return Algorithm::kDissemination;
    case Collective::kBcast:
        return size <= 4 ? Algorithm::kLinearBcast : Algorithm::kDoublingBcast;
    case Collective::kReduce:
        if (size > 2 && bytes >= kElement * std::bit_floor(size))
            return Algorithm::kRabenseifnerReduce;
        return size == 2 && bytes >= 64 * kKi ? Algorithm::kChainReduce : Algorithm::kBinomialReduce;
    case Collective::kAllreduce:
        return size < 4 || bytes < 64 * kKi ? Algorithm::kReduceBcast : Algorithm::kRabenseifnerAllreduce;
    case Collective::kGather:
        return Algorithm::kLinearGather;
    case Collective::kScatter:
        return Algorithm::kLinearScatter;
    case Collective::kAllgather:
        return Algorithm::kLinearAllgather;
    case Collective::kAlltoall:
        return Algorithm::kLinearAlltoall;
    case Collective::kReduceScatter:
        return Algorithm::kReduceScatter;
    default:
        return choose_openmpi(collective, size, bytes, vector);
    }
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
        if (bytes * size >= 524288 || (!power && bytes * size >= 81920))
            return Algorithm::kRingAllgather;
        return power && !vector ? Algorithm::kRecursiveDoublingAllgather : Algorithm::kBruckAllgather;
    case Collective::kAlltoall:
        if (!vector && bytes <= 256 && size >= 8)
            return Algorithm::kBruckAlltoall;
        return vector || bytes <= 32768 ? Algorithm::kLinearAlltoall : Algorithm::kPairwiseAlltoall;
    case Collective::kNewCommunicator:
        return Algorithm::kAgreeOnMask;
    case Collective::kAlltoallInPlace: // of an alltoallv those on the same node first, which is not modelled
        return Algorithm::kOrderedAlltoall;
    case Collective::kReduceScatter:
        return bytes * size < 524288 ? Algorithm::kHalvingReduceScatter : Algorithm::kRingReduceScatter;
    case Collective::kScan:
    case Collective::kExscan:
        return Algorithm::kRecursiveDoublingScan;
    default:
        return choose_openmpi(collective, size, bytes, vector);
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
        return Algorithm::kNothing;
    if (choice == CollectiveChoice::kMpich)
        return choose_mpich(collective, size, bytes, vector);
    return nonblocking ? choose_libnbc(collective, size, bytes, vector)
                       : choose_openmpi(collective, size, bytes, vector);
}

} // namespace nearmetal
