// Records of one type, addressed by index; the one freed last is used first. Grows by blocks, so nothing moves.
#pragma once

#include <cstdint>
#include <vector>

#include "large.hpp"

namespace nearmetal {

template <typename Record> class Pool {
  public:
    std::uint32_t take() {
        std::uint32_t index = 0;
        if (free_.empty()) {
            index = records_.grow();
        } else {
            index = free_.back();
            free_.pop_back();
            if (!free_.empty()) // the next one to be taken
                __builtin_prefetch(&records_[free_.back()], 1);
        }
        new (&records_[index]) Record{};
        return index;
    }
    void give(std::uint32_t index) { free_.push_back(index); }
    [[nodiscard]] std::uint64_t bytes() const { return records_.bytes(); }
    Record &operator[](std::uint32_t index) { return records_[index]; }
    const Record &operator[](std::uint32_t index) const { return records_[index]; }

  private:
    Blocks<Record, 1 << 15> records_;
    std::vector<std::uint32_t> free_;
};

// A pool whose first `fixed` records have owners already: they are neither taken nor given back.
template <typename Record> class FixedPool {
  public:
    void reserve_fixed(std::uint32_t fixed) { fixed_.resize(fixed); }
    std::uint32_t take() { return pool_.take() + size(); }
    void give(std::uint32_t index) {
        if (index >= size())
            pool_.give(index - size());
    }
    [[nodiscard]] std::uint64_t bytes() const { return pool_.bytes() + fixed_.size() * sizeof(Record); }
    Record &operator[](std::uint32_t index) { return index < size() ? fixed_[index] : pool_[index - size()]; }
    const Record &operator[](std::uint32_t index) const {
        return index < size() ? fixed_[index] : pool_[index - size()];
    }

  private:
    [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(fixed_.size()); }
    LargeVector<Record> fixed_;
    Pool<Record> pool_;
};

} // namespace nearmetal
