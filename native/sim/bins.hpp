// Unordered records in bins: for a calendar whose days fill and empty all the time. A bin is a list of chunks, and a
// chunk that was emptied is the next one to be filled, while it is still in the cache.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "large.hpp"

namespace nearmetal {

template <typename Record> class Bins {
  public:
    explicit Bins(std::size_t bins) : bins_(bins) {}

    void add(std::size_t bin, const Record &record) {
        Bin &to = bins_[bin];
        if (to.filled == 0 || to.filled == kChunk) {
            const std::uint32_t fresh = take();
            chunk(fresh).next = to.head;
            to = {fresh, 0};
        }
        chunk(to.head).records[to.filled++] = record;
    }

    // Append what is in a bin to `out`, and empty the bin.
    template <typename Out> void move_to(std::size_t bin, Out &out) {
        Bin &from = bins_[bin];
        for (std::uint32_t at = from.head; at != kEnd; from.filled = kChunk) {
            Chunk &full = chunk(at);
            out.insert(out.end(), full.records.begin(), full.records.begin() + from.filled);
            free_.push_back(at);
            at = full.next;
        }
        from = {};
    }

  private:
    static constexpr std::uint32_t kChunk = 32, kEnd = 0xffffffff;
    struct Chunk {
        std::array<Record, kChunk> records;
        std::uint32_t next;
    };
    struct Bin {
        std::uint32_t head = kEnd, filled = 0; // of the first chunk; the others are full
    };

    Chunk &chunk(std::uint32_t index) { return chunks_[index]; }
    std::uint32_t take() {
        if (free_.empty())
            return chunks_.grow();
        const std::uint32_t index = free_.back();
        free_.pop_back();
        return index;
    }

    std::vector<Bin> bins_;
    Blocks<Chunk, 1 << 12> chunks_;
    std::vector<std::uint32_t> free_;
};

} // namespace nearmetal
