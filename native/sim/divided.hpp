// Collectives that an MPI divides by nodes: flat ones among the ranks of a node, and among one rank of each node.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective.hpp"

namespace nearmetal {

// The ranks of a communicator by node.
struct Nodes {
    struct At {
        std::uint32_t node, place, up; // `place` among those of its node, `up` among those of its place
    };
    std::vector<At> at;                              // of each rank
    std::vector<std::vector<std::uint32_t>> members; // by node; nodes and their ranks in the order of ranks
    std::vector<std::vector<std::uint32_t>> peers;   // by place: one of each node, in the order of ranks
    std::vector<std::uint32_t> all;

    explicit Nodes(std::span<const std::uint32_t> node_of);
    [[nodiscard]] bool even() const { return peers.back().size() == members.size(); }
};

// Where a rank is in a collective: `stage` counts the flat ones that a divided one consists of.
struct Progress {
    std::uint32_t stage = 0, round = 0;
};

// Whether an MPI that divides collectives divides this one among ranks on these nodes.
bool is_divided(CollectiveChoice choice, Collective collective, const CollectiveCall &call, const Nodes &nodes);

// The next round of a collective, and go past it; undivided without `nodes`. Peers are ranks of the communicator.
Round next_round(CollectiveChoice choice, Collective collective, const CollectiveCall &call, const Nodes *nodes,
                 Progress &at);

} // namespace nearmetal
