// The sampler's arithmetic: exp, log and random bits that are the same on every machine.
//
// Owns: these functions and the floating-point mode that they need. None calls the C library.
// May not know: logits, tokens.
// Read next: sampler_kernels.cpp and sampler.cpp, their users beside the tests.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace firsthand::sampler {

// The default floating-point mode for one scope: denormals kept, rounding to nearest. Whatever
// the calling thread has set (other libraries do) cannot change a result.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(read()) { write(kDefault); }
  ~DefaultFloatMode() { write(saved_); }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr uint64_t kDefault = 0x1f80;  // all exceptions masked, nothing else
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kDefault = 0;
  static uint64_t read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr uint64_t kDefault = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif
  uint64_t saved_;
};

// ln 2 in two parts. The high one ends in zero bits, so k · kLn2High is exact for every k here.
constexpr double kLn2High = 0x1.62e42fee00000p-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kLog2E = 0x1.71547652b82fep0;
constexpr double kExpFloor = -700.0;  // e^−700 is a normal number, and nothing beside 1

// x = k · ln 2 + r with |r| ≤ ln 2 / 2; e^x = 2^k · e^r; e^r by its Taylor series to r¹³.
// Number and Bits are double and uint64_t, or vectors of them: compilers do not vectorise a loop
// over it by themselves, they turn the floor into a branch. Always inline: sampler_kernels.cpp is
// compiled once per instruction set, and no compilation may use the function of another.
template <class Number, class Bits>
[[gnu::always_inline]] inline Number exp_kernel(Number x) {
  constexpr double kRound = 0x1.8p52;  // adding it rounds to a whole number, left in the low bits
  const Number clamped = x > kExpFloor ? x : Number{} + kExpFloor;
  const Number shifted = clamped * kLog2E + kRound;
  const Number k = shifted - kRound;
  const Number r = (clamped - k * kLn2High) - k * kLn2Low;
  Number p = r * (1.0 / 6227020800) + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const Bits power_of_two = (__builtin_bit_cast(Bits, shifted) + 1023) << 52;
  return p * __builtin_bit_cast(Number, power_of_two);
}

// exp of x ≤ 0, within 2 ulp; below −700 it is that of −700.
inline double exp_nonpositive(double x) { return exp_kernel<double, uint64_t>(x); }

// The natural log of a normal x > 0, within 2 ulp.
// x = 2^e · m with m in [√½, √2); log m = 2 · artanh(f), f = (m − 1) / (m + 1).
inline double natural_log(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffff) | (uint64_t{1023} << 52));
  if (m >= 0x1.6a09e667f3bcdp0) {
    m *= 0.5;
    ++exponent;
  }
  const double f = (m - 1.0) / (m + 1.0), square = f * f;
  double series = 0.0;
  for (int odd = 23; odd >= 3; odd -= 2) series = (series + 1.0 / odd) * square;
  const auto e = static_cast<double>(exponent);
  return e * kLn2High + (2.0 * f + (2.0 * f * series + e * kLn2Low));
}

// Philox4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11.
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// 64 random bits for the token at `position` of the sequence with that seed.
inline uint64_t random_bits(uint64_t seed, uint64_t position) {
  // The third word names the use: 0 is the draw of a token. The fourth is free.
  const auto words =
      philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return words[0] | uint64_t{words[1]} << 32;
}

}  // namespace firsthand::sampler
