// Checks once everything about a job that the engine relies on.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "model.hpp"

namespace nearmetal {

namespace {
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;
} // namespace

void require(bool condition, const char *what) {
    if (!condition)
        throw std::invalid_argument(what);
}

namespace {

void check_table(const Job &job, std::uint32_t table) { require(table <= job.tables.size(), "machine: no such table"); }

bool is_duration(Ps time) { return time >= 0 && time <= kLongestPart; }

bool has_cells(const std::vector<std::uint32_t> &dims, std::uint64_t cells) {
    std::uint64_t product = 1;
    for (const std::uint32_t extent : dims)
        product = product <= cells ? product * extent : product; // a larger product cannot match again, except by 0
    return product == cells && std::find(dims.begin(), dims.end(), 0u) == dims.end();
}

void check_machine(const Job &job) {
    const Machine &m = job.machine;
    for (const PathModel &path : m.paths) {
        require(!path.segments.empty(), "machine: a path without segments");
        for (const Segment &s : path.segments) {
            require(is_duration(s.latency_ps) && is_duration(s.send_overhead_ps) && is_duration(s.recv_overhead_ps) &&
                        is_duration(s.gap_ps),
                    "machine: a duration below 0 or above 40 hours");
            check_table(job, s.tail);
        }
        require(path.single_copy_fs_per_byte <= path.copy_fs_per_byte, "machine: single messages are copied slower");
        ColdPoint before{0, 0};
        for (const std::vector<WorkPoint> *const points : {&path.crossing, &path.trailing})
            for (std::size_t i = 0; i < points->size(); ++i)
                require(is_duration((*points)[i].ps) && (i == 0 || (*points)[i].bytes > (*points)[i - 1].bytes),
                        "machine: sizes of crossing messages do not rise");
        for (const ColdPoint &point : path.cold) {
            require(point.computed_ps > before.computed_ps && point.extra_ps >= before.extra_ps &&
                        is_duration(point.computed_ps) && is_duration(point.extra_ps),
                    "machine: what computing adds to a message does not rise");
            before = point;
        }
        for (const std::vector<WorkPoint> *const points : {&path.work, &path.send_work, &path.receive_work})
            for (std::size_t i = 0; i < points->size(); ++i)
                require(is_duration((*points)[i].ps) && (i == 0 || ((*points)[i].bytes > (*points)[i - 1].bytes &&
                                                                    (*points)[i].ps >= (*points)[i - 1].ps)),
                        "machine: what messages take of processors does not rise");
    }
    for (const std::vector<CollectivePoint> &points : m.measured)
        for (std::size_t i = 0; i < points.size(); ++i)
            require(points[i].table < job.tables.size() && (i == 0 || points[i].bytes > points[i - 1].bytes),
                    "machine: sizes of a measured collective do not rise, or have no times");
    check_table(job, m.stage.delivery_tail);
    check_table(job, m.wakeup_tail);
    require(m.nodes_per_leaf > 0 && m.leaves_per_group > 0, "machine: an empty switch");
    require(is_duration(m.port_gap_ps) && is_duration(m.hop_ps) && is_duration(m.srq_refill_ps) &&
                is_duration(m.srq_retry_ps) && is_duration(m.spin_ps) && is_duration(m.wakeup_ps) &&
                is_duration(m.stage.delivery_ps) && is_duration(m.stage.poll_ps) && is_duration(m.stage.packet_ps) &&
                is_duration(m.stage.budget_ps) && is_duration(m.stage.ksoftirqd_ps) && is_duration(m.stage.defer_ps) &&
                m.stage.packet_gap_ps >= 0 && m.stage.packet_gap_ps <= kPsPerUs * 1'000'000,
            "machine: a duration below 0 or above 40 hours");
    require(std::isfinite(m.compute_scale) && m.compute_scale >= 0, "machine: compute time times no number");
    require(m.stage.weight > 0 && m.stage.moderation.rings > 0, "machine: NAPI weight or rings of 0");
    require(m.cores == 0 || (m.slice_ps > 0 && is_duration(m.slice_ps) && is_duration(m.switch_ps) &&
                             (m.lead_ps == kNever || is_duration(m.lead_ps))),
            "machine: cores without a time slice");
    require(m.uneven_share >= 0.0 && m.uneven_share <= 1.0, "machine: no such share of uneven time");
    require(m.srq_buffers == 0 || m.srq_low < m.srq_buffers, "machine: SRQ watermark not below its size");
}

void check_program(const Job &job, const Program &p, bool shared) {
    const auto known = [&](std::uint32_t gap) {
        return gap < kOrder ? gap < job.tables.size() : gap - kOrder < job.orders.size();
    };
    require(std::all_of(p.gaps.begin(), p.gaps.end(), known), "program: a gap without a table");
    for (const Comm &c : p.comms) {
        const bool explicit_ok = std::all_of(c.members.begin(), c.members.end(), [&](auto m) { return m < job.ranks; });
        const std::uint64_t block = std::uint64_t{c.stride} * c.size;
        require(c.dims.empty() || has_cells(c.dims, c.members.empty() ? c.size : c.members.size()),
                "program: a grid that does not fit its communicator");
        require(c.members.empty() ? block > 0 && job.ranks % block == 0 : explicit_ok && !shared,
                "program: a communicator that does not fit the ranks");
    }
    for (const Op &op : p.ops) {
        const Comm &c = p.comms[op.comm];
        const std::int64_t size = c.members.empty() ? c.size : static_cast<std::int64_t>(c.members.size());
        const auto fits = [&](Peer rule, std::int32_t peer) {
            const std::int64_t given = peer;
            switch (rule) {
            case Peer::kRank:
                return given >= kAny && given < size;
            case Peer::kCart:
                return given >= 0 && given < 2 * static_cast<std::int64_t>(p.dims.size()) &&
                       has_cells(p.dims, static_cast<std::uint64_t>(size));
            case Peer::kTranspose:
                return given > 0 && given * given == size;
            default:
                return given >= 0;
            }
        };
        require(op.bytes <= kMostBytes, "program: a message of more than a petabyte");
        require(fits(op.rule, op.peer) && fits(op.recv_rule, op.recv_peer), "program: a peer outside its communicator");
        const bool neighbors = op.collective >= Collective::kNeighborAllgather;
        const std::size_t peers = neighbors ? 2 * c.dims.size() : static_cast<std::size_t>(size);
        const auto list_fits = [&](std::uint32_t list) { return list == kNone || p.size_lists[list].size() == peers; };
        require(list_fits(op.sizes) && list_fits(op.recv_sizes), "program: a size list of another length");
    }
}

} // namespace

void seal(Job &job) {
    require(job.ranks > 0 && !job.programs.empty(), "job: no ranks or no program");
    require(job.program_of.empty() || job.program_of.size() == job.ranks, "job: program_of has another length");
    require(job.host_of.size() == job.ranks && job.domain_of.size() == job.ranks, "job: a rank map of another length");
    for (const std::uint32_t p : job.program_of)
        require(p < job.programs.size(), "job: no such program");
    check_machine(job);
    for (Program &p : job.programs) {
        require(p.seal(), "program: not well-formed");
        check_program(job, p, job.program_of.empty() && job.ranks > 1);
    }
}

} // namespace nearmetal
