// The engine's frame and the programs of ranks. Waits are in engine_wait.cpp, messages in engine_message.cpp,
// collectives in engine_collective.cpp, the network in engine_network.cpp, reports on programs that do not end in
// engine_stuck.cpp, what is fetched ahead of its use in engine_ahead.cpp.
#include "engine.hpp"

#include <algorithm>
#include <utility>

namespace nearmetal {

namespace {
constexpr std::uint64_t kLookEvery = 1 << 16; // steps: some milliseconds
constexpr std::uint32_t kMany = 2048; // ranks from which on the records exceed the cache
} // namespace

Engine::Engine(const Job &job, std::uint64_t seed, std::uint32_t replica, Budget budget)
    : job_(&job), machine_(&job.machine), seed_(seed), replica_(replica), ranks_(job.ranks), places_(job.ranks),
      flows_(std::size_t{job.ranks} * kInlineFlows), many_(job.ranks >= kMany), budget_(std::move(budget)) {}

// Allocate every rank's records; they are summed up first, since a few bytes of a file can demand any number of them.
void Engine::lay_out() {
    const Job &job = *job_;
    std::uint64_t slots = 0, loops = 0, comms = 0;
    std::uint32_t hosts = 0, domains = 0;
    for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
        Rank &r = ranks_[rank];
        current_ = rank;
        r.program = job.program_of.empty() ? 0 : job.program_of[rank];
        r.slot_base = static_cast<std::uint32_t>(slots);
        r.loop_base = static_cast<std::uint32_t>(loops);
        r.comm_base = static_cast<std::uint32_t>(comms);
        const Program &p = job.programs[r.program];
        slots += std::uint64_t{p.slots} + kInternalSlots;
        loops += p.depth;
        comms += p.comms.size();
        if (slots >= kNobody || loops >= kNobody || comms >= kNobody ||
            slots * (sizeof(Slot) + sizeof(Receive)) + (loops + comms) * sizeof(std::uint32_t) > budget_.bytes)
            throw Outcome::kMemory;
        r.place = places_[rank] = {job.host_of[rank], job.domain_of[rank]};
        hosts = std::max(hosts, r.place.host + 1);
        domains = std::max(domains, r.place.domain + 1);
    }
    slots_.resize(slots);
    loops_.resize(loops);
    sequence_.resize(comms);
    count_visits();
    receives_.reserve_fixed(static_cast<std::uint32_t>(slots));
    ports_.resize(hosts);
    if (std::any_of(std::begin(machine_->paths), std::end(machine_->paths),
                    [](const PathModel &path) { return path.copy_fs_per_byte > 0; }))
        copying_.resize(job.ranks);
    assign_cores();
    if (machine_->srq_buffers > 0)
        shared_.resize(domains);
    if (machine_->has_stage) {
        stages_.assign(domains, InterruptStage(machine_->stage));
        stage_draws_.assign(domains, 0);
        stage_planned_.assign(domains, kNever);
    }
}

// Where gaps are replayed in order, every rank counts its visits of each.
void Engine::count_visits() {
    if (job_->orders.empty())
        return;
    std::uint64_t sites = 0;
    for (const Rank &r : ranks_) {
        visit_base_.push_back(static_cast<std::uint32_t>(sites));
        sites += program(r).gaps.size();
        if (sites >= kNobody || sites * sizeof(std::uint32_t) > budget_.bytes)
            throw Outcome::kMemory;
    }
    visits_.resize(sites);
}

Result Engine::run(bool keep) {
    keep_ = keep;
    look_at_ = std::min(kLookEvery, budget_.steps);
    try {
        lay_out();
        simulate();
    } catch (const Outcome outcome) {
        exhausted(outcome, result_);
        return std::move(result_);
    }
    for (const Rank &r : ranks_) {
        result_.makespan_ps = std::max(result_.makespan_ps, r.clock);
        result_.compute_ps += r.compute;
    }
    for (const InterruptStage &stage : stages_)
        result_.interrupts += stage.interrupts();
    if (keep)
        for (const Rank &r : ranks_)
            result_.finish_ps.push_back(r.clock);
    report_stuck(result_);
    return std::move(result_);
}

void Engine::simulate() {
    for (std::uint32_t rank = 0; rank < job_->ranks; ++rank)
        push(0, EventKind::kRank, rank);
    while (!events_.empty()) {
        const Event event = events_.pop();
        if (many_)
            fetch_ahead();
        now_ = event.time;
        outside_ = false;
        ++result_.events;
        step();
        switch (event.kind()) {
        case EventKind::kRank:
            run_rank(event.index(), true);
            break;
        case EventKind::kArrive:
            arrive(event.index());
            break;
        case EventKind::kReady:
            ready(event.index());
            break;
        case EventKind::kStage:
            stage_due(event.index());
            break;
        case EventKind::kAnswer:
            take_packets(event.index(), {InterruptStage::kNobody, 1, machine_->stage.header_bytes});
            break;
        case EventKind::kContext:
            context_due(event.index());
            break;
        case EventKind::kCore:
            core_due(event.index());
            break;
        case EventKind::kAgain:
            ready(event.index(), true);
            break;
        case EventKind::kCopied:
            deliver(event.index(), now_);
            break;
        case EventKind::kSlice:
            run_rank(cores_[event.index()].holder, true);
            break;
        case EventKind::kControl:
            answer(event.index());
            break;
        case EventKind::kSent:
            sent(event.index());
            break;
        }
        // Ranks whose wait ended in this event; a list, so that no call nests in another rank's call.
        for (std::size_t i = 0; i < runnable_.size(); ++i)
            run_rank(runnable_[i], false);
        runnable_.clear();
    }
}

