// Trees, chains and stars from or to a root.
#include "collective.hpp"

#include <algorithm>
#include <bit>

namespace nearmetal {

namespace {

constexpr std::uint64_t kAskedFor = 32 * 1024;

} // namespace

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

// From the root on, all that have the data pass it on at twice the distance each time.
Round doubling_bcast(const CollectiveCall &c, std::uint32_t round) {
    const std::uint64_t distance = std::uint64_t{1} << round;
    if (distance >= c.size)
        return {.last = true};
    const std::uint64_t me = (c.rank + c.size - c.root) % c.size;
    if (me < distance && me + distance < c.size)
        return {.send_to = as_rank((c.rank + distance) % c.size), .send_bytes = c.bytes};
    if (me >= distance && me < 2 * distance)
        return {.recv_from = as_rank((c.rank + c.size - distance) % c.size)};
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

// To the root from two ranks, to each of them from two more, and so on.
Round binary_reduce(const CollectiveCall &c, std::uint32_t round) {
    if (round > 2)
        return {.last = true};
    const std::uint64_t me = (c.rank + c.size - c.root) % c.size;
    const auto real = [&](std::uint64_t relative) { return as_rank((relative + c.root) % c.size); };
    if (round == 2)
        return me == 0 ? Round{} : Round{.send_to = real((me - 1) / 2), .send_bytes = c.bytes};
    const std::uint64_t child = 2 * me + 1 + round;
    return child < c.size ? Round{.recv_from = real(child), .reduce_bytes = c.bytes} : Round{};
}

// Halves to partners, the nearest first, and what has been reduced back to the root. Before, of ranks beyond the
// largest power of two each even one gets all from its neighbour, or shares the work and gets the neighbour's half.
Round rabenseifner_reduce(const CollectiveCall &c, std::uint32_t round, bool shared) {
    const std::uint32_t power = std::bit_floor(c.size), rest = c.size - power, log2 = rounds_log2(power);
    const std::uint32_t before = rest == 0 ? 0 : shared ? 2 : 1;
    const bool paired = c.rank < 2 * rest, gives = paired && c.rank % 2 == 1;
    if (round >= before + 2 * log2)
        return {.last = true};
    if (round < before) {
        const std::uint64_t half = block_of(c.bytes, 2);
        const std::int32_t neighbour = as_rank(c.rank ^ 1u);
        if (!paired)
            return {};
        if (!shared)
            return gives ? Round{.send_to = neighbour, .send_bytes = c.bytes}
                         : Round{.recv_from = neighbour, .reduce_bytes = c.bytes};
        if (round == 0)
            return {.send_to = neighbour, .recv_from = neighbour, .send_bytes = half, .reduce_bytes = half};
        return gives ? Round{.send_to = neighbour, .send_bytes = half} : Round{.recv_from = neighbour};
    }
    const auto folded = [&](std::uint32_t rank) { return rank < 2 * rest ? rank / 2 : rank - rest; };
    const std::uint32_t at = round - before, me = folded(c.rank), root = folded(c.root);
    const bool scatter = at < log2;
    const std::uint32_t step = scatter ? at : 2 * log2 - 1 - at, other = me ^ (1u << step);
    const std::uint64_t bytes = block_of(c.bytes, 2u << step);
    const std::int32_t partner = as_rank(other < rest ? 2 * other : other + rest);
    if (gives || (!scatter && (me ^ root) >> (step + 1) != 0)) // it has given its part away
        return {};
    if (scatter)
        return {.send_to = partner, .recv_from = partner, .send_bytes = bytes, .reduce_bytes = bytes};
    return ((me ^ root) >> step & 1) == 0 ? Round{.recv_from = partner}
                                          : Round{.send_to = partner, .send_bytes = bytes};
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
