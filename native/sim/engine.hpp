// One replica of a simulated run: a discrete-event replay of programs on a machine.
//
// docs/explanation/prediction.md describes what is modelled, and in which order; a slow Python twin in the tests
// follows the same text. A run is a pure function of (job, seed, replica).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "divided.hpp"
#include "engine_records.hpp"
#include "events.hpp"
#include "model.hpp"
#include "pool.hpp"

namespace nearmetal {

enum class Outcome : std::uint8_t { kFinished, kDeadlock, kUnmatched, kSteps, kMemory, kTime };

// What a run may use. A run that needs more ends there, and its result names the rank and call that it reached.
struct Budget {
    std::uint64_t steps = ~std::uint64_t{0}; // events, instructions of programs and messages examined in queues
    std::uint64_t bytes = ~std::uint64_t{0}; // of memory
    std::function<void()> look = {};         // called every so many steps; throws to stop the run
};

struct Stuck { // a rank that cannot go on or was the last to go on, or a message nobody received
    std::uint32_t rank = 0, op = kNone, peer = kNone;
    std::int32_t tag = 0;
    std::uint64_t bytes = 0;
};

struct Mark { // a place that the program marked, and when a rank reached it
    std::uint32_t rank;
    std::int32_t level;
    Ps time;
};

struct Result {
    Outcome outcome = Outcome::kFinished;
    Ps makespan_ps = 0;
    std::uint64_t messages = 0, inter_messages = 0, bytes = 0, inter_bytes = 0, events = 0, interrupts = 0;
    std::uint64_t collectives_as_measured = 0;
    Ps compute_ps = 0;             // summed over ranks
    Ps overhead_ps = 0;            // of processors, in sends and receives; summed over ranks
    std::vector<Ps> finish_ps;     // per rank, when asked for
    std::vector<Mark> marks;       // in each rank's order, when asked for
    std::vector<Stuck> stuck;      // the first few
    std::uint64_t stuck_count = 0; // all of them
};

class Engine : private EngineRecords {
  public:
    Engine(const Job &job, std::uint64_t seed, std::uint32_t replica, Budget budget = {});
    Result run(bool keep);

  private:
    static constexpr std::uint32_t kInternalSlots = 3; // behind the program's: blocking send, receive, collective
    static constexpr std::uint32_t kSendSlot = 0, kRecvSlot = 1, kCollectiveSlot = 2;
    static constexpr std::uint32_t kInternalSet = kNone - 1;   // as a wait set: the three above
    static constexpr std::uint32_t kContextOwner = 0x80000000; // owner is a Context; else a slot of the rank
    static constexpr std::uint32_t kNobody = 0x7FFFFFFF;       // owner of a request that the program has freed

    void fetch_ahead() const;
    void fetch_visible() const;
    void fetch_way(const Message &m) const;
    void fetch_end(const Message &m) const;
    void fetch_peers(std::uint32_t rank) const;
    void fetch_program(std::uint32_t rank) const;
    void fetch_receiver(std::uint32_t rank) const;

    // budget
    void lay_out();
    void count_visits();
    void simulate();
    void step(std::uint64_t steps = 1) {
        if ((steps_ += steps) >= look_at_)
            look();
    }
    void look();
    [[nodiscard]] std::uint64_t bytes() const;
    void exhausted(Outcome outcome, Result &result) const;

    // program
    void run_rank(std::uint32_t rank, bool may_advance);
    Ps gap(std::uint32_t rank, std::uint32_t table, std::uint32_t site);
    bool run_op(std::uint32_t rank, const Op &op, std::uint32_t op_index);
    bool run_send(std::uint32_t rank, const Op &op);
    bool run_recv(std::uint32_t rank, const Op &op);
    bool run_sendrecv(std::uint32_t rank, const Op &op);
    bool run_probe(std::uint32_t rank, const Op &op);
    void cancel(std::uint32_t rank, std::uint32_t set);
    bool run_collective(std::uint32_t rank, const Op &op, std::uint32_t op_index);
    [[nodiscard]] bool as_measured(const Op &op, const Comm &comm) const;
    void enter_measured(std::uint32_t rank, const Op &op, std::uint32_t context, std::uint32_t seq);
    [[nodiscard]] Ps measured_time(const Op &op, std::uint32_t u) const;
    bool wait(std::uint32_t rank, std::uint32_t set);
    bool wait_again(std::uint32_t rank);
    void finish_wait(Rank &r, std::uint32_t set);
    void resume(std::uint32_t rank);
    template <typename Visit> void each_slot(const Rank &r, std::uint32_t set, Visit visit);

