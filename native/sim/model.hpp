// The machine model: paths of each class of pair, the network between nodes, and the host side.
#pragma once

#include <cstdint>
#include <vector>

#include "collective.hpp"
#include "moderation.hpp"
#include "program.hpp"
#include "units.hpp"

namespace nearmetal {

// LogGP of one range of message sizes (Culler et al. 1993; Alexandrov et al. 1995), plus the residual distribution.
struct Segment {
    std::uint64_t up_to_bytes = 0; // the last segment also covers all larger messages
    Ps latency_ps = 0, send_overhead_ps = 0, recv_overhead_ps = 0, gap_ps = 0;
    std::uint64_t latency_fs_per_byte = 0; // how the latency of one message grows
    std::uint64_t fs_per_byte = 0;         // G, the time per byte before the sender's next one: 80,000 is 100 Gbit/s
    std::uint32_t tail = 0;                // 1 + position in Job::tables of what is added to the latency; 0 for nothing
    std::uint64_t overhead_fs_per_byte = 0; // O, what either end's processor needs for each byte

    [[nodiscard]] Ps send_overhead(std::uint64_t bytes) const {
        return send_overhead_ps + time_of(bytes, overhead_fs_per_byte);
    }
    [[nodiscard]] Ps recv_overhead(std::uint64_t bytes) const {
        return recv_overhead_ps + time_of(bytes, overhead_fs_per_byte);
    }
};

// What a message costs beyond a back-to-back one of a measurement after its process has computed for so long: the path
// through library and kernel has left the caches.
struct ColdPoint {
    Ps computed_ps, extra_ps;
};

// What an end's processor needs for a message of so many bytes while its process computes.
struct WorkPoint {
    std::uint64_t bytes;
    Ps ps;
};

// On lines from (0, 0) through points, beyond the last per byte.
[[nodiscard]] Ps work_at(const std::vector<WorkPoint> &points, std::uint64_t bytes);

struct PathModel {
    std::vector<Segment> segments;                       // rising bounds
    std::vector<ColdPoint> cold;                         // rising; from (0, 0) on lines, constant beyond the last
    std::uint64_t eager_up_to_bytes = ~std::uint64_t{0}; // larger messages use rendezvous
    std::uint64_t copy_fs_per_byte = 0; // a process's limit on sending and receiving together; 0: none
    std::uint64_t single_up_to_bytes = 0, single_copy_fs_per_byte = 0; // of the first bytes of a message
    bool fetched = false; // inside a domain: above the limit the receiver does the work of both ends
    // The least work of either end for a message while its process computes: otherwise some of it overlaps the wait for
    // the wire. Rising; on lines, beyond the last per byte.
    std::vector<WorkPoint> work;

    // That of single messages that nobody answers, where each rank has a core to itself; where empty, `work` is.
    std::vector<WorkPoint> send_work, receive_work;

    // What the receiver of a message spends in addition if the sender had not yet got what the receiver sent it:
    // neither can carry the other's acknowledgement. On lines, constant below the first and beyond the last.
    std::vector<WorkPoint> crossing;

    // What such a message leaves its receiver to do while it computes next, as for acknowledgements that come after it.
    std::vector<WorkPoint> trailing;

    [[nodiscard]] const Segment &segment(std::uint64_t bytes) const {
        std::size_t at = 0;
        while (at + 1 < segments.size() && bytes > segments[at].up_to_bytes)
            ++at;
        return segments[at];
    }

