// The queue of future events: a calendar queue (Brown, CACM 31(10), 1988) with a total order (time, what), so ties
// never depend on insertion order and the width of its days never changes a result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bins.hpp"
#include "units.hpp"

namespace nearmetal {

enum class EventKind : std::uint8_t {
    kRank = 0,    // the program of a rank continues
    kArrive = 1,  // the last byte of a message (with an interrupt stage, the first packet) reaches its destination
    kReady = 2,   // a message that queued at the port has passed it
    kStage = 3,   // an interrupt stage is due
    kContext = 4, // a collective goes to its next round
    kControl = 5, // a process answers a rendezvous message
    kCore = 6,    // a rank wants its core, or has got it
    kAnswer = 7,  // an acknowledgement of packets reaches an interrupt stage
    kSlice = 8,   // a rank that computes has used up its time slice of a core
    kSent = 9,    // the last byte of a rank's data has left, where it shares its core
    kAgain = 10,  // a message that a shared receive queue refused is sent again
    kCopied = 11, // a message that an interrupt stage has shown is copied
};

struct Event {
    Ps time;
    std::uint64_t what; // kind << 32 | index
    [[nodiscard]] EventKind kind() const { return static_cast<EventKind>(what >> 32); }
    [[nodiscard]] std::uint32_t index() const { return static_cast<std::uint32_t>(what); }
    [[nodiscard]] bool operator<(const Event &other) const {
        return time != other.time ? time < other.time : what < other.what;
    }
};

// Events of the present day are sorted once; those added to it later go to a separate small heap. Events of the days
// ahead lie unsorted in their day, those beyond the calendar in one heap of leaves.
class EventQueue {
  public:
    [[nodiscard]] bool empty() const { return size_ == 0; }
    [[nodiscard]] std::size_t size() const { return size_; }

    // The earliest event; the queue must not be empty.
    const Event &top() {
        if (at_ == today_.size() && late_.empty())
            turn_page();
        return late_first() ? late_.front() : today_[at_];
    }

    Event pop() {
        const Event first = top();
        if (late_first()) {
            std::pop_heap(late_.begin(), late_.end(), Later{});
            late_.pop_back();
        } else {
            ++at_;
        }
        --size_;
        return first;
    }

    void push(Ps time, EventKind kind, std::uint32_t index) {
        const Event event{time, static_cast<std::uint64_t>(kind) << 32 | index};
        ++size_;
        if (time < day_end_) {
            late_.push_back(event);
            std::push_heap(late_.begin(), late_.end(), Later{});
        } else {
            file(event);
        }
    }

    // The event `ahead` places after the next one, if it is known without work; else nullptr.
    [[nodiscard]] const Event *peek(std::size_t ahead) const {
        return at_ + ahead < today_.size() ? &today_[at_ + ahead] : nullptr;
    }

  private:
    static constexpr std::size_t kDays = 4096;
    static constexpr std::size_t kCrowded = 4096, kSparse = 64; // mean events of a day that change its width
    static constexpr std::size_t kReview = 1024;                // days between two checks of that mean

    struct Later {
        bool operator()(const Event &a, const Event &b) const { return b < a; }
    };

    [[nodiscard]] bool late_first() const {
        return !late_.empty() && (at_ == today_.size() || late_.front() < today_[at_]);
    }

    void file(const Event &event) {
        const auto day = static_cast<std::uint64_t>(event.time - start_) >> shift_;
        if (day < kDays)
            days_.add(day, event);
        else
            beyond_.push_back(event);
    }

    // Find the next day with events; there is one.
    void turn_page() {
        today_.clear();
        at_ = 0;
        while (today_.empty()) {
            if (++day_ == kDays) {
                open_calendar();
                continue;
            }
            days_.move_to(day_, today_);
            day_end_ = start_ + (static_cast<Ps>(day_ + 1) << shift_);
        }
        std::sort(today_.begin(), today_.end());
        turned_events_ += today_.size();
        if (++turned_days_ == kReview)
            review();
    }

    // All days have passed: begin a new calendar at the earliest event beyond.
    void open_calendar() {
        start_ = std::min_element(beyond_.begin(), beyond_.end())->time >> shift_ << shift_;
        day_ = static_cast<std::size_t>(-1);
        day_end_ = start_;
        refile();
    }

    void refile() {
        std::vector<Event> events;
        events.swap(beyond_);
        for (const Event &event : events)
            file(event);
    }

    void review() {
        const std::size_t mean = turned_events_ / turned_days_;
        turned_events_ = turned_days_ = 0;
        if (mean > kCrowded && shift_ > 0)
            --shift_;
        else if (mean < kSparse && shift_ < 50)
            ++shift_;
        else
            return;
        for (std::size_t day = day_ + 1; day < kDays; ++day)
            days_.move_to(day, beyond_);
        // The present day keeps its end; the new calendar begins there.
        start_ = day_end_;
        day_ = static_cast<std::size_t>(-1);
        refile();
    }

    std::vector<Event> today_, late_, beyond_;
    Bins<Event> days_{kDays};
    std::size_t at_ = 0, size_ = 0, day_ = static_cast<std::size_t>(-1);
    std::size_t turned_days_ = 0, turned_events_ = 0;
    Ps start_ = 0, day_end_ = 0;
    int shift_ = 14; // a day is 2^shift ps
};

} // namespace nearmetal
