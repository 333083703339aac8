// Time and random numbers of the simulator: integer picoseconds and a counter-based generator.
//
// Nothing here depends on the order in which threads or ranks run: a draw is a pure function of (seed, stream,
// counter). Floating point is used for one multiplication and one addition at a time, never contracted (see
// CMakeLists.txt), so results are bit-identical on every IEEE-754 machine.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace nearmetal {

using Ps = std::int64_t; // picoseconds; 2^63 ps are 106 days
__extension__ typedef __int128 Wide; // a product of two durations
inline constexpr Ps kNever = std::numeric_limits<Ps>::max();
inline constexpr Ps kLongest = Ps{1} << 60;     // the longest run: 13 days
inline constexpr Ps kLongestPart = Ps{1} << 57; // a single duration: 40 hours
inline constexpr Ps kPsPerUs = 1'000'000;

// How long bytes take at a rate; an overflow is too long for any run.
[[nodiscard]] inline Ps time_of(std::uint64_t bytes, std::uint64_t fs_per_byte) {
    std::uint64_t fs = 0;
    return __builtin_mul_overflow(bytes, fs_per_byte, &fs) ? kLongest : static_cast<Ps>(fs / 1000);
}

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011).
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = 0xD2511F53ull * counter[0], b = 0xCD9E8D57ull * counter[2];
        counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(b),
                   static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(a)};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return counter;
}

// Inverse distribution function, linear between points: probability[i] in units of 2^-32, value[i] in ps.
// The first probability is 0; draws above the last one give the last value. An empty table always gives 0.
class Quantiles {
  public:
    Quantiles() = default;
    Quantiles(std::vector<std::uint32_t> probability, std::vector<Ps> value);

    [[nodiscard]] bool empty() const { return value_.empty(); }
    [[nodiscard]] Ps draw(std::uint32_t u) const {
        if (value_.empty())
            return 0;
        std::size_t at = guide_[u >> 26];
        while (at + 1 < probability_.size() && probability_[at + 1] <= u)
            ++at;
        return value_[at] + static_cast<Ps>(static_cast<double>(u - probability_[at]) * slope_[at]);
    }

  private:
    std::vector<std::uint32_t> probability_;
    std::vector<Ps> value_;
    std::vector<double> slope_;             // ps per 2^-32, 0 for the last point
    std::array<std::uint16_t, 64> guide_{}; // where to start for the six high bits of a draw
};

} // namespace nearmetal
