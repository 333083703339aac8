// nearmetal.predict._sim: the simulator as a Python extension. Errors in the input are ValueError; the Python side
// (nearmetal.predict.simulate) explains them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <tuple>

#include "engine.hpp"
#include "team.hpp"

namespace nb = nanobind;
using namespace nearmetal;

namespace {

using U32Array = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using I64Array = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<std::uint32_t> copy(const U32Array &array) { return {array.data(), array.data() + array.size()}; }

std::uint32_t add_table(Job &job, std::vector<std::uint32_t> probability, std::vector<Ps> value) {
    require(!value.empty() && value.size() == probability.size() && value.size() < 65536, "table: sizes differ");
    require(probability[0] == 0, "table: the first probability is not 0");
    require(std::adjacent_find(probability.begin(), probability.end(), std::greater_equal<>()) == probability.end(),
            "table: probabilities do not rise");
    require(std::all_of(value.begin(), value.end(), [](Ps v) { return v >= -kLongestPart && v <= kLongestPart; }),
            "table: a duration of more than 40 hours");
    job.tables.emplace_back(std::move(probability), std::move(value));
    return static_cast<std::uint32_t>(job.tables.size()) - 1;
}

std::uint32_t add_order(Job &job, const I64Array &value) {
    require(value.size() > 0, "order: no durations");
    require(std::all_of(value.data(), value.data() + value.size(), [](Ps v) { return v >= 0 && v <= kLongestPart; }),
            "order: a duration below 0 or above 40 hours");
    job.orders.emplace_back(value.data(), value.data() + value.size());
    return kOrder + static_cast<std::uint32_t>(job.orders.size()) - 1;
}

std::vector<Result> simulate(const Job &job, std::uint64_t seed, std::uint32_t first, std::uint32_t replicas,
                             std::uint32_t threads, bool keep, std::uint64_t max_steps, std::uint64_t max_bytes) {
    std::vector<Result> results(replicas);
    std::atomic<std::uint32_t> next{0};
    threads = std::max(std::min(threads, replicas), 1u);
    Team team({.steps = max_steps, .bytes = max_bytes / threads});
    const nb::gil_scoped_release release;
    team.run(threads, [&](const Budget &budget) {
        for (std::uint32_t i = next++; i < replicas; i = next++)
            results[i] = Engine(job, seed, first + i, budget).run(keep);
    });
    return results;
}

using LogTuple = std::tuple<int, Ps, std::uint32_t>;
using VisibleTuple = std::tuple<std::uint32_t, Ps>;

// A single stage fed with arrivals: what it does, step by step, and when each message becomes visible.
std::tuple<std::vector<LogTuple>, std::vector<VisibleTuple>>
run_stage(const StageSetting &setting, const I64Array &time_ps, const U32Array &frames, const I64Array &bytes) {
    require(time_ps.size() == frames.size() && frames.size() == bytes.size(), "arrivals: sizes differ");
    InterruptStage stage(setting);
    std::vector<InterruptStage::LogEntry> log;
    std::vector<InterruptStage::Visible> visible;
    stage.log = &log;
    std::size_t at = 0;
    while (at < time_ps.size() || stage.due() != kNever) {
        // A step that is due at the time of an arrival comes after it, as in the engine's queue of events.
        if (at < time_ps.size() && time_ps.data()[at] <= stage.due()) {
            const Ps now = time_ps.data()[at];
            stage.arrive(
                now,
                {static_cast<std::uint32_t>(at), frames.data()[at], static_cast<std::uint64_t>(bytes.data()[at])},
                0);
            ++at;
        } else {
            stage.handle(stage.due(), 0, visible);
        }
    }
    std::vector<LogTuple> steps;
    for (const auto &entry : log)
        steps.emplace_back(static_cast<int>(entry.what), entry.time, entry.value);
    std::vector<VisibleTuple> seen;
    for (const auto &v : visible)
        if (!v.acknowledges)
            seen.emplace_back(v.id, v.time);
    return {steps, seen};
}

using RoundTuple = std::tuple<std::int32_t, std::uint64_t, std::int32_t, bool>;

using Sizes = std::vector<std::uint64_t>;

std::vector<RoundTuple> expand(CollectiveChoice choice, Collective collective, std::uint32_t size, std::uint32_t rank,
                               std::uint32_t root, std::uint64_t bytes, bool vector, const Sizes &sizes,
                               const Sizes &recv_sizes, const std::vector<std::uint32_t> &dims,
                               const std::vector<std::uint32_t> &periods, bool nonblocking,
                               const std::vector<std::uint32_t> &nodes) {
    const bool neighbors = collective >= Collective::kNeighborAllgather;
    const std::size_t peers = neighbors ? 2 * dims.size() : size;
    const auto fits = [&](const Sizes &list) { return list.empty() || list.size() == peers; };
    require(rank < size && root < size && dims.size() == periods.size() && fits(sizes) && fits(recv_sizes) &&
                (nodes.empty() || nodes.size() == size),
            "expand: outside the world");
    Comm comm;
    comm.dims = dims;
    comm.periods = periods;
    const Algorithm chosen = choose_algorithm(choice, collective, size, bytes, vector, nonblocking);
    const CollectiveCall call{chosen, size, rank, root, bytes, sizes, recv_sizes, &comm, nonblocking};
    const bool divisible = !nodes.empty() && !vector && chosen != Algorithm::kNothing;
    const Nodes by_node(divisible ? nodes : std::vector<std::uint32_t>{0});
    const Nodes *divided = is_divided(choice, collective, call, by_node) ? &by_node : nullptr;
    std::vector<RoundTuple> rounds;
    for (Progress at;;) {
        const Round round = next_round(choice, collective, call, divided, at);
        if (round.last)
            return rounds;
        rounds.emplace_back(round.send_to, round.send_bytes, round.recv_from, round.open);
    }
}

void bind_settings(nb::module_ &m) {
    nb::class_<ModerationSetting>(m, "ModerationSetting")
        .def(nb::init<>())
        .def_prop_rw(
            "kind", [](const ModerationSetting &s) { return static_cast<int>(s.kind); },
            [](ModerationSetting &s, int kind) {
                require(kind >= 0 && kind <= static_cast<int>(ModerationKind::kIxgbevf), "moderation: no such kind");
                s.kind = static_cast<ModerationKind>(kind);
            })
        .def_rw("usecs", &ModerationSetting::usecs)
        .def_rw("frames", &ModerationSetting::frames)
        .def_rw("rate_low", &ModerationSetting::rate_low)
        .def_rw("rate_high", &ModerationSetting::rate_high)
        .def_rw("usecs_low", &ModerationSetting::usecs_low)
        .def_rw("usecs_high", &ModerationSetting::usecs_high)
        .def_rw("rings", &ModerationSetting::rings)
        .def_rw("link_mbps", &ModerationSetting::link_mbps)
        .def_rw("emulated", &ModerationSetting::emulated);
    nb::class_<StageSetting>(m, "StageSetting")
        .def(nb::init<>())
        .def_rw("moderation", &StageSetting::moderation)
        .def_rw("delivery_ps", &StageSetting::delivery_ps)
        .def_rw("delivery_tail", &StageSetting::delivery_tail)
        .def_rw("poll_ps", &StageSetting::poll_ps)
        .def_rw("packet_ps", &StageSetting::packet_ps)
        .def_rw("weight", &StageSetting::weight)
        .def_rw("budget", &StageSetting::budget)
        .def_rw("budget_ps", &StageSetting::budget_ps)
        .def_rw("ksoftirqd_ps", &StageSetting::ksoftirqd_ps)
        .def_rw("defer_count", &StageSetting::defer_count)
        .def_rw("defer_ps", &StageSetting::defer_ps)
        .def_rw("packet_gap_ps", &StageSetting::packet_gap_ps)
        .def_rw("header_bytes", &StageSetting::header_bytes)
        .def_rw("message_header_bytes", &StageSetting::message_header_bytes)
        .def_rw("acknowledged", &StageSetting::acknowledged);
}

// Add a point to one of a path's lists.
auto adds_to(std::vector<WorkPoint> PathModel::*points) {
    return [points](Machine &s, int pair, std::uint64_t bytes, Ps ps) {
        require(pair >= 0 && pair < kPairClasses, "machine: no such class of pairs");
        (s.paths[pair].*points).push_back({bytes, ps});
    };
}

void bind_machine(nb::module_ &m) {
    nb::class_<Machine>(m, "Machine")
        .def_rw("port_fs_per_byte", &Machine::port_fs_per_byte)
        .def_rw("port_gap_ps", &Machine::port_gap_ps)
        .def_prop_rw(
            "topology", [](const Machine &s) { return static_cast<int>(s.topology); },
            [](Machine &s, int kind) {
                require(kind >= 0 && kind <= 2, "machine: no such topology");
                s.topology = static_cast<Topology>(kind);
            })
        .def_rw("nodes_per_leaf", &Machine::nodes_per_leaf)
        .def_rw("leaves_per_group", &Machine::leaves_per_group)
        .def_rw("hop_ps", &Machine::hop_ps)
        .def_rw("has_stage", &Machine::has_stage)
        .def_rw("stage", &Machine::stage)
        .def_rw("packet_bytes", &Machine::packet_bytes)
        .def_rw("srq_buffers", &Machine::srq_buffers)
        .def_rw("srq_low", &Machine::srq_low)
        .def_rw("srq_refill_ps", &Machine::srq_refill_ps)
        .def_rw("srq_retry_ps", &Machine::srq_retry_ps)
        .def_rw("blocking", &Machine::blocking)
        .def_rw("spin_ps", &Machine::spin_ps)
        .def_rw("wakeup_ps", &Machine::wakeup_ps)
        .def_rw("wakeup_tail", &Machine::wakeup_tail)
        .def_rw("async_progress", &Machine::async_progress)
        .def_rw("reduce_fs_per_byte", &Machine::reduce_fs_per_byte)
        .def_rw("compute_scale", &Machine::compute_scale)
        .def_rw("cores", &Machine::cores)
        .def_rw("one_computer", &Machine::one_computer)
        .def_rw("share_by_domain", &Machine::share_by_domain)
        .def_rw("uneven_share", &Machine::uneven_share)
        .def_rw("way_is_work", &Machine::way_is_work)
        .def_rw("slice_ps", &Machine::slice_ps)
        .def_rw("switch_ps", &Machine::switch_ps)
        .def_rw("look_ps", &Machine::look_ps)
        .def_rw("lead_ps", &Machine::lead_ps)
        .def_prop_rw(
            "collectives", [](const Machine &s) { return static_cast<int>(s.collectives); },
            [](Machine &s, int choice) {
                require(choice == 0 || choice == 1, "machine: no such collectives");
                s.collectives = static_cast<CollectiveChoice>(choice);
            })
        .def_rw("by_nodes", &Machine::by_nodes)
        .def(
            "add_segment",
            [](Machine &s, int pair, std::uint64_t up_to_bytes, Ps latency, Ps send, Ps receive, Ps gap,
               std::uint64_t latency_fs_per_byte, std::uint64_t fs_per_byte, std::uint32_t tail,
               std::uint64_t overhead_fs_per_byte) {
                require(pair >= 0 && pair < kPairClasses, "machine: no such class of pairs");
                std::vector<Segment> &segments = s.paths[pair].segments;
                require(segments.empty() || segments.back().up_to_bytes < up_to_bytes,
                        "machine: segment bounds do not rise");
                segments.push_back({up_to_bytes, latency, send, receive, gap, latency_fs_per_byte, fs_per_byte, tail,
                                    overhead_fs_per_byte});
            },
            nb::arg("pair"), nb::arg("up_to_bytes"), nb::arg("latency_ps"), nb::arg("send_overhead_ps"),
            nb::arg("recv_overhead_ps"), nb::arg("gap_ps"), nb::arg("latency_fs_per_byte"), nb::arg("fs_per_byte"),
            nb::arg("tail") = 0, nb::arg("overhead_fs_per_byte") = 0)
        .def("set_path",
             [](Machine &s, int pair, std::uint64_t eager_up_to_bytes, std::uint64_t copy_fs_per_byte, bool fetched) {
                 require(pair >= 0 && pair < kPairClasses, "machine: no such class of pairs");
                 s.paths[pair].eager_up_to_bytes = eager_up_to_bytes;
                 s.paths[pair].copy_fs_per_byte = copy_fs_per_byte;
                 s.paths[pair].fetched = fetched;
             })
        .def("set_single_copy", [](Machine &s, int pair, std::uint64_t up_to_bytes, std::uint64_t fs_per_byte) {
            require(pair >= 0 && pair < kPairClasses, "machine: no such class of pairs");
            s.paths[pair].single_up_to_bytes = up_to_bytes;
            s.paths[pair].single_copy_fs_per_byte = fs_per_byte;
        })
        .def("add_cold_point", [](Machine &s, int pair, Ps computed_ps, Ps extra_ps) {
            require(pair >= 0 && pair < kPairClasses, "machine: no such class of pairs");
            s.paths[pair].cold.push_back({computed_ps, extra_ps});
        })
        .def("add_work_point", adds_to(&PathModel::work))
        .def("add_send_work_point", adds_to(&PathModel::send_work))
        .def("add_receive_work_point", adds_to(&PathModel::receive_work))
        .def("add_crossing_point", adds_to(&PathModel::crossing))
        .def("add_trailing_point", adds_to(&PathModel::trailing))
        .def("add_collective_point",
             [](Machine &s, std::uint32_t collective, std::uint64_t bytes, std::uint32_t table) {
                 require(collective < kCollectives, "machine: no such collective");
                 s.measured[collective].push_back({bytes, table});
             });
}

void bind_program(nb::module_ &m) {
    nb::class_<Program>(m, "Program")
        .def(nb::init<>())
        .def_rw("code", &Program::code)
        .def_rw("gaps", &Program::gaps)
        .def_rw("slot_sets", &Program::slot_sets)
        .def_rw("size_lists", &Program::size_lists)
        .def_rw("dims", &Program::dims)
        .def_rw("periods", &Program::periods)
        .def_rw("slots", &Program::slots)
        .def(
            "add_comm",
            [](Program &p, std::uint32_t context, std::vector<std::uint32_t> members, std::uint32_t my_rank,
               std::uint32_t stride, std::uint32_t size, std::vector<std::uint32_t> dims,
               std::vector<std::uint32_t> periods) {
                require(dims.size() == periods.size() && stride > 0, "program: a bad communicator");
                require(members.empty() || my_rank < members.size(), "program: not a member of the communicator");
                p.comms.push_back(
                    {context, std::move(members), my_rank, stride, size, std::move(dims), std::move(periods)});
                return static_cast<std::uint32_t>(p.comms.size()) - 1;
            },
            nb::arg("context"), nb::arg("members"), nb::arg("my_rank"), nb::arg("stride"), nb::arg("size"),
            nb::arg("dims"), nb::arg("periods"))
        .def(
            "add_op",
            [](Program &p, int kind, int flags, std::uint32_t comm, int rule, std::int32_t peer, std::int32_t tag,
               std::uint64_t bytes, int recv_rule, std::int32_t recv_peer, std::int32_t recv_tag, std::uint32_t slot,
               std::uint32_t slots, int collective, std::uint32_t sizes, std::uint32_t recv_sizes) {
                require(kind >= 0 && kind <= static_cast<int>(OpKind::kCancel) && rule >= 0 && rule <= 4 &&
                            recv_rule >= 0 && recv_rule <= 4 && collective >= 0 &&
                            collective <= static_cast<int>(Collective::kNeighborAlltoall),
                        "program: no such operation");
                p.ops.push_back({.kind = static_cast<OpKind>(kind),
                                 .flags = static_cast<std::uint8_t>(flags),
                                 .rule = static_cast<Peer>(rule),
                                 .recv_rule = static_cast<Peer>(recv_rule),
                                 .collective = static_cast<Collective>(collective),
                                 .comm = comm,
                                 .peer = peer,
                                 .tag = tag,
                                 .recv_peer = recv_peer,
                                 .recv_tag = recv_tag,
                                 .bytes = bytes,
                                 .slot = slot,
                                 .slots = slots,
                                 .sizes = sizes,
                                 .recv_sizes = recv_sizes});
                return static_cast<std::uint32_t>(p.ops.size()) - 1;
            },
            nb::arg("kind"), nb::arg("flags") = 0, nb::arg("comm") = 0, nb::arg("rule") = 0, nb::arg("peer") = kAny,
            nb::arg("tag") = 0, nb::arg("bytes") = 0, nb::arg("recv_rule") = 0, nb::arg("recv_peer") = kAny,
            nb::arg("recv_tag") = 0, nb::arg("slot") = 0, nb::arg("slots") = 0, nb::arg("collective") = 0,
            nb::arg("sizes") = kNone, nb::arg("recv_sizes") = kNone);
}

// Shape (marks, 3): rank, level, ps; a copy that belongs to Python.
nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>> marks_of(const Result &r) {
    auto *rows = new std::int64_t[std::max<std::size_t>(3 * r.marks.size(), 1)];
    for (std::size_t i = 0; i < r.marks.size(); ++i) {
        rows[3 * i] = r.marks[i].rank;
        rows[3 * i + 1] = r.marks[i].level;
        rows[3 * i + 2] = r.marks[i].time;
    }
    const nb::capsule owner(rows, [](void *p) noexcept { delete[] static_cast<std::int64_t *>(p); });
    return {rows, {r.marks.size(), 3}, owner};
}

void bind_results(nb::module_ &m) {
    nb::class_<Stuck>(m, "Stuck")
        .def_ro("rank", &Stuck::rank)
        .def_ro("op", &Stuck::op)
        .def_prop_ro("peer", [](const Stuck &s) { return static_cast<std::int32_t>(s.peer); })
        .def_ro("tag", &Stuck::tag)
        .def_ro("bytes", &Stuck::bytes);
    nb::class_<Result>(m, "Result")
        .def_prop_ro("outcome", [](const Result &r) { return static_cast<int>(r.outcome); })
        .def_ro("makespan_ps", &Result::makespan_ps)
        .def_ro("messages", &Result::messages)
        .def_ro("inter_messages", &Result::inter_messages)
        .def_ro("bytes", &Result::bytes)
        .def_ro("inter_bytes", &Result::inter_bytes)
        .def_ro("events", &Result::events)
        .def_ro("interrupts", &Result::interrupts)
        .def_ro("collectives_as_measured", &Result::collectives_as_measured)
        .def_ro("compute_ps", &Result::compute_ps)
        .def_ro("overhead_ps", &Result::overhead_ps)
        .def_ro("finish_ps", &Result::finish_ps)
        .def("marks", &marks_of)
        .def_ro("stuck", &Result::stuck)
        .def_ro("stuck_count", &Result::stuck_count);
}

} // namespace

