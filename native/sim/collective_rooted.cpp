// Trees, chains and stars from or to a root.
#include "collective.hpp"

#include <algorithm>
#include <bit>

namespace nearmetal {

namespace {

constexpr std::uint64_t kAskedFor = 32 * 1024;

// Ranks counted from the root, and back; `swapped`: with rank 0 in the root's place.
struct FromRoot {
    std::uint32_t size, root, rank;
    bool swapped;
    explicit FromRoot(const CollectiveCall &c, bool swaps = false)
        : size(c.size), root(c.root), rank(swaps ? swap(c.rank) : (c.rank + c.size - c.root) % c.size), swapped(swaps) {
    }
    [[nodiscard]] std::int32_t real(std::uint64_t relative) const {
        return as_rank(swapped ? swap(relative) : (relative + root) % size);
    }
    [[nodiscard]] std::uint32_t swap(std::uint64_t one) const {
        return one == root ? 0 : one == 0 ? root : static_cast<std::uint32_t>(one);
    }
};

// A binary tree as Open MPI builds it: 2^n ranks at depth n, of which each has one child as many ranks further on as
// its level has, and one twice as far.
struct Binary {
    std::uint64_t rank, level;
    explicit Binary(std::uint32_t me) : rank(me), level(std::bit_floor(std::uint64_t{me} + 1)) {}
    [[nodiscard]] std::uint64_t child(std::uint32_t at) const { return rank + (at + 1) * level; }
    [[nodiscard]] std::uint64_t parent() const {
        return rank + 1 - level < level / 2 ? rank - level / 2 : rank - level;
    }
};

} // namespace

// A tree over ranks counted from the root. Down: the widest distance first. Up: the narrowest first.
// `block` > 0: each edge carries that much for every rank of the subtree below it, else `c.bytes`.
Round binomial(const CollectiveCall &c, std::uint32_t round, bool down, std::uint64_t block, bool reduce,
               bool swapped) {
    const std::uint32_t rounds = rounds_log2(c.size);
    if (round >= rounds)
        return {.last = true};
    const std::uint32_t width = 1u << (down ? rounds - 1 - round : round);
    const FromRoot tree(c, swapped);
    const std::uint32_t me = tree.rank, within = me % (2 * width);
    const auto volume = [&](std::uint32_t child) { return block ? block * std::min(width, c.size - child) : c.bytes; };
    if (within == width) { // a child: its parent is `width` below
        if (down)
            return {.recv_from = tree.real(me - width)};
        return {.send_to = tree.real(me - width), .send_bytes = volume(me)};
    }
    if (within != 0 || me + width >= c.size)
        return {};
    if (down)
        return {.send_to = tree.real(me + width), .send_bytes = volume(me + width)};
    return {.recv_from = tree.real(me + width), .reduce_bytes = reduce ? c.bytes : 0};
}

// From the root on, all that have the data pass it on at twice the distance each time.
Round doubling_bcast(const CollectiveCall &c, std::uint32_t round, bool swapped) {
    const std::uint64_t distance = std::uint64_t{1} << round;
    if (distance >= c.size)
        return {.last = true};
    const FromRoot me(c, swapped);
    if (me.rank < distance && me.rank + distance < c.size)
        return {.send_to = me.real(me.rank + distance), .send_bytes = c.bytes};
    if (me.rank >= distance && me.rank < 2 * distance)
        return {.recv_from = me.real(me.rank - distance)};
    return {};
}

// From the root on, or to it, segment by segment.
Round chain(const CollectiveCall &c, std::uint32_t round, std::uint64_t segment, bool reduce) {
    const auto segments = static_cast<std::uint32_t>((c.bytes + segment - 1) / segment);
    const std::uint32_t me = (c.rank + c.size - c.root) % c.size, behind = reduce ? c.size - 1 - me : me;
    const std::uint32_t onward = reduce ? c.size - 1 : 1;
    if (round > segments)
        return {.last = true};
    Round r;
    if (behind > 0 && round < segments) {
        r.recv_from = as_rank((c.rank + c.size - onward) % c.size);
        r.reduce_bytes = reduce ? std::min(segment, c.bytes - round * segment) : 0;
    }
    if (behind + 1 < c.size && round > 0) {
        r.send_to = as_rank((c.rank + onward) % c.size);
        r.send_bytes = std::min(segment, c.bytes - (round - 1) * segment);
    }
    return r;
}

// From the largest rank down, one after the other.
Round linear_reduce(const CollectiveCall &c, std::uint32_t round) {
    if (c.rank != c.root)
        return round > 0 ? Round{.last = true} : Round{.send_to = as_rank(c.root), .send_bytes = c.bytes};
    if (round + 1 >= c.size)
        return {.last = true};
    const std::uint32_t peer = c.size - 1 - round;
    return {.recv_from = as_rank(peer > c.root ? peer : peer - 1), .reduce_bytes = c.bytes};
}

Round binary_reduce(const CollectiveCall &c, std::uint32_t round) {
    const FromRoot me(c);
    const Binary tree(me.rank);
    if (round > 2)
        return {.last = true};
    if (round == 2)
        return me.rank == 0 ? Round{} : Round{.send_to = me.real(tree.parent()), .send_bytes = c.bytes};
    const std::uint64_t child = tree.child(round);
    return child < c.size ? Round{.recv_from = me.real(child), .reduce_bytes = c.bytes} : Round{};
}

Round binary_bcast(const CollectiveCall &c, std::uint32_t round) {
    const FromRoot me(c);
    const Binary tree(me.rank);
    if (round > 2)
        return {.last = true};
    if (round == 0)
        return me.rank == 0 ? Round{} : Round{.recv_from = me.real(tree.parent())};
    const std::uint64_t child = tree.child(round - 1);
    return {.send_to = child < c.size ? me.real(child) : kAny, .send_bytes = c.bytes, .open = true};
}

// Each rank hands the data to three at a fourth of its own distance, then to three at a fourth of that, and so on.
Round knomial_bcast(const CollectiveCall &c, std::uint32_t round) {
    constexpr std::uint64_t kRadix = 4, kChildren = kRadix - 1;
    const FromRoot me(c);
    std::uint64_t width = 1;
    while (width < c.size && me.rank % (kRadix * width) == 0)
        width *= kRadix;
    if (round == 0)
        return me.rank == 0 ? Round{} : Round{.recv_from = me.real(me.rank / (kRadix * width) * kRadix * width)};
    for (std::uint32_t level = (round - 1) / kChildren + 1; level > 0; --level)
        width /= kRadix;
    if (width == 0)
        return {.last = true};
    const std::uint64_t child = me.rank + width * ((round - 1) % kChildren + 1);
    return {.send_to = child < c.size ? me.real(child) : kAny, .send_bytes = c.bytes, .open = true};
}

// Each rank gets its part from the root by a tree; then all gather the parts. `overfull`: as MPICH does where the call
// returns at once, ranks hand their first child all that is for later ranks, which it has no use for.
Round scatter_allgather(const CollectiveCall &c, std::uint32_t round, bool doubling, bool overfull) {
    const std::uint32_t scatter = rounds_log2(c.size);
    const FromRoot me(c);
    CollectiveCall gather{c};
    gather.bytes = block_of(c.bytes, c.size);
    if (round < scatter) {
        Round part = binomial(c, round, true, std::max<std::uint64_t>(gather.bytes, 1), false);
        const std::uint32_t child = me.rank + (1u << (scatter - 1 - round));
        if (overfull && me.rank > 0 && part.send_to != kAny && child - me.rank == (me.rank & -me.rank) / 2)
            part.send_bytes = gather.bytes * (c.size - child);
        return part;
    }
    gather.algorithm = doubling ? Algorithm::kRecursiveDoublingAllgather : Algorithm::kRingAllgather;
    if (!doubling)
        return collective_round(gather, round - scatter);
    gather.rank = me.rank;
    Round exchanged = collective_round(gather, round - scatter);
    if (!exchanged.last)
        exchanged.send_to = exchanged.recv_from = me.real(static_cast<std::uint32_t>(exchanged.send_to));
    return exchanged;
}

Round linear_rooted(const CollectiveCall &c, std::uint32_t round, bool gather) {
    if (c.rank != c.root) {
        if (round > 0 || c.bytes == 0)
            return {.last = true};
        if (!gather)
            return {.recv_from = as_rank(c.root)};
        return {.send_to = as_rank(c.root), .send_bytes = c.bytes};
    }
    if (round + 1 >= c.size)
        return {.last = true};
    const std::uint32_t peer = round < c.root ? round : round + 1;
    if (gather)
        return {.recv_from = is_empty(c.recv_sizes, peer) ? kAny : as_rank(peer), .open = true};
    return {.send_to = is_empty(c.sizes, peer) ? kAny : as_rank(peer),
            .send_bytes = c.sizes.empty() ? c.bytes : c.sizes[peer],
            .open = true};
}

// The root asks each rank for the rest once it has the first of it: all at once here.
Round asked_gather(const CollectiveCall &c, std::uint32_t round) {
    const std::uint32_t others = c.size - 1, asked = round % others;
    if (round >= 3 * (c.rank == c.root ? others : 1))
        return {.last = true};
    if (c.rank == c.root) {
        const std::int32_t peer = as_rank(asked < c.root ? asked : asked + 1);
        return round < others ? Round{.send_to = peer, .open = true} : Round{.recv_from = peer, .open = true};
    }
    if (round == 0)
        return {.recv_from = as_rank(c.root)};
    return {.send_to = as_rank(c.root), .send_bytes = round == 1 ? kAskedFor : c.bytes - kAskedFor, .open = round == 1};
}

} // namespace nearmetal