    [[nodiscard]] Ps cold_extra(Ps computed_ps) const;
    [[nodiscard]] Ps crossing_for(std::uint64_t bytes) const;
    [[nodiscard]] Ps trailing_for(std::uint64_t bytes) const;
    [[nodiscard]] Ps copy_time(std::uint64_t bytes) const;
};

// How long a collective of so many bytes takes all ranks together, from the call of the last to the end of the slowest.
struct CollectivePoint {
    std::uint64_t bytes;
    std::uint32_t table; // position in Job::tables
};

enum class PairClass : std::uint8_t { kSameDomain = 0, kSameHost = 1, kInter = 2, kSelf = 3 };
inline constexpr int kPairClasses = 4;
enum class Topology : std::uint8_t { kFlat, kFatTree, kDragonfly };

struct Machine {
    PathModel paths[kPairClasses]; // by PairClass
    // The port that all virtual functions of a host share, in each direction.
    std::uint64_t port_fs_per_byte = 0;
    Ps port_gap_ps = 0;
    // Switches: extra latency for each switch beyond the first.
    Topology topology = Topology::kFlat;
    std::uint32_t nodes_per_leaf = 1, leaves_per_group = 1;
    Ps hop_ps = 0;
    // Receive side of a virtual function.
    bool has_stage = false;
    StageSetting stage;
    std::uint32_t packet_bytes = 1500;
    // Shared receive queue: 0 buffers for none.
    std::uint32_t srq_buffers = 0, srq_low = 0;
    Ps srq_refill_ps = 0, srq_retry_ps = 0;
    // Progress: a process that has been idle longer than spin_ps sleeps, and waking it takes wakeup_ps.
    bool blocking = false;
    Ps spin_ps = 0, wakeup_ps = 0;
    std::uint32_t wakeup_tail = 0; // 1 + position in Job::tables
    bool async_progress = false;   // the library progresses rendezvous and collectives while the process computes
    std::uint64_t reduce_fs_per_byte = 0;
    CollectiveChoice collectives = CollectiveChoice::kOpenMpi;
    bool by_nodes = false; // collectives are divided where domains have several ranks
    std::vector<CollectivePoint> measured[kCollectives]; // by Collective; rising sizes; none: simulated as its messages
    double compute_scale = 1.0;
    // Cores of a computer, 0 where every rank has its own; a rank that waits yields to one that shares its core.
    std::uint32_t cores = 0;
    bool one_computer = false;    // all hosts are one computer, as namespaces are
    bool share_by_domain = false; // a core is shared evenly between domains, not between ranks
    bool way_is_work = false;     // all of a message's way is work of its sender's processor, as between namespaces
    double uneven_share = 0.0;    // of the time at first, with a core that serves one rank more than dealt
    Ps slice_ps = 0;              // how long a rank computes before it has to yield
    Ps switch_ps = 0;             // from yielding until the other rank handles its messages
    Ps look_ps = 0;               // between looks of a polling rank outside its node, for each that polls on its core
    Ps lead_ps = kNever;          // how much more than a polling rank one may have used before the other goes first

    [[nodiscard]] bool was_measured(Collective collective, std::uint64_t bytes) const {
        const std::vector<CollectivePoint> &points = measured[static_cast<std::size_t>(collective)];
        return !points.empty() && bytes >= points.front().bytes && bytes <= points.back().bytes;
    }
    [[nodiscard]] std::uint32_t extra_switches(std::uint32_t a, std::uint32_t b) const {
        if (topology == Topology::kFlat)
            return 0;
        const std::uint32_t leaf_a = a / nodes_per_leaf, leaf_b = b / nodes_per_leaf;
        if (leaf_a == leaf_b)
            return 0;
        const bool same_group = leaf_a / leaves_per_group == leaf_b / leaves_per_group;
        if (topology == Topology::kFatTree) // leaf-spine-leaf, or over the core
            return same_group ? 2 : 4;
        return same_group ? 1 : 3; // router-router; local-global-local
    }
};

inline constexpr std::uint32_t kOrder = 0x80000000; // a program's gap from here on is a position in Job::orders

struct Job {
    Machine machine;
    std::vector<Program> programs;
    std::vector<std::uint32_t> program_of; // rank -> program; empty: all run program 0
    std::uint32_t ranks = 0;
    std::vector<std::uint32_t> host_of;   // rank -> host (its port); empty: rank / ranks_per_host
    std::vector<std::uint32_t> domain_of; // rank -> virtual function, numbered over all hosts; empty: the host
    std::vector<Quantiles> tables;
    std::vector<std::vector<Ps>> orders; // of gaps that are replayed as recorded
};

// Throw std::invalid_argument with `what` when the condition does not hold.
void require(bool condition, const char *what);

// Check everything once and fill in what may be left out; throw std::invalid_argument for what cannot be simulated.
void seal(Job &job);

} // namespace nearmetal
