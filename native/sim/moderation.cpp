#include "moderation.hpp"

#include <algorithm>
#include <array>

namespace nearmetal {

Quantiles::Quantiles(std::vector<std::uint32_t> probability, std::vector<Ps> value)
    : probability_(std::move(probability)), value_(std::move(value)), slope_(value_.size(), 0.0) {
    for (std::size_t i = 0; i + 1 < value_.size(); ++i)
        slope_[i] =
            static_cast<double>(value_[i + 1] - value_[i]) / static_cast<double>(probability_[i + 1] - probability_[i]);
    std::size_t at = 0;
    for (std::uint32_t high = 0; high < 64; ++high) {
        while (at + 1 < probability_.size() && probability_[at + 1] <= high << 26)
            ++at;
        guide_[high] = static_cast<std::uint16_t>(at);
    }
}

namespace {

// include/linux/dim.h, lib/dim/net_dim.c
struct Profile {
    std::uint32_t usecs, packets;
};
constexpr std::array<Profile, 5> kDimEqe{{{1, 256}, {8, 256}, {64, 256}, {128, 256}, {256, 256}}};
constexpr std::array<Profile, 5> kDimCqe{{{2, 256}, {8, 128}, {16, 64}, {32, 64}, {64, 64}}};
constexpr int kDimProfiles = 5, kDimTired = 2 * kDimProfiles, kDimEvents = 64;
enum Step { kStepped, kEdge, kTooTired };
enum Compared { kWorse = -1, kSame = 0, kBetter = 1 };

// drivers/net/ethernet/mellanox/mlx4/en_netdev.c, mlx4_en.h
constexpr Ps kMlx4Period = 250'000 * kPsPerUs;
constexpr std::int64_t kMlx4RateThreshold = 1'000'000 / 128, kMlx4AverageSmall = 256;

// drivers/net/ethernet/intel/igb/igb.h, igbvf/igbvf.h, ixgbevf: quarter microseconds
constexpr Ps kItrUnit = 250'000, kEmulatedUnit = 1'024'000;
constexpr std::uint32_t kItrStart = 648, kItr4k = 980, kItr20k = 196, kItr70k = 56, kItrMin = 4;
constexpr std::uint32_t kItrMask = 0x7FFC; // igb_write_itr()
constexpr std::uint32_t kIgbvfStart = 488;
constexpr std::uint32_t kIxgbevf100k = 40, kIxgbevf20k = 200, kIxgbevf12k = 336;
enum LatencyClass : std::uint32_t { kLowest, kLow, kBulk };

bool significant(std::int64_t current, std::int64_t previous) {
    return previous != 0 && 100 * std::abs(current - previous) / previous > 10;
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::uint32_t first_itr(const ModerationSetting &setting) {
    const std::uint32_t usecs = setting.usecs;
    switch (setting.kind) {
    case ModerationKind::kIgbQueue:
    case ModerationKind::kIgbShared:
        return usecs == 0 ? kItrMin : usecs <= 3 ? kItrStart : usecs << 2;
    case ModerationKind::kIgbvf:
        return usecs == 0 ? kItrMin : usecs <= 3 ? kIgbvfStart : usecs << 2;
    case ModerationKind::kIxgbevf:
        return usecs == 1 ? kIxgbevf20k : usecs << 2;
    default:
        return 0;
    }
}

} // namespace

Moderator::Moderator(const ModerationSetting &setting)
    : setting_(&setting), usecs_(setting.usecs), frames_(setting.frames), itr_(first_itr(setting)), itr_next_(itr_),
      latency_class_(kLowest), next_tick_(kMlx4Period) {
    switch (setting.kind) {
    case ModerationKind::kOff:
        usecs_ = 0;
        frames_ = 1;
        break;
    case ModerationKind::kMlx4:
        usecs_ = setting.usecs_low;
        break;
    case ModerationKind::kDimEqe:
    case ModerationKind::kDimCqe:
        apply_profile();
        break;
    case ModerationKind::kIxgbevf:
        latency_class_ = kLow;
        break;
    default:
        break;
    }
}

Ps Moderator::complete(Ps now, std::uint32_t frames) {
    if (setting_->kind == ModerationKind::kMlx4)
        tick_mlx4(now);
    if (throttles()) {
        if (timing_ && now > timer_end_) { // it interrupted without a packet
            timing_ = false;
            itr_ = itr_next_;
        }
        if (setting_->emulated)
            return std::max(now, timer_end_);
        return last_fire_ == -kNever ? now : std::max(now, last_fire_ + Ps{itr_} * kItrUnit);
    }
    const bool restarts = setting_->kind == ModerationKind::kFixedCqe || setting_->kind == ModerationKind::kDimCqe;
    if (batch_ == 0 || restarts)
        batch_start_ = now;
    batch_ += frames;
    if (frames_ > 0 && batch_ >= frames_)
        return now;
    if (usecs_ > 0)
        return batch_start_ + usecs_ * kPsPerUs;
    // A mlx4 queue with period 0 is not moderated at all, whatever its count.
    return setting_->kind == ModerationKind::kMlx4 ? now : kNever;
}

void Moderator::fire(Ps now) {
    batch_ = 0;
    last_fire_ = now;
    const bool by_timer = timing_ && now == timer_end_;
    timing_ = setting_->emulated && !by_timer;
    if (timing_) // before the driver writes
        timer_end_ = now + Ps{itr_} * kEmulatedUnit;
    itr_ = itr_next_;
}

void Moderator::polled(Ps now, std::uint32_t packets, std::uint64_t bytes) {
    if (setting_->kind == ModerationKind::kMlx4)
        tick_mlx4(now);
    ring_packets_ += packets;
    ring_bytes_ += bytes;
    new_packets_ += packets;
    new_bytes_ += bytes;
}

void Moderator::rearm(Ps now) {
    switch (setting_->kind) {
    case ModerationKind::kMlx4:
        tick_mlx4(now);
        break;
    case ModerationKind::kDimEqe:
    case ModerationKind::kDimCqe:
        run_dim(now);
        break;
    case ModerationKind::kIgbQueue:
        adapt_igb_queue();
        break;
    case ModerationKind::kIgbShared:
        adapt_igb_shared();
        break;
    case ModerationKind::kIgbvf:
        adapt_igbvf();
        break;
    case ModerationKind::kIxgbevf:
        adapt_ixgbevf();
        break;
    default:
        break;
    }
}

// mlx4_en_auto_moderation(), run from the statistics work every 250 ms. Ticks are processed before anything that could
// change the counters, so each sees the counters of its time.
void Moderator::tick_mlx4(Ps now) {
    for (; next_tick_ <= now; next_tick_ += kMlx4Period)
        run_mlx4();
}

void Moderator::run_mlx4() {
    const auto packets = static_cast<std::int64_t>(ring_packets_ - tick_packets_);
    const auto bytes = static_cast<std::int64_t>(ring_bytes_ - tick_bytes_);
    tick_packets_ = ring_packets_;
    tick_bytes_ = ring_bytes_;
    const std::int64_t rate = packets * 4, average = packets ? bytes / packets : 0;
    usecs_ = setting_->usecs_low;
    if (rate <= kMlx4RateThreshold / setting_->rings || average <= kMlx4AverageSmall || rate <= setting_->rate_low)
        return;
    if (rate >= setting_->rate_high)
        usecs_ = setting_->usecs_high;
    else
        usecs_ +=
            static_cast<std::uint32_t>((rate - setting_->rate_low) * (setting_->usecs_high - setting_->usecs_low) /
                                       (setting_->rate_high - setting_->rate_low));
}

// net_dim(): one event is one NAPI completion that enables the interrupt.
void Moderator::run_dim(Ps now) {
    ++events_;
    const Sample end{now / kPsPerUs, static_cast<std::int64_t>(ring_packets_), static_cast<std::int64_t>(ring_bytes_),
                     events_};
    if (measuring_) {
        if (end.events - start_.events < kDimEvents)
            return;
        const std::int64_t us = end.time_us - start_.time_us;
        if (us == 0)
            return;
        const Rates current{divide_up((end.packets - start_.packets) * 1000, us),
                            divide_up((end.bytes - start_.bytes) * 1000, us), divide_up(kDimEvents * 1000, us)};
        if (decide_dim(current)) {
            apply_profile();
            measuring_ = false; // the next completion starts a sample
            return;
        }
    }
    start_ = end;
    measuring_ = true;
}

// net_dim_decision()
bool Moderator::decide_dim(const Rates &current) {
    const auto compare = [&] {
        const Rates &p = previous_;
        if (p.bytes == 0)
            return current.bytes ? kBetter : kSame;
        if (significant(current.bytes, p.bytes))
            return current.bytes > p.bytes ? kBetter : kWorse;
        if (p.packets == 0)
            return current.packets ? kBetter : kSame;
        if (significant(current.packets, p.packets))
            return current.packets > p.packets ? kBetter : kWorse;
        if (p.events == 0 || !significant(current.events, p.events))
            return kSame;
        return current.events < p.events ? kBetter : kWorse;
    };
    const int profile = profile_;
    const bool parked = tune_ == Tune::kParkTop;
    search_dim(compare());
    if (!parked || tune_ != Tune::kParkTop)
        previous_ = current;
    return profile_ != profile;
}

void Moderator::search_dim(int compared) {
    if (tune_ == Tune::kParkTop) {
        if (compared != kSame)
            leave_parking();
        return;
    }
    if (tune_ == Tune::kParkTired) {
        if (--tired_ == 0)
            leave_parking();
        return;
    }
    if (compared != kBetter) {
        if (tune_ == Tune::kRight) {
            tune_ = Tune::kLeft;
            steps_left_ = 0;
        } else {
            tune_ = Tune::kRight;
            steps_right_ = 0;
        }
    }
    const bool on_top =
        tune_ == Tune::kRight ? steps_left_ > 1 && steps_right_ == 1 : steps_right_ > 1 && steps_left_ == 1;
    const int stepped = on_top ? static_cast<int>(kEdge) : step_dim();
    if (stepped == kEdge) {
        steps_right_ = steps_left_ = tired_ = 0;
        tune_ = Tune::kParkTop;
    } else if (stepped == kTooTired) {
        steps_right_ = steps_left_ = 0;
        tune_ = Tune::kParkTired;
    }
}

int Moderator::step_dim() {
    if (tired_ == kDimTired)
        return kTooTired;
    if (tune_ == Tune::kRight) {
        if (profile_ == kDimProfiles - 1)
            return kEdge;
        ++profile_;
        ++steps_right_;
    } else {
        if (profile_ == 0)
            return kEdge;
        --profile_;
        ++steps_left_;
    }
    ++tired_;
    return kStepped;
}

void Moderator::leave_parking() {
    tune_ = profile_ ? Tune::kLeft : Tune::kRight;
    step_dim();
}

void Moderator::apply_profile() {
    const auto index = static_cast<std::size_t>(profile_);
    const Profile &profile = setting_->kind == ModerationKind::kDimEqe ? kDimEqe[index] : kDimCqe[index];
    usecs_ = profile.usecs;
    frames_ = profile.packets;
}

// igb_update_ring_itr(); a new value waits for the next interrupt (igb_write_itr()).
void Moderator::adapt_igb_queue() {
    if ((setting_->usecs & 3) == 0 || setting_->usecs > 3)
        return;
    std::uint32_t itr = kItr4k;
    if (setting_->link_mbps == 1000) {
        std::uint64_t average = new_packets_ ? new_bytes_ / new_packets_ : 0;
        new_packets_ = new_bytes_ = 0;
        if (average == 0)
            return;
        average = std::min<std::uint64_t>(average + 24, 3000);
        itr = static_cast<std::uint32_t>(average > 300 && average < 1200 ? average / 3 : average / 2) & kItrMask;
        if (setting_->usecs == 3)
            itr = std::max(itr, kItr20k);
    }
    new_packets_ = new_bytes_ = 0;
    itr_next_ = itr;
}

// igb_update_itr()
std::uint32_t Moderator::classify_igb(std::uint32_t latency_class) {
    const std::uint64_t packets = new_packets_, bytes = new_bytes_;
    if (packets == 0)
        return latency_class;
    std::uint32_t next = latency_class;
    const std::uint64_t average = bytes / packets;
    if (latency_class == kLowest) {
        if (average > 8000)
            next = kBulk;
        else if (packets < 5 && bytes > 512)
            next = kLow;
    } else if (latency_class == kLow) {
        if (bytes > 10000) {
            if (average > 8000 || packets < 10 || average > 1200)
                next = kBulk;
            else if (packets > 35)
                next = kLowest;
        } else if (average > 2000) {
            next = kBulk;
        } else if (packets <= 2 && bytes < 512) {
            next = kLowest;
        }
    } else if (bytes > 25000) {
        if (packets > 35)
            next = kLow;
    } else if (bytes < 1500) {
        next = kLow;
    }
    new_packets_ = new_bytes_ = 0;
    return next;
}

// igb_set_itr(); its smoothing never changes a value and is left out.
void Moderator::adapt_igb_shared() {
    if ((setting_->usecs & 3) == 0 || setting_->usecs > 3)
        return;
    if (setting_->link_mbps != 1000) {
        itr_next_ = kItr4k;
        return;
    }
    latency_class_ = classify_igb(latency_class_);
    const std::uint32_t shown = latency_class_ == kLowest && setting_->usecs == 3 ? kLow : latency_class_;
    itr_next_ = shown == kLowest ? kItr70k : shown == kLow ? kItr20k : kItr4k;
}

// igbvf_set_itr(): the register value is passed where a class is expected, so every call asks for 488.
void Moderator::adapt_igbvf() {
    const std::uint32_t usecs = setting_->usecs;
    const std::uint64_t requested =
        usecs == 2 || usecs == 3 ? usecs : 1'000'000'000ull / ((usecs ? usecs << 2 : kItrMin) * 256ull);
    if ((requested & 3) == 0)
        return;
    new_packets_ = new_bytes_ = 0;
    itr_next_ = kIgbvfStart > itr_next_ ? std::min(itr_next_ + (kIgbvfStart >> 2), kIgbvfStart) : kIgbvfStart;
}

// ixgbevf_update_itr(), ixgbevf_set_itr(); the register is written at once.
void Moderator::adapt_ixgbevf() {
    if (setting_->usecs != 1)
        return;
    const std::uint64_t us = itr_ >> 2;
    if (new_packets_ != 0 && us != 0) {
        const std::uint64_t rate = new_bytes_ / us;
        if (latency_class_ == kLowest && rate > 10)
            latency_class_ = kLow;
        else if (latency_class_ == kLow && (rate > 20 || rate <= 10))
            latency_class_ = rate > 20 ? kBulk : kLowest;
        else if (latency_class_ == kBulk && rate <= 20)
            latency_class_ = kLow;
        new_packets_ = new_bytes_ = 0;
    }
    const std::uint32_t wanted = latency_class_ == kLowest ? kIxgbevf100k
                                 : latency_class_ == kLow  ? kIxgbevf20k
                                                           : kIxgbevf12k;
    if (wanted != itr_)
        itr_ = itr_next_ = (10 * wanted * itr_) / (9 * wanted + itr_);
}

} // namespace nearmetal
