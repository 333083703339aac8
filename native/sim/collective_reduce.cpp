// Reductions in which each rank combines a part, and agreements that consist of reductions.
#include "collective.hpp"

#include <algorithm>
#include <bit>

namespace nearmetal {

namespace {

// What ranks agree on for a new communicator.
constexpr std::uint64_t kContextBytes = 4, kMaskElements = 65, kMaskBytes = 4 * kMaskElements;

// Of ranks beyond the largest power of two each pair with their neighbour: one of the two, the even or the odd one,
// works for both.
struct Folded {
    std::uint32_t power, rest, log2, works;
    bool paired;
    std::int32_t rank; // among the power of two, or kAny for those that wait
    Folded(const CollectiveCall &c, std::uint32_t odd)
        : power(std::bit_floor(c.size)), rest(c.size - power), log2(rounds_log2(power)), works(odd),
          paired(c.rank < 2 * rest), rank(!paired               ? as_rank(c.rank - rest)
                                          : c.rank % 2 == works ? as_rank(c.rank / 2)
                                                                : kAny) {}
    [[nodiscard]] std::int32_t original(std::uint32_t folded) const {
        return as_rank(folded < rest ? 2 * folded + works : folded + rest);
    }
    [[nodiscard]] std::int32_t partner(std::uint32_t distance) const {
        return original(static_cast<std::uint32_t>(rank) ^ distance);
    }
};

// Before: the one that works gets all from its neighbour; or both combine a half, and it gets the other.
Round fold(const CollectiveCall &c, const Folded &f, std::uint32_t round, std::uint64_t bytes, bool shared) {
    const std::int32_t neighbour = as_rank(c.rank ^ 1u);
    const std::uint64_t half = block_of(bytes, 2);
    if (!f.paired)
        return {};
    if (shared && round == 0)
        return exchange(neighbour, half, half);
    if (f.rank == kAny)
        return {.send_to = neighbour, .send_bytes = shared ? half : bytes};
    return {.recv_from = neighbour, .reduce_bytes = shared ? 0 : bytes};
}

// And after.
Round unfold(const CollectiveCall &c, const Folded &f, std::uint64_t bytes) {
    const std::int32_t neighbour = as_rank(c.rank ^ 1u);
    if (!f.paired)
        return {};
    return f.rank == kAny ? Round{.recv_from = neighbour} : Round{.send_to = neighbour, .send_bytes = bytes};
}

// A half to the nearest, half of that to one twice as far away, and so on.
Round halve(const CollectiveCall &c, const Folded &f, std::uint32_t step) {
    const std::uint64_t bytes = block_of(c.bytes, 2u << step);
    return f.rank == kAny ? Round{} : exchange(f.partner(1u << step), bytes, bytes);
}

std::uint32_t rounds_before(const Folded &f, bool shared) { return f.rest == 0 ? 0 : shared ? 2 : 1; }

} // namespace

Round recursive_doubling_allreduce(const CollectiveCall &c, std::uint32_t round) {
    const Folded f(c, 1);
    if (round == 0)
        return fold(c, f, round, c.bytes, false);
    if (round > f.log2)
        return round > f.log2 + 1 ? Round{.last = true} : unfold(c, f, c.bytes);
    return f.rank == kAny ? Round{} : exchange(f.partner(1u << (round - 1)), c.bytes, c.bytes);
}

// Halves to partners, and what has been reduced back on the same way.
Round halving_allreduce(const CollectiveCall &c, std::uint32_t round, bool shared) {
    const Folded f(c, shared ? 0 : 1);
    const std::uint32_t before = rounds_before(f, shared), at = round - before;
    if (round < before)
        return fold(c, f, round, c.bytes, shared);
    if (at >= 2 * f.log2)
        return f.rest == 0 || at > 2 * f.log2 ? Round{.last = true} : unfold(c, f, c.bytes);
    Round halved = halve(c, f, at < f.log2 ? at : 2 * f.log2 - 1 - at);
    if (at >= f.log2)
        halved.reduce_bytes = 0;
    return halved;
}

// Halves to partners, and what has been reduced to the root. One that waits takes over from rank 0 in between.
Round halving_reduce(const CollectiveCall &c, std::uint32_t round, bool shared) {
    const Folded f(c, 0);
    const bool swaps = c.root < 2 * f.rest && c.root % 2 == 1;
    const std::uint32_t before = rounds_before(f, shared), back = before + f.log2 + swaps;
    if (round < before)
        return fold(c, f, round, c.bytes, shared);
    if (round < before + f.log2)
        return halve(c, f, round - before);
    if (round < back) {
        if (c.rank == 0)
            return {.send_to = as_rank(c.root), .send_bytes = block_of(c.bytes, f.power)};
        return c.rank == c.root ? Round{.recv_from = 0} : Round{};
    }
    if (round >= back + f.log2)
        return {.last = true};
    const bool as_first = swaps && c.rank == c.root;
    if (as_first ? false : f.rank == kAny || (swaps && c.rank == 0))
        return {};
    const std::uint32_t me = as_first ? 0 : static_cast<std::uint32_t>(f.rank);
    const std::uint32_t root = swaps ? 0 : c.root < 2 * f.rest ? c.root / 2 : c.root - f.rest;
    const std::uint32_t step = f.log2 - 1 - (round - back), other = me ^ (1u << step), apart = me ^ root;
    if (apart >> (step + 1) != 0) // it has given its part away
        return {};
    const std::int32_t partner = swaps && other == 0 ? as_rank(c.root) : f.original(other);
    return (apart >> step & 1) == 0 ? Round{.recv_from = partner}
                                    : Round{.send_to = partner, .send_bytes = block_of(c.bytes, 2u << step)};
}

// A reduction to rank 0 or to all, and then a broadcast or a scatter from there.
Round reduce_first(const CollectiveCall &c, std::uint32_t round, std::uint64_t whole, Algorithm reduce,
                   Algorithm then) {
    CollectiveCall part{c};
    part.root = 0;
    part.bytes = whole;
    part.algorithm = reduce;
    std::uint32_t reducing = 0;
    while (!collective_round(part, reducing).last)
        ++reducing;
    if (round < reducing)
        return collective_round(part, round);
    part.sizes = c.recv_sizes;
    part.bytes = contributed(c, c.rank, 1);
    part.algorithm = then;
    return collective_round(part, round - reducing);
}

Round reduce_then_scatter(const CollectiveCall &c, std::uint32_t round) {
    const std::uint64_t whole = contributed(c, 0, c.size);
    const auto chosen = [&](Collective part, std::uint64_t bytes) {
        return choose_algorithm(CollectiveChoice::kOpenMpi, part, c.size, bytes, false);
    };
    return reduce_first(c, round, whole, chosen(Collective::kReduce, whole), chosen(Collective::kScatter, c.bytes));
}

// Open MPI proposes the number of a new communicator, checks it and confirms it, by its non-blocking allreduce.
Round agree_thrice(const CollectiveCall &c, std::uint32_t round) {
    const std::uint32_t each = 2 * rounds_log2(c.size);
    if (round >= 3 * each)
        return {.last = true};
    CollectiveCall one{c};
    one.bytes = kContextBytes;
    return reduce_first(one, round % each, one.bytes, Algorithm::kBinomialReduce, Algorithm::kDoublingBcast);
}

// MPICH combines masks of the numbers that are free, and rank 0 tells all which one it is.
Round agree_on_mask(const CollectiveCall &c, std::uint32_t round, bool nonblocking) {
    CollectiveCall one{c};
    one.bytes = kContextBytes;
    const bool doubles = nonblocking || std::bit_floor(c.size) > kMaskElements;
    return reduce_first(one, round, kMaskBytes,
                        doubles ? Algorithm::kRecursiveDoublingAllreduce : Algorithm::kFoldedAllreduce,
                        Algorithm::kBinomialBcast);
}

// What is for the partners' half of the ranks that are left, to partners the widest apart first.
Round halving_reduce_scatter(const CollectiveCall &c, std::uint32_t round) {
    const Folded f(c, 1);
    if (round == 0)
        return fold(c, f, round, contributed(c, 0, c.size), false);
    if (round > f.log2)
        return round > f.log2 + 1 ? Round{.last = true} : unfold(c, f, contributed(c, c.rank ^ 1u, 1));
    if (f.rank == kAny)
        return {};
    const auto first = [&](std::uint32_t folded) { return folded < f.rest ? 2 * folded : folded + f.rest; };
    const auto blocks = [&](std::uint32_t folded, std::uint32_t half) { // both of a pair
        const std::uint32_t from = folded / half * half;
        return contributed(c, first(from), first(from + half) - first(from));
    };
    const std::uint32_t half = f.power >> round, me = static_cast<std::uint32_t>(f.rank);
    return exchange(f.partner(half), blocks(me ^ half, half), blocks(me, half));
}

// Of powers of two: halves of what is left, to partners the nearest first.
Round butterfly_reduce_scatter(const CollectiveCall &c, std::uint32_t round) {
    const std::uint32_t distance = 1u << round;
    if (distance >= c.size)
        return {.last = true};
    const std::uint64_t bytes = c.bytes * (c.size / distance / 2);
    return exchange(as_rank(c.rank ^ distance), bytes, bytes);
}

// To partners the nearest first, all that is not for the own side. In each step ranks that have no partner then get
// what came from the other side, from those that had one.
Round doubling_reduce_scatter(const CollectiveCall &c, std::uint32_t round) {
    std::uint32_t step = 0;
    for (; round > step; ++step)
        round -= step + 1;
    const std::uint32_t width = 1u << step, side = c.rank & ~(width - 1), other = side ^ width;
    if (width >= c.size)
        return {.last = true};
    if (other >= c.size)
        return {};
    const std::uint32_t there = std::min(width, c.size - other);
    const std::uint64_t received = c.bytes * (c.size - there);
    if (round == 0) {
        const std::uint32_t partner = c.rank ^ width;
        return partner < c.size
                   ? exchange(as_rank(partner), c.bytes * (c.size - std::min(width, c.size - side)), received)
                   : Round{};
    }
    const std::uint32_t half = width >> round, next = c.rank ^ half, among = c.rank & ~(2 * half - 1);
    const bool has = c.rank < among + there, next_has = next < among + there;
    if (has == next_has || next >= c.size)
        return {};
    return has ? Round{.send_to = as_rank(next), .send_bytes = received}
               : Round{.recv_from = as_rank(next), .reduce_bytes = received};
}

Round pairwise_reduce_scatter(const CollectiveCall &c, std::uint32_t round) {
    if (round + 1 >= c.size)
        return {.last = true};
    const std::uint32_t to = (c.rank + round + 1) % c.size;
    return {.send_to = as_rank(to),
            .recv_from = as_rank((c.rank + c.size - round - 1) % c.size),
            .send_bytes = contributed(c, to, 1),
            .reduce_bytes = contributed(c, c.rank, 1)};
}

} // namespace nearmetal
