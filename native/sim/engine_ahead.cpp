// Records fetched into the cache ahead of the events that need them.
#include "engine.hpp"

namespace nearmetal {

namespace {
// How many events ahead to prefetch records, what those point to, and what that points to.
constexpr std::size_t kFar = 24, kNear = 12, kNext = 5;
} // namespace

// With many ranks nearly every event touches its records first: prefetch those of the next events, each once its
// address has been fetched.
void Engine::fetch_ahead() const {
    const auto of_message = [](const Event &event) {
        return event.kind() == EventKind::kArrive || event.kind() == EventKind::kReady;
    };
    if (const Event *far = events_.peek(kFar)) {
        if (of_message(*far))
            fetch(messages_[far->index()]);
        else if (far->kind() == EventKind::kRank)
            fetch(ranks_[far->index()]);
        else if (far->kind() == EventKind::kStage)
            fetch(stages_[far->index()]);
    }
    if (const Event *near = events_.peek(kNear)) {
        if (of_message(*near))
            fetch_way(messages_[near->index()]);
        else if (near->kind() == EventKind::kRank)
            fetch_program(near->index());
        else if (near->kind() == EventKind::kStage)
            stages_[near->index()].fetch();
    }
    if (const Event *next = events_.peek(kNext)) {
        if (of_message(*next))
            fetch_end(messages_[next->index()]);
        else if (next->kind() == EventKind::kRank)
            fetch_peers(next->index());
    }
}

// Prefetch a message's destination: its stage, or its process.
void Engine::fetch_way(const Message &m) const {
    if (machine_->has_stage && !inside(m))
        fetch(stages_[place_of_target(m).domain], InterruptStage::kOften);
    else
        fetch(ranks_[target(m)], kLine);
}

// And there: the end of the stage's ring, or the receives that its process has posted.
void Engine::fetch_end(const Message &m) const {
    if (machine_->has_stage && !inside(m))
        stages_[place_of_target(m).domain].fetch_end();
    else
        fetch_receiver(target(m));
}

// The ranks that a rank sent to lately: it is likely to do so again.
void Engine::fetch_peers(std::uint32_t rank) const {
    const Flow *flows = &flows_[std::size_t{rank} * kInlineFlows];
    for (std::uint8_t i = 0; i < ranks_[rank].flows; ++i)
        fetch(places_[flows[i].dst]);
}

void Engine::fetch_program(std::uint32_t rank) const {
    const Rank &r = ranks_[rank];
    const std::size_t slots = program(r).slots;
    fetch(slots_[r.slot_base], slots * sizeof(Slot));
    fetch(receives_[r.slot_base], slots * sizeof(Receive));
    fetch(flows_[std::size_t{rank} * kInlineFlows], kInlineFlows * sizeof(Flow));
}

// A poll finds many messages at once: prefetch what delivering them touches, one kind of record after another.
void Engine::fetch_visible() const {
    for (const InterruptStage::Visible &v : visible_)
        fetch(messages_[v.id]);
    for (const InterruptStage::Visible &v : visible_)
        fetch(ranks_[target(messages_[v.id])]);
    for (const InterruptStage::Visible &v : visible_)
        fetch_receiver(target(messages_[v.id]));
}

void Engine::fetch_receiver(std::uint32_t rank) const {
    const Rank &r = ranks_[rank];
    fetch(slots_[r.slot_base], 4 * kLine);
    if (r.posted.head != kNone)
        fetch(receives_[r.posted.head], 2 * kLine);
}

} // namespace nearmetal
