// Sixteen virtual lanes, on every instruction set.
//
// Owns: the few vector operations that the kernels are written in. All of them round the same way
// everywhere, so that a kernel gives the same bits on each set: fused multiply-add is explicit,
// rounding is to nearest even, and a horizontal sum or maximum goes over lanes 8 apart, then 4, 2, 1.
// May not know: what a kernel computes.
// Read next: simd_portable.hpp (what each operation means), rows.hpp, linear.hpp, attention.hpp.
//
// This header is compiled once per instruction set, each time in a namespace of its own.
#pragma once

#include <cstdint>
#include <cstring>

#include "weight.hpp"

namespace firsthand::FIRSTHAND_ISA {
constexpr int kLanes = 16;
}

#if defined(FIRSTHAND_PORTABLE)
#include "simd_portable.hpp"
#elif (defined(__AVX512F__) && defined(__AVX512VNNI__)) || defined(FIRSTHAND_EMULATED)
#include "simd_avx512.hpp"
#elif defined(__AVX2__)
#include "simd_avx2.hpp"
#elif defined(__aarch64__)
#include "simd_neon.hpp"
#else
#include "simd_portable.hpp"
#endif

namespace firsthand::FIRSTHAND_ISA {

// The first n lanes from memory, the others 0: the masked way of a tail.
inline F32 load_first(const float* p, int n) {
  float lanes[kLanes] = {};
  std::memcpy(lanes, p, sizeof(float) * static_cast<size_t>(n));
  return load(lanes);
}
inline F32 load_half_first(const uint16_t* p, int n) {
  uint16_t lanes[kLanes] = {};
  std::memcpy(lanes, p, sizeof(uint16_t) * static_cast<size_t>(n));
  return load_half(lanes);
}
inline F32 load_byte_first(const int8_t* p, int n) {
  int8_t lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n));
  return load_byte(lanes);
}
inline Words::Weights pairs_first(const int16_t* p, int n) {
  int16_t lanes[2 * kLanes] = {};
  std::memcpy(lanes, p, sizeof(int16_t) * 2 * static_cast<size_t>(n));
  return Words::pairs(lanes);
}
inline void store_first(float* p, F32 a, int n) {
  float lanes[kLanes];
  store(lanes, a);
  std::memcpy(p, lanes, sizeof(float) * static_cast<size_t>(n));
}
inline void store_half_first(uint16_t* p, F32 a, int n) {
  uint16_t lanes[kLanes];
  store_half(lanes, a);
  std::memcpy(p, lanes, sizeof(uint16_t) * static_cast<size_t>(n));
}

// eˣ: x = n·ln2 + r with |r| ≤ ln2/2, then a polynomial of degree 7 in r (Taylor's series, error
// below 2 units in the last place) times 2ⁿ. Below −87.3 it is 0, above 88 it stays at e⁸⁸; NaN
// stays NaN. ln2 is split in two so that r keeps its bits (Cody and Waite, 1980).
inline F32 exp(F32 x) {
  constexpr float kLow = -87.3f, kHigh = 88.0f, kRound = 12582912.0f;  // 1.5 · 2²³
  const F32 bounded = min(set1(kHigh), max(set1(kLow), x));
  const F32 n = sub(fma(bounded, set1(1.44269504088896341f), set1(kRound)), set1(kRound));
  const F32 r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), bounded));
  F32 p = set1(1.0f / 5040.0f);
  p = fma(p, r, set1(1.0f / 720.0f));
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return zero_where_less(x, kLow, mul(p, pow2(n)));
}

// 2ˣ for x ≤ 0: x = n + r with |r| ≤ 1/2, then a polynomial of degree 5 in r (the one with the least
// relative error, 1.1e-7, that is 1 at 0) times 2ⁿ. Below −125 it stays there, a number so small that
// it adds nothing to 1; NaN stays NaN.
inline F32 exp2(F32 x) {
  const F32 round = set1(12582912.0f);  // 1.5 · 2²³
  const F32 bounded = max(set1(-125.0f), x), shifted = add(bounded, round);
  const F32 r = sub(bounded, sub(shifted, round));
  F32 p = fma(set1(1.326472731307149e-3f), r, set1(9.671512991189957e-3f));
  p = fma(p, r, set1(5.550733581185341e-2f));
  p = fma(p, r, set1(0.24022242426872253f));
  p = fma(p, r, set1(0.6931470036506653f));
  return add_exponent(fma(p, r, set1(1.0f)), shifted);
}

}  // namespace firsthand::FIRSTHAND_ISA
