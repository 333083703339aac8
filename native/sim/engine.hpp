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

class Engine {
  public:
    Engine(const Job &job, std::uint64_t seed, std::uint32_t replica, Budget budget = {});
    Result run(bool keep);

  private:
    enum class State : std::uint8_t { kComputing, kInCall, kWaiting, kProbing, kDone, kOff };
    enum class MessageKind : std::uint8_t { kEager, kRequest, kGrant, kData };
    // From kSending on the request is under way, and Slot::time is no time but what carries it.
    enum class SlotState : std::uint8_t { kFree, kReady, kDone, kSending, kPosted, kReceiving, kCollective };

    struct Place {
        std::uint32_t host = 0, domain = 0; // the machine with its port, and the node or virtual function on it
    };
    struct alignas(kLine) Message { // holds all that its transfer needs, so that no rank is touched before it arrives
        std::uint32_t next = kNone;
        std::uint32_t src = 0, dst = 0; // of the payload; a grant travels the other way
        std::int32_t tag = 0;
        std::uint32_t context = 0;
        MessageKind kind = MessageKind::kEager;
        PairClass pair = PairClass::kInter; // of its two ends, in either direction
        bool interrupts = false;            // it came while the receiver computed
        bool crosses = false;               // it left before a message of its receiver had reached its sender
        std::uint64_t bytes = 0;
        Ps time = 0; // when it left, and from then on when it became visible to the receiver
        std::uint32_t send_owner = 0, recv_owner = 0;
        Place from, to; // of src and dst
    };
    static_assert(sizeof(Message) == kLine);
    struct Receive {
        std::uint32_t next = kNone, owner = 0;
        std::int32_t src = kAny, tag = kAny; // src: world rank
        std::uint32_t context = 0;
    };
    struct Slot {
        Ps time = 0;                       // of a request under way: the number of its message or collective
        std::int64_t overhead_ps : 48 = 0; // of a ready receive: still to be paid
        SlotState state : 8 = SlotState::kFree;
        bool waited : 8 = false;
    };
    struct List {
        std::uint32_t head = kNone, tail = kNone;
    };
    struct alignas(kLine) Rank {
        // The first cache line holds all that most incoming messages need.
        Ps clock = 0, compute = 0;
        Ps compute_at_recv = 0; // what it had computed when it last received: its path has become cold since
        List posted, unexpected;
        std::uint32_t slot_base = 0, program = 0, left = 0, wait_set = kNone, pc = 0;
        State state = State::kComputing;
        std::uint8_t flows = 0;
        bool flow_overflow = false;
        bool posts = false; // its collective has more messages to send at once, each when the one before is out
        // The second holds what its own calls need.
        Ps tx_free = 0, compute_at_send = 0;
        Ps owed = 0; // work for what it has sent that is still to be done, unless it waits first
        Ps computes_until = 0; // when waiting: a wait may begin ahead of the global clock
        std::uint32_t draws = 0, loop_base = 0, comm_base = 0;
        Place place;
        List deferred;
        std::uint32_t deferred_contexts = kNone;
    };
    // A rank's state on the core that it shares; only where ranks outnumber cores.
    struct Share {
        std::uint32_t core = 0, next = kNone; // the core it has or had last
        std::uint32_t slow = 1, fast = 1;     // what it does takes slow / fast times as long as alone
        std::uint32_t division = kNone;       // of its computer's ranks, where that changes
        std::uint32_t dealt = 0, home = 0;    // the core that it was dealt to, and the one that it is to run on now
        std::uint32_t entity = kNone;         // where what was used decides who goes first
        std::uint32_t busy = 0;               // rounds of collectives that it is about to do
        Ps rest = 0;                          // compute time that is left
        Ps back_at = kNever;                  // when the switch to the core that it was given ends
        Ps polls_until = 0;                   // until then it has the core to itself
        Ps look_at = 0;                       // a time at which it looks for messages from outside its node
        bool unseen = false;                  // such messages came while it did not look
        Ps works_until = 0;                   // when what it has sent is there, where that is its processor's work
        State away = State::kComputing;       // what a rank in kOff was doing: kWaiting or kProbing
        bool queued = false;
    };
    static_assert(sizeof(Rank) == 2 * kLine);
    struct Copying { // what a process copies, out and in
        Ps rx_free = -1, free = 0;
    };
    struct Entity { // the ranks of one domain on one core, to a kernel that divides the core between those
        std::vector<std::uint32_t> ranks;
        double weight = 1.0;
        double used = 0.0; // time used of the core, over the weight
    };
    struct Division { // of a computer's ranks on its cores, and of each core between domains, at a time
        std::vector<std::uint32_t> ranks, domains{};
        std::uint32_t first_core = 0, first_entity = 0; // an entity for each domain, core by core
        std::uint32_t turn = kNone;
    };
    struct Core {
        std::uint32_t holder = kNone, group = 0;
        Ps slice_end = 0, free_at = 0;
        Ps counted = 0;                        // time whose use is known
        std::vector<std::uint32_t> entities{}; // that share it
    };
    struct CoreGroup { // cores that serve the same ranks, and the ranks that want one
        std::uint32_t first = 0, count = 0;
        List ready;
    };
    struct Flow {
        Ps arrival;
        std::uint32_t dst;
    };
    struct Way { // from one rank to another, where packets are acknowledged
        std::uint32_t open = 0; // messages that are not visible yet
        Ps seen = -1;           // when the last one became visible
    };
    static constexpr std::uint32_t kInlineFlows = 8;
    struct Port {
        Ps tx_free = 0, rx_free = -kLongest; // nothing has come through yet
    };
    struct SharedQueue {
        std::uint32_t used = 0, refused = 0; // refused: how many are to be sent again
        Ps refill_at = kNever, last_ready = 0;
    };
    struct Context { // a collective in progress on one rank
        std::uint32_t next = kNone, rank = 0, op = 0, outstanding = 0, seq = 0, slot = 0;
        Progress at;                   // the next round
        const Nodes *nodes = nullptr;  // of a collective that is divided by them
        std::uint64_t reduce_bytes = 0;
        Ps late_time = 0, late_cost = 0; // receives that the process has not seen yet
        Ps sent = 0;                     // when the last of this round's messages has left
        Algorithm algorithm = Algorithm::kDissemination;
        bool open = false; // the round before is
        bool closing = false;
        bool posting = false; // this round's messages are being posted
        bool granted = false; // the process has paid for the next round, whatever it does now
    };
    struct MeasuredCall { // of all ranks, in a collective that takes as long as it was measured to take
        std::uint32_t arrived = 0;
        Ps last = 0; // when the latest so far arrived
    };
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
    Ps inject(std::uint32_t message, Ps time);
    Ps in_order(std::uint32_t src, std::uint32_t dst, Ps first, Ps spread);
    void arrive(std::uint32_t message);
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
    [[nodiscard]] Ps least_work(const Message &m) const;
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
