// The receive side of one virtual function: completions, interrupt moderation, interrupt delivery and NAPI polling.
//
// `Moderator` is the rule that decides when the next interrupt may fire, as hardware and driver implement it together.
// `InterruptStage` is the machinery around it. Both follow Linux 6.12 and keep its integer arithmetic; the kernel files
// are named at each algorithm in moderation.cpp. Times are ps of the simulation, settings are in the unit of the
// driver. `nearmetal.predict.moderation` is the plain Python twin; the tests compare them event by event.
#pragma once

#include <cstdint>
#include <vector>

#include "large.hpp"
#include "units.hpp"

namespace nearmetal {

enum class ModerationKind : std::uint8_t {
    kOff = 0,       // every completion interrupts
    kFixedEqe = 1,  // usecs after the first completion of a batch, or frames completions
    kFixedCqe = 2,  // the same, but every completion restarts the time
    kMlx4 = 3,      // mlx4 adaptive-rx
    kDimEqe = 4,    // net_dim, period counted from the event (mlx5 default, ENA, virtio-net)
    kDimCqe = 5,    // net_dim, period counted from the completion
    kIgbQueue = 6,  // igb, one vector per queue
    kIgbShared = 7, // igb, one vector for all
    kIgbvf = 8,     // igbvf
    kIxgbevf = 9,   // ixgbevf
};

struct ModerationSetting {
    ModerationKind kind = ModerationKind::kOff;
    std::uint32_t usecs = 0;  // fixed kinds: period; igb, igbvf, ixgbevf: the ethtool rx-usecs setting
    std::uint32_t frames = 1; // fixed kinds and mlx4: frames
    // mlx4 only
    std::uint32_t rate_low = 400000, rate_high = 450000; // packets per second
    std::uint32_t usecs_low = 0, usecs_high = 128;
    std::uint32_t rings = 1;
    // igb only: link speed in Mbit/s
    std::uint32_t link_mbps = 1000;
    // igb and igbvf: the 82576 of QEMU 10.0 (hw/net/igb_core.c). A unit of the register that the driver writes lasts
    // 1,024 ns, not 250. The end of a window interrupts even without a packet, and that interrupt opens no new window.
    bool emulated = false;
};

class Moderator {
  public:
    explicit Moderator(const ModerationSetting &setting); // which must live as long

    // `frames` more completions at `now`: when the interrupt is due (<= now: at once, kNever: not yet).
    Ps complete(Ps now, std::uint32_t frames);
    // The interrupt fires.
    void fire(Ps now);
    // NAPI took packets off the ring.
    void polled(Ps now, std::uint32_t packets, std::uint64_t bytes);
    // NAPI is done and the interrupt is enabled again: where drivers adapt.
    void rearm(Ps now);
    // Whether packets that arrive while an interrupt is planned do not affect it.
    [[nodiscard]] bool throttles() const { return setting_->kind >= ModerationKind::kIgbQueue; }
    // What the driver has programmed: usecs for the delay kinds, quarter microseconds for the ITR kinds.
    [[nodiscard]] std::uint32_t programmed() const { return throttles() ? itr_ : usecs_; }

  private:
    struct Sample {
        std::int64_t time_us = 0, packets = 0, bytes = 0, events = 0;
    };
    struct Rates {
        std::int64_t packets = 0, bytes = 0, events = 0;
    };
    enum class Tune : std::uint8_t { kParkTop, kParkTired, kRight, kLeft };

    void tick_mlx4(Ps now);
    void run_mlx4();
    void run_dim(Ps now);
    bool decide_dim(const Rates &current);
    void search_dim(int compared);
    int step_dim();
    void leave_parking();
    void apply_profile();
    void adapt_igb_queue();
    void adapt_igb_shared();
    void adapt_igbvf();
    void adapt_ixgbevf();
    std::uint32_t classify_igb(std::uint32_t latency_class);

