// Memory for tables of many megabytes: events touch them everywhere, and with 4 KiB pages each touch misses the TLB.
// The kernel is asked for huge pages (madvise(2)); where it has none, nothing changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace nearmetal {

template <typename T> struct LargePages {
    using value_type = T;
    LargePages() = default;
    template <typename Other> LargePages(const LargePages<Other> &) {}

    T *allocate(std::size_t count) {
        const std::size_t bytes = count * sizeof(T);
        if (bytes < kFrom)
            return static_cast<T *>(::operator new(bytes, kAligned));
        const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
        void *memory = std::aligned_alloc(kPage, whole);
        if (memory == nullptr)
            throw std::bad_alloc();
#if defined(__linux__)
        static_cast<void>(madvise(memory, whole, MADV_HUGEPAGE)); // only advice: a refusal costs just time
#endif
        return static_cast<T *>(memory);
    }
    void deallocate(T *memory, std::size_t count) {
        if (count * sizeof(T) < kFrom)
            ::operator delete(memory, kAligned);
        else
            std::free(memory);
    }
    bool operator==(const LargePages &) const { return true; }

  private:
    static constexpr std::align_val_t kAligned{std::max<std::size_t>(alignof(T), __STDCPP_DEFAULT_NEW_ALIGNMENT__)};
    static constexpr std::size_t kPage = std::size_t{2} << 20, kFrom = kPage / 2;
};

template <typename T> using LargeVector = std::vector<T, LargePages<T>>;

// Records addressed by index, which never move. A short replay uses a few, and clearing megabytes would take far longer
// than all the rest: nothing is written to a block before its records are used, and a thread gives its first block to
// its next replay, because the kernel clears new pages, too.
template <typename Record, std::uint32_t kBlock> class Blocks {
    static_assert(std::is_trivially_destructible_v<Record>);

  public:
    Blocks() = default;
    Blocks(const Blocks &) = delete;
    Blocks &operator=(const Blocks &) = delete;
    ~Blocks() {
        if (!blocks_.empty())
            spare_ = std::move(blocks_.front());
    }
    // Return the next index. Its record has no value yet.
    std::uint32_t grow() {
        if (used_ % kBlock == 0)
            blocks_.push_back(spare_ ? std::move(spare_) : Block(LargePages<Record>().allocate(kBlock)));
        return used_++;
    }
    [[nodiscard]] std::uint64_t bytes() const { return blocks_.size() * kBlock * sizeof(Record); }
    Record &operator[](std::uint32_t index) { return blocks_[index / kBlock].get()[index % kBlock]; }
    const Record &operator[](std::uint32_t index) const { return blocks_[index / kBlock].get()[index % kBlock]; }

  private:
    struct Free {
        void operator()(Record *memory) const { LargePages<Record>().deallocate(memory, kBlock); }
    };
    using Block = std::unique_ptr<Record, Free>;
    static inline thread_local Block spare_;
    std::vector<Block> blocks_;
    std::uint32_t used_ = 0;
};

inline constexpr std::size_t kLine = 64; // of the cache

// Prefetch memory into the cache. Without the assembler statement gcc considers the function free of side effects and
// drops calls of it.
inline void fetch_lines(const void *address, std::size_t bytes) {
    const auto *at = static_cast<const char *>(address);
    const std::size_t lead = reinterpret_cast<std::uintptr_t>(at) % kLine;
    for (const char *line = at - lead; line < at + bytes; line += kLine) {
        __builtin_prefetch(line, 1);
        asm volatile("" : : "r"(line));
    }
}

template <typename Record> void fetch(const Record &first, std::size_t bytes = sizeof(Record)) {
    fetch_lines(&first, bytes);
}

} // namespace nearmetal
