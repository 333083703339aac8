// Reports on a replay that does not end well: who waits for what, and what nobody received.
#include "engine.hpp"

namespace nearmetal {

namespace {
constexpr std::size_t kStuckShown = 16;
} // namespace

Stuck Engine::describe(std::uint32_t rank) const {
    const Rank &r = ranks_[rank];
    const Program &p = program(r);
    Stuck stuck{.rank = rank};
    std::size_t at = r.pc == 0 ? 0 : r.pc - 1; // a rank outside a call is heading for the next
    while (at < p.code.size() && static_cast<Instr>(p.code[at] & 3) != Instr::kOp)
        ++at;
    if (at == p.code.size())
        return stuck;
    stuck.op = p.code[at] >> 2;
    const Op &op = p.ops[stuck.op];
    const bool wild = op.kind == OpKind::kWait || op.kind == OpKind::kCollective;
    const std::int32_t peer = wild ? kAny : peer_of(r, rank, op, op.rule, op.peer);
    stuck.peer = static_cast<std::uint32_t>(peer);
    stuck.tag = op.tag;
    stuck.bytes = op.bytes;
    return stuck;
}

// The budget is used up.
void Engine::exhausted(Outcome outcome, Result &result) const {
    result.outcome = outcome;
    result.stuck = {describe(current_)};
    result.stuck_count = 1;
}

void Engine::report_stuck(Result &result) const {
    for (std::uint32_t rank = 0; rank < job_->ranks; ++rank) {
        if (ranks_[rank].state == State::kDone)
            continue;
        result.outcome = Outcome::kDeadlock;
        if (++result.stuck_count <= kStuckShown)
            result.stuck.push_back(describe(rank));
    }
    if (result.outcome == Outcome::kDeadlock)
        return;
    const auto note = [&](std::uint32_t rank, std::uint32_t peer, std::int32_t tag, std::uint64_t bytes) {
        result.outcome = Outcome::kUnmatched;
        if (++result.stuck_count <= kStuckShown)
            result.stuck.push_back({rank, kNone, peer, tag, bytes});
    };
    for (std::uint32_t rank = 0; rank < job_->ranks; ++rank) {
        const Rank &r = ranks_[rank];
        for (std::uint32_t m = r.unexpected.head; m != kNone; m = messages_[m].next)
            note(rank, messages_[m].src, messages_[m].tag, messages_[m].bytes);
        for (std::uint32_t n = r.posted.head; n != kNone; n = receives_[n].next)
            note(rank, static_cast<std::uint32_t>(receives_[n].src), receives_[n].tag, 0);
    }
}

} // namespace nearmetal