    // cores that ranks share (engine_cores.cpp)
    void assign_cores();
    void assign_ranks(std::vector<std::uint32_t> &ranks, std::uint32_t &draws);
    void add_core_group(std::uint32_t cores);
    void preempt_waiting(const CoreGroup &group);
    bool take_core(std::uint32_t rank);
    [[nodiscard]] CoreGroup &core_group(std::uint32_t rank) { return core_groups_[cores_[shares_[rank].core].group]; }
    bool compute(std::uint32_t rank);
    void yield_core(std::uint32_t rank);
    void give_core(std::uint32_t core, std::uint32_t rank, Ps time);
    void pass_core(std::uint32_t core, Ps time);
    void queue(std::uint32_t rank);
    bool gives_way(std::uint32_t rank);
    // What sending and receiving takes of a rank.
    void add_overhead(std::uint32_t rank, Ps time) {
        result_.overhead_ps += time;
        if (!shares_.empty())
            use(rank, time);
    }
    void leave_core(std::uint32_t rank);
    void wake(std::uint32_t rank, Ps time);
    void core_due(std::uint32_t rank);
    void resume_on_core(std::uint32_t rank);
    void plan_context(std::uint32_t context, Ps time);
    void context_due(std::uint32_t context);

    // cores by what was used of them (engine_fair.cpp)
    [[nodiscard]] double lead() const { return static_cast<double>(machine_->lead_ps); }
    std::uint32_t add_entity(std::uint32_t core);
    void claim_nothing(std::uint32_t rank);
    void join(std::uint32_t rank, std::uint32_t core, std::uint32_t entity);
    [[nodiscard]] bool polls(std::uint32_t rank) const;
    [[nodiscard]] bool only_polls(const Entity &entity) const;
    void use(std::uint32_t rank, Ps time);
    [[nodiscard]] Ps look_period(std::uint32_t rank) const;
    void come_unseen(std::uint32_t rank);
    [[nodiscard]] Ps next_look(std::uint32_t rank, Ps time) const;
    bool looks_first(std::uint32_t rank, std::uint32_t set);
    void count_polling(std::uint32_t core, Ps time);
    [[nodiscard]] double behind(std::uint32_t entity) const;
    [[nodiscard]] std::uint32_t next_ready(std::uint32_t core) const;
    [[nodiscard]] std::uint32_t next_polling(std::uint32_t core) const;
    std::uint32_t after_look(std::uint32_t rank, Ps time);
    std::uint32_t after_slice(std::uint32_t rank);

    // cores between domains (engine_domains.cpp)
    void share_fairly(const std::vector<std::uint32_t> &ranks);
    void split_by_domain(const std::vector<std::uint32_t> &ranks);
    void divide_by_domain(const std::vector<std::uint32_t> &ranks);
    void divide(Division &division, std::uint32_t index, std::uint32_t turn);
    bool follow_division(std::uint32_t rank);
    [[nodiscard]] std::uint32_t entity_at(const Division &division, std::uint32_t rank) const;
    // How long work of `time` takes a rank, which may share its core with ranks of other domains.
    [[nodiscard]] Ps own_time(std::uint32_t rank, Ps time) const {
        if (shares_.empty())
            return time;
        const Share &share = shares_[rank];
        Ps all = time;
        return __builtin_mul_overflow(time, share.slow, &all) ? kLongest : all / share.fast;
    }
    // How long a part of a message's way takes that lasts `time` where its sender has a core of its own.
    [[nodiscard]] Ps way_time(std::uint32_t rank, Ps time) const {
        return machine_->way_is_work ? own_time(rank, time) : time;
    }
    // How long a polling rank waits for its turn among the hosts that poll on its core.
    [[nodiscard]] Ps turn(std::uint32_t rank) const {
        if (shares_.empty())
            return 0;
        return (shares_[rank].slow - shares_[rank].fast) * machine_->switch_ps / shares_[rank].fast;
    }

    // point to point
    void post_send(std::uint32_t rank, std::uint32_t dst, std::int32_t tag, std::uint32_t context, std::uint64_t bytes,
                   bool synchronous, std::uint32_t owner);
    void post_recv(std::uint32_t rank, std::int32_t src, std::int32_t tag, std::uint32_t context, std::uint32_t owner);
    std::uint32_t find_unexpected(Rank &r, std::int32_t src, std::int32_t tag, std::uint32_t context, bool take);
    std::uint32_t take_posted(Rank &r, const Message &m);
    void enter(std::uint32_t rank);
    void complete_send(std::uint32_t rank, std::uint32_t owner, Ps time);
    void detach(std::uint32_t rank, std::uint32_t index);
    void match(std::uint32_t message, std::uint32_t owner);
    void receive_eager(std::uint32_t index, std::uint32_t owner, Ps time);
    void complete_recv(std::uint32_t rank, std::uint32_t owner, Ps time, Ps overhead);
    void complete_slot(std::uint32_t rank, std::uint32_t slot, Ps time);
    void control(std::uint32_t message, Ps time);
    void answer(std::uint32_t message);
    void sent(std::uint32_t note);
    void schedule_sent(std::uint32_t message, Ps time);
    void fetch_data(std::uint32_t message);
    void fetched_data(std::uint32_t message, Ps overhead);
    [[nodiscard]] Ps answer_overhead(const Message &m);

