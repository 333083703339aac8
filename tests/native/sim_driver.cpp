// The simulator without Python, for sanitizers: random programs that must end, on random machines; then the inputs that
// the fuzzer kept, whose files follow the number of programs on the command line.
#include "engine.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

using namespace nearmetal;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size);

namespace {

std::uint32_t counter = 0;

std::uint32_t pick(std::uint32_t below) { return philox({counter++, 0, 0, 7}, 1)[0] % below; }

void random_path(Machine &machine, std::size_t pair) {
    const std::uint64_t first = 64 + pick(4000);
    for (const std::uint64_t up_to : {first, first * 8, ~std::uint64_t{0}})
        machine.paths[pair].segments.push_back({up_to, Ps{1000} * pick(5000), Ps{1000} * pick(500),
                                                Ps{1000} * pick(500), Ps{1000} * pick(300), pick(1'000'000),
                                                pick(1'000'000), pick(3)});
    machine.paths[pair].eager_up_to_bytes = pick(2) ? ~std::uint64_t{0} : pick(3000);
    machine.paths[pair].copy_fs_per_byte = pick(2) ? 0 : pick(1'000'000);
    machine.paths[pair].fetched = pick(2);
    if (pick(2))
        machine.paths[pair].crossing = {{64, Ps{1000} * pick(9000)}, {4096, Ps{1000} * pick(9000)}};
    if (pick(2))
        machine.paths[pair].trailing = {{8, Ps{1000} * pick(30000)}, {2048, Ps{1000} * pick(30000)}};
}

void random_machine(Job &job) {
    Machine &machine = job.machine;
    for (std::size_t pair = 0; pair < kPairClasses; ++pair)
        random_path(machine, pair);
    machine.port_fs_per_byte = pick(2) ? 0 : 80'000;
    machine.blocking = pick(2);
    machine.spin_ps = Ps{1'000'000} * pick(3);
    machine.wakeup_ps = Ps{1'000'000} * pick(5);
    machine.async_progress = pick(4) == 0;
    machine.collectives = pick(2) ? CollectiveChoice::kOpenMpi : CollectiveChoice::kMpich;
    if (pick(2))
        machine.measured[static_cast<std::size_t>(Collective::kAllreduce)] = {{0, 0}, {500, 1}};
    machine.topology = static_cast<Topology>(pick(3));
    machine.hop_ps = 100'000;
    machine.has_stage = pick(2);
    machine.stage.moderation.kind = static_cast<ModerationKind>(pick(static_cast<int>(ModerationKind::kIxgbevf) + 1));
    machine.stage.moderation.usecs = 10 + pick(30);
    machine.stage.moderation.frames = 1 + pick(40);
    machine.stage.delivery_ps = Ps{1000} * pick(3000);
    machine.stage.delivery_tail = pick(3);
    machine.stage.packet_gap_ps = pick(2) * Ps{12'304'000};
    machine.stage.acknowledged = pick(2);
    if (pick(3) == 0) {
        machine.srq_buffers = 4;
        machine.srq_low = 1;
        machine.srq_refill_ps = 3'000'000;
        machine.srq_retry_ps = 500'000;
    }
    machine.cores = pick(2) ? 0 : 1 + pick(3);
    machine.one_computer = pick(2);
    machine.share_by_domain = pick(2);
    machine.way_is_work = pick(2);
    machine.uneven_share = pick(2) * 0.5;
    machine.slice_ps = 20'000'000;
    machine.switch_ps = 500'000;
    machine.lead_ps = pick(2) ? kNever : 1'000'000;
    machine.look_ps = pick(2) * 3'000'000;
}

// Every rank does the same calls; messages go around a ring at a random distance, so every program ends.
Program random_program(std::uint32_t ranks, std::uint32_t seed) {
    counter = seed;
    Program program;
    program.comms.push_back({});
    program.comms[0].size = ranks;
    program.gaps = {0, 1};
    program.slots = 4;
    program.slot_sets = {{0, 1}, {2, 3}};
    const auto add = [&](const Op &op) {
        program.code.push_back(static_cast<std::uint32_t>(program.ops.size()) << 2);
        program.ops.push_back(op);
    };
    program.code.push_back((1 + pick(4)) << 2 | static_cast<std::uint32_t>(Instr::kRepeat));
    for (std::uint32_t call = 0; call < 6; ++call) {
        const auto by = static_cast<std::int32_t>(1 + pick(ranks - 1)), back = static_cast<std::int32_t>(ranks) - by;
        const std::uint64_t bytes = pick(2) ? pick(200) : pick(20000);
        const std::uint32_t slot = 2 * pick(2);
        program.code.push_back(pick(2) << 2 | static_cast<std::uint32_t>(Instr::kGap));
        switch (pick(4)) {
        case 0:
            add({.kind = OpKind::kSendrecv, .rule = Peer::kShift, .recv_rule = Peer::kShift, .peer = by, .tag = 1,
                 .recv_peer = back, .recv_tag = 1, .bytes = bytes});
            break;
        case 1:
            add({.kind = OpKind::kRecv, .flags = kNonblocking, .rule = Peer::kShift, .peer = back, .tag = 2,
                 .bytes = bytes, .slot = slot});
            add({.kind = OpKind::kSend, .flags = static_cast<std::uint8_t>(kNonblocking | (pick(2) ? kSynchronous : 0)),
                 .rule = Peer::kShift, .peer = by, .tag = 2, .bytes = bytes, .slot = slot + 1});
            program.code.push_back(pick(2) << 2 | static_cast<std::uint32_t>(Instr::kGap));
            add({.kind = OpKind::kWait, .slots = slot / 2});
            break;
        case 2:
            add({.kind = OpKind::kCollective,
                 .collective = static_cast<Collective>(pick(static_cast<int>(Collective::kExscan) + 1)),
                 .peer = 0, .bytes = bytes});
            break;
        default: {
            const bool probed = pick(2); // a wildcard receive could take what a probe waits for, so tags differ
            const std::int32_t tag = probed ? 3 : 4;
            add({.kind = OpKind::kSend, .flags = kNonblocking, .rule = Peer::kShift, .peer = by, .tag = tag,
                 .bytes = bytes, .slot = slot});
            if (probed)
                add({.kind = OpKind::kProbe, .rule = Peer::kShift, .peer = back, .tag = tag});
            add({.kind = OpKind::kRecv, .flags = kNonblocking, .rule = probed ? Peer::kShift : Peer::kRank,
                 .peer = probed ? back : kAny, .tag = tag, .bytes = bytes, .slot = slot + 1});
            add({.kind = OpKind::kWait, .slots = slot / 2});
            add({.kind = OpKind::kMark, .tag = 4});
            break;
        }
        }
    }
    program.code.push_back(static_cast<std::uint32_t>(Instr::kEnd));
    return program;
}

} // namespace

