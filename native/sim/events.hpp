// The queue of future events: a 4-ary heap ordered by (time, what), so ties never depend on insertion order.
#pragma once

#include <cstdint>
#include <vector>

#include "units.hpp"

namespace nearmetal {

enum class EventKind : std::uint8_t {
    kRank = 0,    // the program of a rank goes on
    kArrive = 1,  // the last byte of a message reaches the port of its destination
    kReady = 2,   // a message that queued at the port is through
    kStage = 3,   // an interrupt stage is due
    kContext = 4, // a collective goes to its next round
    kControl = 5, // a process answers a rendezvous message
};

struct Event {
    Ps time;
    std::uint64_t what; // kind << 32 | index
    [[nodiscard]] EventKind kind() const { return static_cast<EventKind>(what >> 32); }
    [[nodiscard]] std::uint32_t index() const { return static_cast<std::uint32_t>(what); }
    [[nodiscard]] bool before(const Event &other) const {
        return time != other.time ? time < other.time : what < other.what;
    }
};

class EventQueue {
  public:
    [[nodiscard]] bool empty() const { return heap_.empty(); }
    [[nodiscard]] const Event &top() const { return heap_.front(); }

    void push(Ps time, EventKind kind, std::uint32_t index) {
        const Event event{time, static_cast<std::uint64_t>(kind) << 32 | index};
        std::size_t at = heap_.size();
        heap_.push_back(event);
        while (at > 0) {
            const std::size_t parent = (at - 1) / 4;
            if (!event.before(heap_[parent]))
                break;
            heap_[at] = heap_[parent];
            at = parent;
        }
        heap_[at] = event;
    }

    Event pop() {
        const Event first = heap_.front(), last = heap_.back();
        heap_.pop_back();
        const std::size_t size = heap_.size();
        if (size == 0)
            return first;
        std::size_t at = 0;
        for (;;) {
            const std::size_t child = 4 * at + 1;
            if (child >= size)
                break;
            std::size_t least = child;
            const std::size_t stop = child + 4 < size ? child + 4 : size;
            for (std::size_t i = child + 1; i < stop; ++i)
                least = heap_[i].before(heap_[least]) ? i : least;
            if (!heap_[least].before(last))
                break;
            heap_[at] = heap_[least];
            at = least;
        }
        heap_[at] = last;
        return first;
    }

  private:
    std::vector<Event> heap_;
};

} // namespace nearmetal