    // collectives
    [[nodiscard]] CollectiveCall call_of(const Context &c) const;
    [[nodiscard]] const Nodes *nodes_for(const Context &c);
    void advance(std::uint32_t context);
    void handle_received(Context &c);
    void end_round(Context &c);
    void context_step_done(std::uint32_t context, Ps time, Ps cost, bool receive);
    void finish_context(std::uint32_t context);

    // network
    Ps take_turn(const Message &m, const Segment &segment, Ps own, Ps time);
    [[nodiscard]] Ps spread_of(const Message &m) const;
    Ps inject(std::uint32_t message, Ps time);
    Ps in_order(std::uint32_t src, std::uint32_t dst, Ps first, Ps spread);
    void arrive(std::uint32_t message);
    Ps copied(const Message &m, Ps time);
    void ready(std::uint32_t message, bool again = false);
    bool take_buffer(std::uint32_t message, std::uint32_t domain, bool again);
    void take_packets(std::uint32_t domain, const InterruptStage::Item &item);
    void stage_due(std::uint32_t domain);
    void acknowledge(std::uint32_t message, Ps time);
    bool needs_own_ack(const Message &m, Ps time);
    void schedule_stage(std::uint32_t domain);
    void deliver(std::uint32_t message, Ps time);

    // small helpers
    [[nodiscard]] std::uint32_t sender(const Message &m) const { return m.kind == MessageKind::kGrant ? m.dst : m.src; }
    [[nodiscard]] std::uint32_t target(const Message &m) const { return m.kind == MessageKind::kGrant ? m.src : m.dst; }
    [[nodiscard]] std::uint64_t wire_bytes(const Message &m) const {
        return m.kind == MessageKind::kEager || m.kind == MessageKind::kData ? m.bytes : 0;
    }
    // How many packets a message is.
    [[nodiscard]] std::uint32_t packets(std::uint64_t bytes) const {
        const std::uint64_t size = machine_->packet_bytes, all = bytes + machine_->stage.message_header_bytes;
        return size ? static_cast<std::uint32_t>(std::max<std::uint64_t>((all + size - 1) / size, 1)) : 1;
    }
    [[nodiscard]] const Place &place_of_target(const Message &m) const {
        return m.kind == MessageKind::kGrant ? m.from : m.to;
    }
    [[nodiscard]] static PairClass pair(const Place &a, const Place &b) {
        if (a.domain == b.domain)
            return PairClass::kSameDomain;
        return a.host == b.host ? PairClass::kSameHost : PairClass::kInter;
    }
    [[nodiscard]] static bool inside(const Message &m) {
        return m.pair == PairClass::kSameDomain || m.pair == PairClass::kSelf;
    }
    [[nodiscard]] const PathModel &path(PairClass of) const { return machine_->paths[static_cast<int>(of)]; }
    [[nodiscard]] bool fetched(const Message &m) const {
        return inside(m) && path(m.pair).fetched;
    }
    [[nodiscard]] const Program &program(const Rank &r) const { return job_->programs[r.program]; }
    [[nodiscard]] bool in_call(const Rank &r) const { return r.state >= State::kInCall && r.state <= State::kProbing; }
    // Whether the process itself progresses messages at `time`; with asynchronous progress not while it computes.
    [[nodiscard]] bool progresses(const Rank &r, Ps time) const {
        return in_call(r) && !(machine_->async_progress && r.state == State::kWaiting && time < r.computes_until);
    }
    // Whether all of the message's way is work of its sender, which shares cores with others.
    [[nodiscard]] bool works_all_the_way(const Message &m) const {
        return machine_->way_is_work && !shares_.empty() && !inside(m);
    }
    [[nodiscard]] const std::vector<WorkPoint> &works_of(const PathModel &way,
                                                         const std::vector<WorkPoint> &single) const {
        return shares_.empty() && !single.empty() ? single : way.work;
    }
    [[nodiscard]] Ps least_work(const Message &m) const;
    [[nodiscard]] Ps left_to_do(const Message &m) const; // by the receiver, once it computes again
    Ps send_overhead(const Message &m);
    Ps recv_overhead(const Message &m);
    [[nodiscard]] bool crosses(const Message &m) const;
    Ps time_awake(std::uint32_t rank, Ps time);
    std::uint32_t draw(std::uint32_t stream, std::uint32_t &counter, std::uint32_t purpose) const;
    Ps stage_jitter(std::uint32_t domain);

