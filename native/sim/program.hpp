// What ranks do: the simulator's input, shared and read-only during a run.
//
// A program is a list of instructions over a table of operations. Many ranks may share one program: then peers are
// rules (`Peer`) that are computed from the rank number, so a million ranks cost no more than their state.
#pragma once

#include <cstdint>
#include <vector>

#include "units.hpp"

namespace nearmetal {

inline constexpr std::uint32_t kNone = 0xFFFFFFFF;
inline constexpr std::int32_t kAny = -1; // wildcard source or tag; also "no peer"

enum class OpKind : std::uint8_t { kSend, kRecv, kSendrecv, kWait, kProbe, kCollective, kMark, kCancel };

// How `Op::peer` becomes a rank. kCart and kXor and kShift work on the ranks of the operation's communicator.
enum class Peer : std::uint8_t {
    kRank,      // peer is the rank in the communicator
    kCart,      // peer is 2 * dimension + (1 for the upper neighbour) of the program's process grid
    kXor,       // own rank ^ peer
    kShift,     // (own rank + peer) modulo the size
    kTranspose, // the mirror of the own rank in a square grid of `peer` columns
};

enum class Collective : std::uint8_t {
    kBarrier,
    kBcast,
    kReduce,
    kAllreduce,
    kGather,
    kAllgather,
    kScatter,
    kAlltoall,
    kReduceScatter,
    kScan,
    kExscan,
    kAlltoallInPlace,
    kNewCommunicator,
    kNeighborAllgather,
    kNeighborAlltoall,
};
inline constexpr std::size_t kCollectives = static_cast<std::size_t>(Collective::kNeighborAlltoall) + 1;

inline constexpr std::uint8_t kNonblocking = 1, kSynchronous = 2, kVector = 4;

struct Op {
    OpKind kind = OpKind::kSend;
    std::uint8_t flags = 0;
    Peer rule = Peer::kRank, recv_rule = Peer::kRank;
    Collective collective = Collective::kBarrier;
    std::uint32_t comm = 0; // position in Program::comms
    std::int32_t peer = kAny, tag = 0;
    std::int32_t recv_peer = kAny, recv_tag = 0;
    std::uint64_t bytes = 0;
    std::uint32_t slot = 0;                          // non-blocking calls
    std::uint32_t slots = 0;                         // wait: position in Program::slot_sets
    // Vector collectives that know them: positions in Program::size_lists.
    std::uint32_t sizes = kNone, recv_sizes = kNone;
};

struct Comm {
    std::uint32_t context = 0; // the same number on all members, different for communicators that share ranks
    // Explicit members (world ranks), or when empty a rule: ranks with equal (rank / (stride * size), rank % stride).
    std::vector<std::uint32_t> members;
    std::uint32_t my_rank = 0; // with explicit members
    std::uint32_t stride = 1, size = 0;
    std::vector<std::uint32_t> dims, periods; // Cartesian; row-major, the last dimension varies fastest
};

enum class Instr : std::uint32_t { kOp = 0, kGap = 1, kRepeat = 2, kEnd = 3 }; // low two bits of a code word

struct Program {
    std::vector<std::uint32_t> code; // argument << 2 | Instr
    std::vector<Op> ops;
    std::vector<std::uint32_t> gaps; // positions in Job::tables, or kOrder and a position in Job::orders
    std::vector<std::vector<std::uint32_t>> slot_sets;
    std::vector<std::vector<std::uint64_t>> size_lists;
    std::vector<Comm> comms;
    std::vector<std::uint32_t> dims, periods; // of Peer::kCart over all ranks
    std::uint32_t slots = 0;                  // request slots in use
    std::uint32_t depth = 0;                  // deepest nesting of repeats

    // Derive depth and the partner of each repeat from the code. Returns false when code or an index is not
    // well-formed.
    bool seal();
    std::vector<std::uint32_t> partner; // of each kRepeat: its kEnd; of each kEnd: its kRepeat
    std::vector<std::uint32_t> level;   // of each kRepeat and kEnd: nesting depth from 0
};

} // namespace nearmetal
