#include "moderation.hpp"

#include <algorithm>

namespace nearmetal {

namespace {
constexpr std::uint32_t kSoftirqRestarts = 10; // kernel/softirq.c: MAX_SOFTIRQ_RESTART, MAX_SOFTIRQ_TIME
constexpr Ps kSoftirqTime = 2000 * kPsPerUs;
} // namespace

void InterruptStage::note(Log what, Ps time, std::uint32_t value) const {
    if (log)
        log->push_back({what, time, value});
}

void InterruptStage::arrive(Ps now, const Item &item, Ps jitter_ps) {
    // A poll that left the ring empty ended at busy_until_; nothing could be seen of it until now.
    if (state_ == State::kPolled && !exhausted_ && head_ == pending_.size() && now >= busy_until_)
        finish(busy_until_, jitter_ps);
    pending_.push_back(item);
    pending_.back().next_ps = now;
    if (state_ == State::kArmed) {
        plan(now, setting_->packet_gap_ps > 0 ? 1 : item.frames, jitter_ps);
    } else if (state_ == State::kPolled && !exhausted_) {
        due_ = busy_until_;
    }
}

// How many packets of an item have arrived by `now`.
std::uint32_t InterruptStage::arrived(const Item &item, Ps now) const {
    const Ps gap = setting_->packet_gap_ps;
    if (item.next_ps > now || gap == 0)
        return item.next_ps > now ? 0 : item.frames;
    return static_cast<std::uint32_t>(std::min<Ps>(item.frames, (now - item.next_ps) / gap + 1));
}

std::uint32_t InterruptStage::there(Ps now) const {
    std::uint32_t frames = 0;
    for (std::size_t i = head_; i < pending_.size(); ++i)
        frames += arrived(pending_[i], now);
    return frames;
}

// When the next packet after `now` arrives.
Ps InterruptStage::next_packet(Ps now) const {
    Ps next = kNever;
    for (std::size_t i = head_; i < pending_.size(); ++i)
        if (const std::uint32_t come = arrived(pending_[i], now); come < pending_[i].frames)
            next = std::min(next, pending_[i].next_ps + come * setting_->packet_gap_ps);
    return next;
}

// Armed, and `frames` more packets have arrived: interrupt, or schedule the next check.
void InterruptStage::plan(Ps now, std::uint32_t frames, Ps jitter_ps) {
    fire_at_ = moderator_.complete(now, frames);
    if (fire_at_ <= now)
        fire(now, jitter_ps);
    else
        due_ = moderator_.throttles() ? fire_at_ : std::min(fire_at_, next_packet(now));
}

void InterruptStage::handle(Ps now, Ps jitter_ps, std::vector<Visible> &out) {
    due_ = kNever;
    switch (state_) {
    case State::kArmed:
        if (now == fire_at_)
            fire(now, jitter_ps);
        else
            plan(now, there(now) - there(now - 1), jitter_ps);
        break;
    case State::kFired:
    case State::kDeferred:
        poll(now, out);
        break;
    case State::kPolled:
        if (exhausted_)
            poll(now, out);
        else
            finish(now, jitter_ps);
        break;
    }
}

void InterruptStage::fire(Ps now, Ps jitter_ps) {
    ++interrupts_;
    fire_at_ = kNever;
    moderator_.fire(now);
    note(Log::kInterrupt, now, moderator_.programmed());
    state_ = State::kFired;
    due_ = now + std::max(setting_->delivery_ps + jitter_ps, Ps{0});
    round_packets_ = rounds_ = 0;
    round_start_ = softirq_start_ = due_;
}

// napi_poll(): at most `weight` packets; each is visible to the process when its turn is over.
void InterruptStage::poll(Ps now, std::vector<Visible> &out) {
    std::uint32_t work = 0;
    std::uint64_t bytes = 0;
    Ps time = now + setting_->poll_ps;
    for (std::size_t i = head_; i < pending_.size() && work < setting_->weight; ++i) {
        Item &item = pending_[i];
        const std::uint32_t take = std::min(arrived(item, now), setting_->weight - work);
        if (take == 0)
            continue;
        const std::uint64_t taken_bytes = take == item.frames ? item.bytes : item.bytes / item.frames * take;
        work += take;
        bytes += taken_bytes;
        time += take * setting_->packet_ps;
        item.frames -= take;
        item.bytes -= taken_bytes;
        item.next_ps += take * setting_->packet_gap_ps;
        item.unacknowledged += take;
        if (setting_->acknowledged && item.id != kNobody && item.unacknowledged >= 2) {
            out.push_back({item.id, time, true});
            item.unacknowledged = 0;
        }
        if (item.frames == 0 && item.id != kNobody)
            out.push_back({item.id, time});
    }
    while (head_ < pending_.size() && pending_[head_].frames == 0)
        ++head_;
    if (head_ == pending_.size() || head_ > 1024) { // keep the ring short without moving it at each poll
        pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(head_));
        head_ = 0;
    }
    note(Log::kPoll, now, work);
    moderator_.polled(now, work, bytes);
    state_ = State::kPolled;
    exhausted_ = work == setting_->weight;
    busy_until_ = time;
    if (work > 0)
        defer_left_ = setting_->defer_count;
    if (exhausted_)
        softirq_limits(time, work);
    if (exhausted_ || head_ < pending_.size() || setting_->defer_count > 0)
        due_ = busy_until_;
}

// net_rx_action() and __do_softirq(): a long poll is interrupted and in the end handed to ksoftirqd.
void InterruptStage::softirq_limits(Ps end, std::uint32_t work) {
    round_packets_ += work;
    if (round_packets_ < setting_->budget && end - round_start_ < setting_->budget_ps)
        return;
    round_packets_ = 0;
    round_start_ = end;
    if (++rounds_ < kSoftirqRestarts && end - softirq_start_ < kSoftirqTime)
        return;
    rounds_ = 0;
    busy_until_ = end + setting_->ksoftirqd_ps;
    round_start_ = softirq_start_ = busy_until_;
}

// napi_complete_done(): either the interrupt is enabled again or a timer calls NAPI again.
void InterruptStage::finish(Ps now, Ps jitter_ps) {
    due_ = kNever;
    if (defer_left_ > 0 && setting_->defer_ps > 0) {
        --defer_left_;
        state_ = State::kDeferred;
        due_ = now + setting_->defer_ps;
        return;
    }
    moderator_.rearm(now);
    note(Log::kRearm, now, moderator_.programmed());
    state_ = State::kArmed;
    if (const std::uint32_t frames = there(now); frames > 0)
        plan(now, frames, jitter_ps);
    else
        due_ = next_packet(now);
}

} // namespace nearmetal