// Every so many steps, check whether the budget is used up or the run is to stop.
void Engine::look() {
    if (steps_ >= budget_.steps)
        throw Outcome::kSteps;
    if (bytes() > budget_.bytes)
        throw Outcome::kMemory;
    if (budget_.look)
        budget_.look();
    look_at_ = std::min(steps_ + kLookEvery, budget_.steps);
}

// The memory that grows during a run.
std::uint64_t Engine::bytes() const {
    constexpr std::size_t kNode = 4 * sizeof(void *); // of a hash map
    return messages_.bytes() + receives_.bytes() + contexts_.bytes() + slots_.size() * sizeof(Slot) +
           (more_flows_.size() + ways_.size()) * kNode + events_.size() * sizeof(Event) +
           result_.marks.size() * sizeof(Mark);
}

// ---------------------------------------------------------------- programs

void Engine::run_rank(std::uint32_t rank, bool may_advance) {
    Rank &r = ranks_[rank];
    const Program &p = program(r);
    current_ = rank;
    r.state = State::kComputing;
    if (!shares_.empty() && !(take_core(rank) && compute(rank)))
        return;
    while (r.pc < p.code.size()) {
        step();
        const std::uint32_t word = p.code[r.pc], argument = word >> 2;
        switch (static_cast<Instr>(word & 3)) {
        case Instr::kRepeat:
            loops_[r.loop_base + p.level[r.pc]] = argument;
            ++r.pc;
            break;
        case Instr::kEnd:
            r.pc = --loops_[r.loop_base + p.level[r.pc]] > 0 ? p.partner[r.pc] + 1 : r.pc + 1;
            break;
        case Instr::kGap: {
            const Ps drawn = gap(rank, p.gaps[argument], argument);
            constexpr double kMost = static_cast<double>(kLongest);
            const Ps spent =
                static_cast<Ps>(std::clamp(static_cast<double>(drawn) * machine_->compute_scale, -kMost, kMost));
            r.compute += spent;
            ++r.pc;
            const Ps owed = r.owed > 0 ? std::min(r.owed, std::max(spent, Ps{0})) : 0;
            r.owed -= owed;
            add_overhead(rank, owed);
            if (shares_.empty()) {
                r.clock = checked(r.clock + spent + owed);
            } else {
                shares_[rank].rest = own_time(rank, spent) + owed;
                if (!compute(rank))
                    return;
            }
            break;
        }
        case Instr::kOp: {
            const Op &op = p.ops[argument];
            checked(r.clock);
            if (op.kind == OpKind::kMark) {
                if (keep_)
                    result_.marks.push_back({rank, op.tag, r.clock});
                ++r.pc;
                break;
            }
            // Waiting may begin ahead of the global clock: arrivals meanwhile are handled at max(clock, arrival).
            // Everything else touches shared state and happens in global order.
            if (op.kind != OpKind::kWait && r.clock > now_) {
                if (!may_advance || (!events_.empty() && events_.top().time <= r.clock)) {
                    push(r.clock, EventKind::kRank, rank);
                    return;
                }
                now_ = r.clock;
            }
            ++r.pc;
            r.state = State::kInCall;
            if (r.deferred.head != kNone || r.deferred_contexts != kNone)
                enter(rank);
            if (!run_op(rank, op, argument))
                return;
            r.state = State::kComputing;
            break;
        }
        }
    }
    r.state = State::kDone;
    ++finished_;
    leave_core(rank);
}

// How long a rank computes: a random draw, or the next in the recorded order, which starts over at its end.
Ps Engine::gap(std::uint32_t rank, std::uint32_t table, std::uint32_t site) {
    if (table < kOrder)
        return job_->tables[table].draw(draw(rank, ranks_[rank].draws, 0));
    const std::vector<Ps> &order = job_->orders[table - kOrder];
    std::uint32_t &visit = visits_[visit_base_[rank] + site];
    const Ps recorded = order[visit];
    visit = visit + 1 == order.size() ? 0 : visit + 1;
    return recorded;
}

// Returns false when the rank waits now.
bool Engine::run_op(std::uint32_t rank, const Op &op, std::uint32_t op_index) {
    switch (op.kind) {
    case OpKind::kSend:
        return run_send(rank, op);
    case OpKind::kRecv:
        return run_recv(rank, op);
    case OpKind::kSendrecv:
        return run_sendrecv(rank, op);
    case OpKind::kWait:
        return wait(rank, op.slots);
    case OpKind::kProbe:
        return run_probe(rank, op);
    case OpKind::kCollective:
        return run_collective(rank, op, op_index);
    case OpKind::kCancel:
        cancel(rank, op.slots);
        break;
    case OpKind::kMark: // takes no time, so it never gets here
        break;
    }
    return true;
}

