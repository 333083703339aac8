// libFuzzer's entry point to the simulator: bytes become a job, which is refused, or run to its end within its budget.
#include "engine.hpp"

#include <cstring>
#include <stdexcept>

using namespace nearmetal;

namespace {

class Bytes {
  public:
    Bytes(const std::uint8_t *data, std::size_t size) : data_(data), left_(size) {}
    [[nodiscard]] bool empty() const { return left_ == 0; }
    template <typename Number> Number take() {
        Number value{};
        const std::size_t size = std::min(left_, sizeof value);
        std::memcpy(&value, data_, size);
        data_ += size;
        left_ -= size;
        return value;
    }
    // Mostly small, sometimes anything: what breaks a simulator is near 0 and near the ends.
    template <typename Number> Number number(std::uint8_t most, std::uint32_t unit = 1) {
        const auto kind = take<std::uint8_t>();
        if (kind >= 0xF8)
            return take<Number>();
        return static_cast<Number>(kind % (most + 1u) * unit);
    }

  private:
    const std::uint8_t *data_;
    std::size_t left_;
};

std::int32_t less_one(std::int32_t value) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(value) - 1); }

Op operation(Bytes &in) {
    return {.kind = static_cast<OpKind>(in.take<std::uint8_t>() % (static_cast<int>(OpKind::kCancel) + 1)),
            .flags = static_cast<std::uint8_t>(in.take<std::uint8_t>() % 8),
            .rule = static_cast<Peer>(in.take<std::uint8_t>() % 5),
            .recv_rule = static_cast<Peer>(in.take<std::uint8_t>() % 5),
            .collective =
                static_cast<Collective>(in.take<std::uint8_t>() % (static_cast<int>(Collective::kNeighborAlltoall) + 1)),
            .comm = in.number<std::uint32_t>(2),
            .peer = less_one(in.number<std::int32_t>(8)),
            .tag = less_one(in.number<std::int32_t>(3)),
            .recv_peer = less_one(in.number<std::int32_t>(8)),
            .recv_tag = less_one(in.number<std::int32_t>(3)),
            .bytes = in.number<std::uint64_t>(200, 97),
            .slot = in.number<std::uint32_t>(4),
            .slots = in.number<std::uint32_t>(2),
            .sizes = in.take<std::uint8_t>() < 240 ? kNone : 0,
            .recv_sizes = in.take<std::uint8_t>() < 240 ? kNone : 0};
}

Program program(Bytes &in, std::uint32_t ranks) {
    Program p;
    p.comms.push_back({});
    p.comms[0].size = ranks;
    if (in.take<std::uint8_t>() % 2) {
        p.comms.push_back({.context = 1, .size = in.number<std::uint32_t>(4)});
        p.comms[1].stride = in.number<std::uint32_t>(4);
        p.comms[1].dims = {in.number<std::uint32_t>(3), in.number<std::uint32_t>(3)};
        p.comms[1].periods = {in.take<std::uint8_t>() % 2u, 1};
    }
    p.dims = {in.number<std::uint32_t>(4), in.number<std::uint32_t>(4)};
    p.periods = {in.take<std::uint8_t>() % 2u, 0};
    p.gaps = {0, 1};
    p.slots = in.number<std::uint32_t>(4);
    p.slot_sets = {{in.number<std::uint32_t>(4)}, {0, in.number<std::uint32_t>(4)}, {}};
    p.size_lists.emplace_back(ranks, in.number<std::uint64_t>(100));
    const std::uint32_t ops = 1 + in.take<std::uint8_t>() % 8;
    for (std::uint32_t i = 0; i < ops; ++i)
        p.ops.push_back(operation(in));
    const std::uint32_t words = in.take<std::uint8_t>() % 24;
    for (std::uint32_t i = 0; i < words; ++i)
        p.code.push_back(in.number<std::uint32_t>(8) << 2 | in.take<std::uint8_t>() % 8);
    return p;
}

