// Rounds of collectives with a root, and what all rounds need.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "collective.hpp"

namespace nearmetal {

inline std::uint32_t rounds_log2(std::uint32_t size) {
    return size <= 1 ? 0 : static_cast<std::uint32_t>(std::bit_width(size - 1));
}
inline std::int32_t as_rank(std::uint64_t rank) { return static_cast<std::int32_t>(rank); }
inline std::uint64_t block_of(std::uint64_t bytes, std::uint32_t size) { return (bytes + size - 1) / size; }

// Both MPIs leave out the empty parts of an alltoallv, a gatherv and a scatterv.
inline bool is_empty(std::span<const std::uint64_t> sizes, std::uint32_t peer) {
    return !sizes.empty() && sizes[peer] == 0;
}

Round binomial(const CollectiveCall &c, std::uint32_t round, bool down, std::uint64_t block, bool reduce);
Round doubling_bcast(const CollectiveCall &c, std::uint32_t round);
Round chain(const CollectiveCall &c, std::uint32_t round, std::uint64_t segment, bool reduce);
Round binary_reduce(const CollectiveCall &c, std::uint32_t round);
Round rabenseifner_reduce(const CollectiveCall &c, std::uint32_t round, bool shared);
Round linear_rooted(const CollectiveCall &c, std::uint32_t round, bool gather);
Round asked_gather(const CollectiveCall &c, std::uint32_t round);

} // namespace nearmetal
