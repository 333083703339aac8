// How Open MPI's ompi/mca/coll/han divides collectives (modules and segment sizes by default), and MPICH 5 by the
// compositions of its ch4. One rank of each node is its leader: in Open MPI the one with the root's place, in MPICH the
// first.
#include "divided.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

namespace nearmetal {

namespace {

constexpr std::uint64_t kSegment = 64 * kKi, kFlagBytes = 4, kCountsBytes = 12, kAnswerBytes = 8;

// In each node, from or to its leader; among leaders; in the root's node, from or to the root; in other nodes; among
// all.
enum class Where : std::uint8_t { kInEach, kAmong, kAtRoot, kElsewhere, kWhole };

// A flat collective that a divided one consists of, or a message.
struct Part {
    Collective collective;
    Where where;
    std::uint64_t bytes; // as of CollectiveCall
    bool nonblocking = false;
    bool behind = false;                 // the part after it starts meanwhile
    bool to_first = false;               // the root is the first node, whatever that of the whole is
    std::int32_t from = kAny, to = kAny; // of a message
};

struct Segments {
    std::uint64_t bytes;
    [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>((bytes + kSegment - 1) / kSegment); }
    [[nodiscard]] bool has(std::int64_t at) const { return at >= 0 && at < count(); }
    // That of one segment, or none.
    [[nodiscard]] Part part(Collective collective, bool up, std::int64_t at, bool nonblocking = false,
                            bool behind = false) const {
        const std::uint64_t from = static_cast<std::uint64_t>(at) * kSegment;
        const Where where = up ? Where::kAmong : Where::kInEach;
        return {collective, where, has(at) ? std::min(kSegment, bytes - from) : 0, nonblocking, behind};
    }
};

using MaybePart = std::optional<Part>;

MaybePart one_of(std::initializer_list<Part> parts, std::uint32_t stage) {
    return stage < parts.size() ? MaybePart(parts.begin()[stage]) : std::nullopt;
}

// While a node hands on a segment the next one comes.
MaybePart bcast_part(const Segments &segments, std::uint32_t stage) {
    if (stage == 0)
        return segments.part(Collective::kBcast, true, 0);
    const std::int64_t at = (stage - 1) / 2;
    if (!segments.has(at))
        return std::nullopt;
    return stage % 2 ? segments.part(Collective::kBcast, true, at + 1, true, true)
                     : segments.part(Collective::kBcast, false, at);
}

MaybePart reduce_part(const Segments &segments, std::uint32_t stage) {
    if (stage == 0)
        return segments.part(Collective::kReduce, false, 0);
    const std::int64_t at = (stage - 1) / 2;
    if (!segments.has(at))
        return std::nullopt;
    return stage % 2 ? segments.part(Collective::kReduce, true, at, true, segments.has(at + 1))
                     : segments.part(Collective::kReduce, false, at + 1);
}

// A segment is reduced in each node, then between them, and comes back on the same way, one step in each turn.
MaybePart allreduce_part(const Segments &segments, std::uint32_t stage) {
    const std::int64_t turn = stage / 4;
    if (!segments.has(turn - 3) && turn >= 3)
        return std::nullopt;
    const bool behind = segments.has(turn) || turn >= 3;
    switch (stage % 4) {
    case 0:
        return segments.part(Collective::kBcast, true, turn - 2, true, behind);
    case 1:
        return segments.part(Collective::kReduce, true, turn - 1, true, behind);
    case 2:
        return segments.part(Collective::kReduce, false, turn);
    default:
        return segments.part(Collective::kBcast, false, turn - 3);
    }
}

MaybePart openmpi_part(Collective collective, const CollectiveCall &c, const Nodes &nodes, std::uint32_t stage) {
    const std::uint64_t of_node = c.bytes * nodes.members[nodes.at[c.rank].node].size();
    const bool of_any = collective == Collective::kBarrier || collective == Collective::kAllreduce;
    if (nodes.peers.size() == 1) // it is looked each time whether a node has several, and whether all have as many
        return one_of({{Collective::kAllreduce, Where::kWhole, kFlagBytes}, {collective, Where::kWhole, c.bytes}},
                      stage);
    if (!nodes.even() && !of_any)
        return one_of({{Collective::kAllreduce, Where::kAmong, kCountsBytes},
                       {Collective::kBcast, Where::kInEach, kAnswerBytes},
                       {collective, Where::kWhole, c.bytes}},
                      stage);
    switch (collective) {
    case Collective::kBarrier:
        return one_of(
            {{collective, Where::kInEach, 0}, {collective, Where::kAmong, 0}, {collective, Where::kInEach, 0}}, stage);
    case Collective::kBcast:
        return bcast_part({c.bytes}, stage);
    case Collective::kReduce:
        return reduce_part({c.bytes}, stage);
    case Collective::kAllreduce:
        return allreduce_part({c.bytes}, stage);
    case Collective::kGather:
        return one_of({{collective, Where::kInEach, c.bytes}, {collective, Where::kAmong, of_node}}, stage);
    case Collective::kScatter:
        return one_of({{collective, Where::kAmong, of_node}, {collective, Where::kInEach, c.bytes}}, stage);
    case Collective::kAllgather:
        return one_of({{Collective::kGather, Where::kInEach, c.bytes},
                       {collective, Where::kAmong, of_node},
                       {Collective::kBcast, Where::kInEach, c.bytes * c.size}},
                      stage);
    default:
        return std::nullopt;
    }
}

// A message between two ranks, or nothing if they are one.
Part message(std::uint32_t from, std::uint32_t to, std::uint64_t bytes) {
    Part part{Collective::kBcast, Where::kInEach, bytes};
    part.from = static_cast<std::int32_t>(from);
    part.to = static_cast<std::int32_t>(to);
    return part;
}

constexpr std::uint64_t kMpichSmallBcast = 12288, kMpichLargeBcast = 512 * kKi, kMpichSmallReduce = 2 * kKi;
constexpr std::uint32_t kMpichFewRanks = 8;

// In each node, and to its leader; among leaders, and from each to the next, the last first; in all but the first node.
MaybePart scan_part(const CollectiveCall &c, const Nodes &nodes, std::uint32_t stage) {
    const auto count = static_cast<std::uint32_t>(nodes.members.size());
    const auto leader = [&](std::uint32_t node) { return nodes.members[node].front(); };
    if (stage == 0)
        return Part{Collective::kScan, Where::kInEach, c.bytes};
    if (stage <= count)
        return message(nodes.members[stage - 1].back(), leader(stage - 1), c.bytes);
    if (stage == count + 1)
        return Part{Collective::kScan, Where::kAmong, c.bytes};
    if (stage <= 2 * count)
        return message(leader(2 * count - stage), leader(2 * count - stage + 1), c.bytes);
    return one_of({{Collective::kBcast, Where::kInEach, kFlagBytes}, {Collective::kBcast, Where::kElsewhere, c.bytes}},
                  stage - 2 * count - 1);
}

MaybePart mpich_part(Collective collective, const CollectiveCall &c, const Nodes &nodes, std::uint32_t stage) {
    const std::uint32_t leader = nodes.members[nodes.at[c.root].node].front();
    const Part among{collective, Where::kAmong, c.bytes}, down{Collective::kBcast, Where::kInEach, c.bytes};
    switch (collective) {
    case Collective::kBarrier:
        return one_of({{collective, Where::kInEach, 0}, among, {Collective::kBcast, Where::kInEach, 1}}, stage);
    case Collective::kAllreduce:
        return one_of({{Collective::kReduce, Where::kInEach, c.bytes}, among, down}, stage);
    case Collective::kBcast:
        if (c.nonblocking || c.bytes < kMpichSmallBcast || c.size < kMpichFewRanks)
            return one_of({message(c.root, leader, c.bytes), among, down}, stage);
        if (c.root == leader)
            return one_of({among, down}, stage);
        return one_of({{collective, Where::kAtRoot, c.bytes}, among, {collective, Where::kElsewhere, c.bytes}}, stage);
    case Collective::kReduce: {
        Part first = among;
        first.to_first = true;
        if (!c.nonblocking && c.bytes > kMpichSmallReduce)
            return one_of({{collective, Where::kInEach, c.bytes}, first, message(0, c.root, c.bytes)}, stage);
        return one_of({{collective, Where::kElsewhere, c.bytes}, among, {collective, Where::kAtRoot, c.bytes}}, stage);
    }
    case Collective::kScan:
        return scan_part(c, nodes, stage);
    default:
        return std::nullopt;
    }
}

// Where a part takes place, and who this rank is there.
struct Group {
    const std::vector<std::uint32_t> &ranks;
    std::uint32_t rank, root;
};

std::optional<Group> group_of(const CollectiveCall &c, const Nodes &nodes, const Part &part, std::uint32_t lead) {
    const Nodes::At &me = nodes.at[c.rank], &root = nodes.at[c.root];
    const bool at_root = me.node == root.node;
    switch (part.where) {
    case Where::kAmong: {
        const std::uint32_t first = part.to_first ? 0 : nodes.at[nodes.members[root.node][lead]].up;
        return me.place == lead ? std::optional(Group{nodes.peers[lead], me.up, first}) : std::nullopt;
    }
    case Where::kWhole:
        return Group{nodes.all, c.rank, c.root};
    case Where::kInEach:
        return Group{nodes.members[me.node], me.place, lead};
    case Where::kAtRoot:
        return at_root ? std::optional(Group{nodes.members[me.node], me.place, root.place}) : std::nullopt;
    case Where::kElsewhere:
        return at_root ? std::nullopt : std::optional(Group{nodes.members[me.node], me.place, lead});
    }
    return std::nullopt;
}

std::int32_t rank_in(const Group &group, std::int32_t peer) {
    return peer == kAny ? kAny : static_cast<std::int32_t>(group.ranks[static_cast<std::size_t>(peer)]);
}

// A round of a part. Its last one ends before the next part begins, unless that starts meanwhile: then nothing but what
// is needed for a later round, or combined, is waited for.
Round part_round(CollectiveChoice choice, const CollectiveCall &whole, const Part &part, const Group &group,
                 std::uint32_t at) {
    CollectiveCall c{whole};
    c.size = static_cast<std::uint32_t>(group.ranks.size());
    c.rank = group.rank;
    c.root = group.root;
    c.bytes = part.bytes;
    c.algorithm =
        choose_algorithm(choice, part.collective, c.size, part.bytes, false, part.nonblocking || c.nonblocking);
    Round round = collective_round(c, at);
    if (round.last)
        return round;
    const bool ends = collective_round(c, at + 1).last;
    const bool waits = round.recv_from != kAny && (round.reduce_bytes > 0 || !ends);
    if (part.behind)
        round.open = !waits;
    else if (ends)
        round.open = false;
    round.send_to = rank_in(group, round.send_to);
    round.recv_from = rank_in(group, round.recv_from);
    return round;
}

} // namespace

Nodes::Nodes(std::span<const std::uint32_t> node_of) {
    std::map<std::uint32_t, std::uint32_t> number; // of each node
    for (std::uint32_t rank = 0; rank < node_of.size(); ++rank) {
        const auto [found, first] = number.try_emplace(node_of[rank], static_cast<std::uint32_t>(members.size()));
        if (first)
            members.emplace_back();
        std::vector<std::uint32_t> &here = members[found->second];
        const auto place = static_cast<std::uint32_t>(here.size());
        here.push_back(rank);
        if (place == peers.size())
            peers.emplace_back();
        at.push_back({found->second, place, static_cast<std::uint32_t>(peers[place].size())});
        peers[place].push_back(rank);
        all.push_back(rank);
    }
}

bool is_divided(CollectiveChoice choice, Collective collective, const CollectiveCall &call, const Nodes &nodes) {
    const bool openmpi = choice == CollectiveChoice::kOpenMpi, several = nodes.peers.size() > 1;
    if (nodes.members.size() < 2 || (openmpi && call.nonblocking))
        return false;
    if (!several)
        return openmpi && collective == Collective::kAllgather;
    switch (collective) {
    case Collective::kBarrier:
    case Collective::kAllreduce:
        return !call.nonblocking;
    case Collective::kBcast:
        if (!openmpi && call.size >= kMpichFewRanks && !call.nonblocking)
            return call.bytes < (std::has_single_bit(call.size) ? kMpichLargeBcast : kMpichSmallBcast);
        [[fallthrough]];
    case Collective::kReduce:
        return true;
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllgather:
        return openmpi;
    case Collective::kScan:
        return !openmpi &&
               std::is_sorted(nodes.at.begin(), nodes.at.end(),
                              [](const Nodes::At &one, const Nodes::At &next) { return one.node < next.node; });
    default:
        return false;
    }
}

Round next_round(CollectiveChoice choice, Collective collective, const CollectiveCall &call, const Nodes *nodes,
                 Progress &at) {
    if (nodes == nullptr)
        return collective_round(call, at.round++);
    const bool rooted = collective == Collective::kBcast || collective == Collective::kReduce ||
                        collective == Collective::kGather || collective == Collective::kScatter;
    const bool openmpi = choice == CollectiveChoice::kOpenMpi;
    CollectiveCall whole{call};
    whole.root = rooted ? call.root : 0;
    const std::uint32_t lead = openmpi && nodes->even() ? nodes->at[whole.root].place : 0;
    while (const MaybePart part = (openmpi ? openmpi_part : mpich_part)(collective, whole, *nodes, at.stage)) {
        if (part->from != kAny) {
            at = {at.stage + 1, 0};
            const auto me = static_cast<std::int32_t>(whole.rank);
            if (part->from != part->to && me == part->from)
                return {.send_to = part->to, .send_bytes = part->bytes};
            if (part->from != part->to && me == part->to)
                return {.recv_from = part->from};
            continue;
        }
        if (const auto group = group_of(whole, *nodes, *part, lead)) {
            const Round round = part_round(choice, whole, *part, *group, at.round);
            ++at.round;
            if (!round.last)
                return round;
        }
        at = {at.stage + 1, 0};
    }
    return {.last = true};
}

} // namespace nearmetal