void machine(Bytes &in, Machine &m) {
    for (PathModel &path : m.paths) {
        path.segments.push_back({~std::uint64_t{0}, in.number<Ps>(200, 1000), in.number<Ps>(200, 100),
                                 in.number<Ps>(200, 100), in.number<Ps>(200, 100), in.number<std::uint64_t>(200),
                                 in.number<std::uint64_t>(200), in.number<std::uint32_t>(2)});
        path.eager_up_to_bytes = in.number<std::uint64_t>(200, 50);
        path.copy_fs_per_byte = in.number<std::uint64_t>(3);
        path.fetched = in.take<std::uint8_t>() % 2;
    }
    m.port_fs_per_byte = in.number<std::uint64_t>(200);
    m.port_gap_ps = in.number<Ps>(3);
    m.topology = static_cast<Topology>(in.take<std::uint8_t>() % 3);
    m.hop_ps = in.number<Ps>(200);
    m.has_stage = in.take<std::uint8_t>() % 2;
    m.stage.moderation.kind =
        static_cast<ModerationKind>(in.take<std::uint8_t>() % (static_cast<int>(ModerationKind::kIxgbevf) + 1));
    m.stage.moderation.usecs = in.number<std::uint32_t>(100);
    m.stage.moderation.frames = in.number<std::uint32_t>(100);
    m.stage.delivery_ps = in.number<Ps>(200, 1000);
    m.stage.delivery_tail = in.number<std::uint32_t>(2);
    m.stage.packet_gap_ps = m.stage.moderation.usecs % 2 * 12'304'000; // so that kept inputs keep their meaning
    m.stage.acknowledged = m.stage.moderation.frames % 2;
    m.packet_bytes = in.number<std::uint32_t>(200);
    m.srq_buffers = in.number<std::uint32_t>(4);
    m.srq_low = in.number<std::uint32_t>(2);
    m.srq_refill_ps = in.number<Ps>(200, 1000);
    m.srq_retry_ps = in.number<Ps>(200, 1000);
    m.blocking = in.take<std::uint8_t>() % 2;
    m.spin_ps = in.number<Ps>(200, 1000);
    m.wakeup_ps = in.number<Ps>(200, 1000);
    m.async_progress = in.take<std::uint8_t>() % 2;
    m.collectives = in.take<std::uint8_t>() % 2 ? CollectiveChoice::kOpenMpi : CollectiveChoice::kMpich;
    m.cores = in.number<std::uint32_t>(3);
    m.one_computer = in.take<std::uint8_t>() % 2;
    m.share_by_domain = in.take<std::uint8_t>() % 2;
    m.way_is_work = in.take<std::uint8_t>() % 2;
    m.uneven_share = in.take<std::uint8_t>() % 3 * 0.5;
    m.look_ps = in.take<std::uint8_t>() % 2 * 1'000;
    m.lead_ps = in.take<std::uint8_t>() % 2 ? 0 : kNever;
    m.slice_ps = in.number<Ps>(200, 1'000'000);
    m.switch_ps = in.number<Ps>(200, 1000);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    Bytes in(data, size);
    Job job;
    job.ranks = 1 + in.take<std::uint8_t>() % 6;
    job.tables.emplace_back(std::vector<std::uint32_t>{0, 1u << 31}, std::vector<Ps>{0, 3'000'000});
    job.tables.emplace_back(std::vector<std::uint32_t>{0}, std::vector<Ps>{in.number<Ps>(200) & kLongestPart});
    machine(in, job.machine);
    const std::uint32_t per_host = 1 + in.take<std::uint8_t>() % 3, per_domain = 1 + in.take<std::uint8_t>() % 2;
    for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
        job.host_of.push_back(rank / per_host);
        job.domain_of.push_back(rank / per_domain);
    }
    if (in.take<std::uint8_t>() % 2) {
        for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
            job.programs.push_back(program(in, job.ranks));
            job.program_of.push_back(rank);
        }
    } else {
        job.programs.push_back(program(in, job.ranks));
    }
    try {
        seal(job);
    } catch (const std::invalid_argument &) {
        return 0;
    }
    const Budget budget{.steps = 20'000, .bytes = 64 << 20};
    Engine(job, 1, 0, budget).run(true);
    return 0;
}