    [[nodiscard]] std::uint32_t comm_size(const Comm &c) const;
    [[nodiscard]] std::uint32_t comm_rank(const Comm &c, std::uint32_t rank) const;
    [[nodiscard]] std::uint32_t world_rank(const Comm &c, std::uint32_t rank, std::uint32_t member) const;
    [[nodiscard]] std::int32_t peer_of(const Rank &r, std::uint32_t rank, const Op &op, Peer rule,
                                       std::int32_t peer) const;

    // The time of something; a clock that overflowed would continue in the past.
    static Ps checked(Ps time) {
        if (time > kLongest || time < -kLongest)
            throw Outcome::kTime;
        return time;
    }
    void push(Ps time, EventKind kind, std::uint32_t index) { events_.push(checked(time), kind, index); }
    [[nodiscard]] static std::uint32_t carrier(const Slot &s) { return static_cast<std::uint32_t>(s.time); }
    Slot &slot(const Rank &r, std::uint32_t index) { return slots_[r.slot_base + index]; }
    template <typename Nodes> static void append(List &list, Nodes &pool, std::uint32_t node) {
        pool[node].next = kNone;
        (list.head == kNone ? list.head : pool[list.tail].next) = node;
        list.tail = node;
    }
    template <typename Nodes> static void remove(List &list, Nodes &pool, std::uint32_t node) {
        std::uint32_t before = kNone;
        for (std::uint32_t at = list.head; at != node; at = pool[at].next)
            before = at;
        (before == kNone ? list.head : pool[before].next) = pool[node].next;
        if (list.tail == node)
            list.tail = before;
    }
    void report_stuck(Result &result) const;
    [[nodiscard]] Stuck describe(std::uint32_t rank) const;

    const Job *job_;
    const Machine *machine_;
    std::uint64_t seed_;
    std::uint32_t replica_;
    Ps now_ = 0;
    EventQueue events_;
    LargeVector<Rank> ranks_;
    LargeVector<Place> places_;    // of every rank, for its senders
    std::vector<Copying> copying_; // empty where no path copies
    std::vector<Share> shares_;    // empty where every rank has a core of its own
    std::vector<Core> cores_;
    std::vector<Division> divisions_; // of computers whose ranks are not always divided evenly
    std::vector<CoreGroup> core_groups_;
    std::vector<Entity> entities_;
    std::vector<std::uint32_t> polling_; // entities, while their time is counted
    bool outside_ = false;               // what this event brings comes from outside the rank's node
    LargeVector<Slot> slots_;
    std::vector<std::uint32_t> loops_;
    std::vector<std::uint32_t> visits_, visit_base_; // of gaps that are replayed in their order, by rank and site
    std::vector<std::uint32_t> sequence_;            // collectives started, per rank and communicator
    std::map<std::array<std::uint32_t, 3>, MeasuredCall>
        measured_calls_; // by communicator, number in it, and collective
    LargeVector<Flow> flows_;
    std::unordered_map<std::uint64_t, Ps> more_flows_; // beyond kInlineFlows of a rank
    std::size_t more_flows_limit_ = 1 << 16;
    std::unordered_map<std::uint64_t, Way> ways_; // by sender and receiver
    std::vector<Port> ports_;
    LargeVector<InterruptStage> stages_;
    std::vector<std::uint32_t> stage_draws_;
    std::vector<Ps> stage_planned_; // time of the queued event that is still valid
    std::vector<SharedQueue> shared_;
    Pool<Message> messages_;
    FixedPool<Receive> receives_; // a slot has its own; those of collectives come from the pool
    Pool<Context> contexts_;
    std::unordered_map<std::uint64_t, Nodes> nodes_; // by communicator and its first rank
    std::vector<std::uint32_t> runnable_;
    std::vector<InterruptStage::Visible> visible_;
    std::uint32_t finished_ = 0;
    bool keep_ = false;
    bool many_ = false; // ranks: their records are fetched ahead
    Budget budget_;
    std::uint64_t steps_ = 0, look_at_ = 0;
    std::uint32_t current_ = 0; // the rank whose program ran last
    Result result_;
};

} // namespace nearmetal