int main(int argc, char **argv) {
    const int cases = argc > 1 ? std::atoi(argv[1]) : 1;
    std::uint64_t events = 0;
    for (int number = 0; number < cases; ++number) {
        counter = static_cast<std::uint32_t>(number) << 12;
        Job job;
        job.ranks = 2 + pick(6);
        job.tables.emplace_back(std::vector<std::uint32_t>{0, 1u << 31}, std::vector<Ps>{0, 3'000'000});
        job.tables.emplace_back(std::vector<std::uint32_t>{0, 1u << 30}, std::vector<Ps>{-200'000, 30'000'000});
        random_machine(job);
        const std::uint32_t per_host = 1 + pick(3);
        for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
            job.host_of.push_back(rank / per_host);
            job.domain_of.push_back(rank / per_host);
        }
        job.programs.push_back(random_program(job.ranks, static_cast<std::uint32_t>(number) << 12 | 2048));
        if (!job.programs[0].seal()) {
            std::fprintf(stderr, "case %d is not well-formed\n", number);
            return 1;
        }
        for (std::uint32_t replica = 0; replica < 2; ++replica) {
            const Result result = Engine(job, 1, replica).run(true);
            events += result.events;
            if (result.outcome != Outcome::kFinished || result.makespan_ps < 0) {
                std::fprintf(stderr, "case %d did not end: outcome %d, %llu stuck\n", number,
                             static_cast<int>(result.outcome), static_cast<unsigned long long>(result.stuck_count));
                return 1;
            }
        }
    }
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t *>(bytes.data()), bytes.size());
    }
    std::printf("%llu events\n", static_cast<unsigned long long>(events));
    return 0;
}