NB_MODULE(_sim, m) {
    m.doc() = "Discrete-event replay of MPI programs (see docs/explanation/prediction.md).";
    bind_settings(m);
    bind_machine(m);
    bind_program(m);
    bind_results(m);
    nb::class_<Job>(m, "Job")
        .def(nb::init<>())
        .def_rw("machine", &Job::machine)
        .def_rw("ranks", &Job::ranks)
        .def("add_program",
             [](Job &job, Program program) {
                 job.programs.push_back(std::move(program));
                 return static_cast<std::uint32_t>(job.programs.size()) - 1;
             })
        .def("set_program_of", [](Job &job, const U32Array &map) { job.program_of = copy(map); })
        .def("place",
             [](Job &job, const U32Array &host_of, const U32Array &domain_of) {
                 job.host_of = copy(host_of);
                 job.domain_of = copy(domain_of);
             })
        .def("add_table", &add_table, nb::arg("probability"), nb::arg("value_ps"))
        .def("add_order", &add_order, nb::arg("value_ps"))
        .def("seal", &seal);
    m.def("simulate", &simulate, nb::arg("job"), nb::arg("seed"), nb::arg("first_replica"), nb::arg("replicas"),
          nb::arg("threads"), nb::arg("keep"), nb::arg("max_steps") = ~std::uint64_t{0},
          nb::arg("max_bytes") = ~std::uint64_t{0});
    m.def("run_stage", &run_stage, nb::arg("setting"), nb::arg("time_ps"), nb::arg("frames"), nb::arg("bytes"));
    m.def(
        "expand_collective",
        [](int choice, int collective, std::uint32_t size, std::uint32_t rank, std::uint32_t root, std::uint64_t bytes,
           bool vector, const Sizes &sizes, const Sizes &recv_sizes, const std::vector<std::uint32_t> &dims,
           const std::vector<std::uint32_t> &periods, bool nonblocking, const std::vector<std::uint32_t> &nodes) {
            return expand(static_cast<CollectiveChoice>(choice), static_cast<Collective>(collective), size, rank, root,
                          bytes, vector, sizes, recv_sizes, dims, periods, nonblocking, nodes);
        },
        nb::arg("choice"), nb::arg("collective"), nb::arg("size"), nb::arg("rank"), nb::arg("root"), nb::arg("bytes"),
        nb::arg("vector") = false, nb::arg("sizes") = Sizes{}, nb::arg("recv_sizes") = Sizes{},
        nb::arg("dims") = std::vector<std::uint32_t>{}, nb::arg("periods") = std::vector<std::uint32_t>{},
        nb::arg("nonblocking") = false, nb::arg("nodes") = std::vector<std::uint32_t>{});
    m.def("philox", &philox, nb::arg("counter"), nb::arg("key"));
}