bool Engine::run_send(std::uint32_t rank, const Op &op) {
    Rank &r = ranks_[rank];
    const Comm &comm = program(r).comms[op.comm];
    const std::int32_t peer = peer_of(r, rank, op, op.rule, op.peer);
    const bool blocking = (op.flags & kNonblocking) == 0;
    const std::uint32_t index = blocking ? program(r).slots + kSendSlot : op.slot;
    if (peer == kAny) // off the edge of a grid: MPI_PROC_NULL
        return true;
    post_send(rank, static_cast<std::uint32_t>(peer), op.tag, 2 * comm.context, op.bytes, op.flags & kSynchronous,
              index);
    return !blocking || wait(rank, kInternalSet);
}

bool Engine::run_recv(std::uint32_t rank, const Op &op) {
    Rank &r = ranks_[rank];
    const Comm &comm = program(r).comms[op.comm];
    const std::int32_t peer = peer_of(r, rank, op, op.rule, op.peer);
    const bool blocking = (op.flags & kNonblocking) == 0, wild = op.rule == Peer::kRank && op.peer == kAny;
    const std::uint32_t index = blocking ? program(r).slots + kRecvSlot : op.slot;
    if (peer == kAny && !wild)
        return true;
    post_recv(rank, peer, op.tag, 2 * comm.context, index);
    return !blocking || wait(rank, kInternalSet);
}

bool Engine::run_sendrecv(std::uint32_t rank, const Op &op) {
    Rank &r = ranks_[rank];
    const Program &p = program(r);
    const std::uint32_t context = 2 * p.comms[op.comm].context;
    const std::int32_t to = peer_of(r, rank, op, op.rule, op.peer);
    const std::int32_t from = peer_of(r, rank, op, op.recv_rule, op.recv_peer);
    if (from != kAny || (op.recv_rule == Peer::kRank && op.recv_peer == kAny))
        post_recv(rank, from, op.recv_tag, context, p.slots + kRecvSlot);
    if (to != kAny)
        post_send(rank, static_cast<std::uint32_t>(to), op.tag, context, op.bytes, false, p.slots + kSendSlot);
    return wait(rank, kInternalSet);
}

bool Engine::run_probe(std::uint32_t rank, const Op &op) {
    Rank &r = ranks_[rank];
    const std::uint32_t context = 2 * program(r).comms[op.comm].context;
    const std::uint32_t found = find_unexpected(r, peer_of(r, rank, op, op.rule, op.peer), op.tag, context, false);
    if (found == kNone) {
        r.state = State::kProbing;
        yield_core(rank);
        return false;
    }
    r.clock = std::max(r.clock, messages_[found].time);
    return true;
}

std::uint32_t Engine::draw(std::uint32_t stream, std::uint32_t &counter, std::uint32_t purpose) const {
    return philox({stream, counter++, replica_, purpose}, seed_)[0];
}

// ---------------------------------------------------------------- communicators

std::uint32_t Engine::comm_size(const Comm &c) const {
    return c.members.empty() ? c.size : static_cast<std::uint32_t>(c.members.size());
}

std::uint32_t Engine::comm_rank(const Comm &c, std::uint32_t rank) const {
    return c.members.empty() ? rank / c.stride % c.size : c.my_rank;
}

std::uint32_t Engine::world_rank(const Comm &c, std::uint32_t rank, std::uint32_t member) const {
    if (!c.members.empty())
        return c.members[member];
    const std::uint32_t block = c.stride * c.size;
    return rank / block * block + rank % c.stride + member * c.stride;
}

// World rank of a peer; kAny for a wildcard or no neighbour.
std::int32_t Engine::peer_of(const Rank &r, std::uint32_t rank, const Op &op, Peer rule, std::int32_t peer) const {
    const Program &p = program(r);
    const Comm &c = p.comms[op.comm];
    const bool everybody = c.members.empty() && c.size == job_->ranks && c.stride == 1; // ranks are their own there
    const std::uint32_t me = everybody ? rank : comm_rank(c, rank), given = static_cast<std::uint32_t>(peer);
    const auto world = [&](std::uint32_t member) {
        return static_cast<std::int32_t>(everybody ? member : world_rank(c, rank, member));
    };
    switch (rule) {
    case Peer::kRank:
        return peer == kAny ? kAny : world(given);
    case Peer::kCart: {
        const std::int32_t neighbor = grid_neighbor(p.dims, p.periods, me, given);
        return neighbor == kAny ? kAny : world(static_cast<std::uint32_t>(neighbor));
    }
    case Peer::kXor:
        return (me ^ given) < comm_size(c) ? world(me ^ given) : kAny;
    case Peer::kShift:
        return world((me + given) % comm_size(c));
    case Peer::kTranspose:
        return world(me % given * given + me / given);
    }
    return kAny;
}

} // namespace nearmetal