    const ModerationSetting *setting_;
    // delay kinds
    std::uint32_t usecs_ = 0, frames_ = 0; // as programmed now
    std::uint64_t batch_ = 0;              // completions since the last interrupt
    Ps batch_start_ = 0;
    // ITR kinds
    std::uint32_t itr_ = 0, itr_next_ = 0; // in the register; to be written at the next interrupt
    Ps last_fire_ = -kNever;
    Ps timer_end_ = 0; // emulated: of the device's timer
    bool timing_ = false;
    std::uint32_t latency_class_ = 0;
    // counters
    std::uint64_t ring_packets_ = 0, ring_bytes_ = 0; // since the start
    std::uint64_t new_packets_ = 0, new_bytes_ = 0;   // since the driver last cleared them
    // mlx4
    Ps next_tick_ = 0;
    std::uint64_t tick_packets_ = 0, tick_bytes_ = 0;
    // DIM
    bool measuring_ = false;
    std::int64_t events_ = 0;
    Sample start_;
    Rates previous_;
    Tune tune_ = Tune::kParkTop;
    int profile_ = 1, steps_right_ = 0, steps_left_ = 0, tired_ = 0;
};

struct StageSetting {
    ModerationSetting moderation;
    Ps delivery_ps = 0;              // from the interrupt message to the first instruction of the poll
    std::uint32_t delivery_tail = 0; // 1 + index of a quantile table added to it, 0 for none
    Ps poll_ps = 0;                  // cost of one poll call
    Ps packet_ps = 0;                // cost of one packet in it
    std::uint32_t weight = 64;       // NAPI weight
    std::uint32_t budget = 300;      // netdev_budget
    Ps budget_ps = 8000 * kPsPerUs;  // netdev_budget_usecs
    Ps ksoftirqd_ps = 0;             // delay when the softirq is handed to ksoftirqd
    std::uint32_t defer_count = 0;   // napi_defer_hard_irqs
    Ps defer_ps = 0;                 // gro_flush_timeout
    // How messages arrive as packets of a TCP connection; 0: all packets of a message at once, without headers.
    Ps packet_gap_ps = 0;
    std::uint32_t header_bytes = 0, message_header_bytes = 0; // of each packet as the driver sees it; the MPI's
    // A poll that finds two or more packets of a message sends an acknowledgement, and so do messages that cross.
    bool acknowledged = false;
};

class alignas(kLine) InterruptStage {
  public:
    static constexpr std::size_t kOften = 2 * kLine; // of it in use for each message
    struct Item {
        std::uint32_t id, frames;
        std::uint64_t bytes;
        Ps next_ps = 0; // when its next packet arrives
        std::uint32_t unacknowledged = 0;
    };
    struct Visible {
        std::uint32_t id;
        Ps time;
        bool acknowledges = false; // not the message yet: an acknowledgement of some of its packets
    };
    static constexpr std::uint32_t kNobody = ~0u; // the id of an acknowledgement: it is only counted
    enum class Log : std::uint8_t { kInterrupt = 1, kPoll = 2, kRearm = 3 };
    struct LogEntry {
        Log what;
        Ps time;
        std::uint32_t value; // interrupt: what is programmed; poll: packets taken; rearm: what is programmed
    };

    explicit InterruptStage(const StageSetting &setting) : setting_(&setting), moderator_(setting.moderation) {}

    // When to call handle(); kNever when nothing is planned. May move with arrive() and handle().
    [[nodiscard]] Ps due() const { return due_; }
    // The first of `item.frames` packets of a message is in the ring at `now` (never falling between calls).
    // `jitter_ps` is added to the delivery of the interrupt that it may cause; so is that of handle().
    void arrive(Ps now, const Item &item, Ps jitter_ps);
    // Do what was due at `now` == due(); messages that become visible to the process are appended to `out`.
    void handle(Ps now, Ps jitter_ps, std::vector<Visible> &out);

    // An item or a poll comes soon: prefetch the end of the ring, or all of it.
    void fetch_end() const { fetch_lines(pending_.data() + pending_.size(), sizeof(Item)); }
    void fetch() const {
        if (head_ < pending_.size())
            nearmetal::fetch(pending_[head_], (pending_.size() - head_) * sizeof(Item));
    }
    [[nodiscard]] std::uint64_t interrupts() const { return interrupts_; }
    std::vector<LogEntry> *log = nullptr; // tests only: every step in order

  private:
    enum class State : std::uint8_t { kArmed, kFired, kPolled, kDeferred };

    void fire(Ps now, Ps jitter_ps);
    void poll(Ps now, std::vector<Visible> &out);
    void softirq_limits(Ps end, std::uint32_t work);
    void finish(Ps now, Ps jitter_ps);
    void plan(Ps now, std::uint32_t frames, Ps jitter_ps);
    [[nodiscard]] std::uint32_t arrived(const Item &item, Ps now) const;
    [[nodiscard]] std::uint32_t there(Ps now) const;
    [[nodiscard]] Ps next_packet(Ps now) const;
    void note(Log what, Ps time, std::uint32_t value) const;

    const StageSetting *setting_;
    std::vector<Item> pending_; // [head_, size) are waiting
    std::size_t head_ = 0;
    Ps due_ = kNever, busy_until_ = 0, fire_at_ = kNever;
    State state_ = State::kArmed;
    bool exhausted_ = false; // the last poll used its whole weight
    Moderator moderator_;    // its first members are also used for each message: those before fill one cache line
    std::uint32_t round_packets_ = 0, rounds_ = 0; // of this softirq: packets of this net_rx_action, restarts
    Ps round_start_ = 0, softirq_start_ = 0;
    std::uint32_t defer_left_ = 0;
    std::uint64_t interrupts_ = 0;
};

} // namespace nearmetal
