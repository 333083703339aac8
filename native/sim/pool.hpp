// Records of one type, addressed by index; the one freed last is used first. Grows by blocks, so nothing moves.
#pragma once

#include <cstdint>
#include <vector>

#include "large.hpp"

namespace nearmetal {

template <typename Record> class Pool {
  public:
    std::uint32_t take() {
        if (free_.empty()) {
            if (used_ % kBlock == 0 && used_ / kBlock == blocks_.size())
                blocks_.emplace_back(kBlock);
            return used_++;
        }
        const std::uint32_t index = free_.back();
        free_.pop_back();
        if (!free_.empty()) // the next one to be taken
            __builtin_prefetch(&(*this)[free_.back()], 1);
        (*this)[index] = Record{};
        return index;
    }
    void give(std::uint32_t index) { free_.push_back(index); }
    [[nodiscard]] std::uint64_t bytes() const { return blocks_.size() * kBlock * sizeof(Record); }
    Record &operator[](std::uint32_t index) { return blocks_[index / kBlock][index % kBlock]; }
    const Record &operator[](std::uint32_t index) const { return blocks_[index / kBlock][index % kBlock]; }

  private:
    static constexpr std::uint32_t kBlock = 1 << 15;
    std::vector<LargeVector<Record>> blocks_;
    std::vector<std::uint32_t> free_;
    std::uint32_t used_ = 0;
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
