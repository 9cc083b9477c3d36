// The lanes of simd.hpp as plain loops, which any compiler turns into what the machine has.
//
// Owns: the meaning of each operation; the other sets must give the same bits.
// May not know: what a kernel computes.
// Read next: rows.hpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

namespace firsthand::FIRSTHAND_ISA {

struct F32 {
  float v[16];
};
struct I32 {
  int32_t v[16];
};

#define FIRSTHAND_EACH(expression)                    \
  F32 r;                                              \
  for (int i = 0; i < 16; ++i) r.v[i] = (expression); \
  return r

inline F32 set1(float x) { FIRSTHAND_EACH(x); }
inline F32 zero() { return set1(0.0f); }
inline F32 load(const float* p) { FIRSTHAND_EACH(p[i]); }
inline void store(float* p, F32 a) { std::memcpy(p, a.v, sizeof a.v); }
inline F32 add(F32 a, F32 b) { FIRSTHAND_EACH(a.v[i] + b.v[i]); }
inline F32 sub(F32 a, F32 b) { FIRSTHAND_EACH(a.v[i] - b.v[i]); }
inline F32 mul(F32 a, F32 b) { FIRSTHAND_EACH(a.v[i] * b.v[i]); }
inline F32 div(F32 a, F32 b) { FIRSTHAND_EACH(a.v[i] / b.v[i]); }
inline F32 fma(F32 a, F32 b, F32 c) { FIRSTHAND_EACH(std::fma(a.v[i], b.v[i], c.v[i])); }
inline F32 max(F32 a, F32 b) { FIRSTHAND_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F32 min(F32 a, F32 b) { FIRSTHAND_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline F32 abs(F32 a) { FIRSTHAND_EACH(std::fabs(a.v[i])); }
inline F32 zero_where_less(F32 x, float limit, F32 value) {
  FIRSTHAND_EACH(x.v[i] < limit ? 0.0f : value.v[i]);
}
inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint32_t float_to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
// Adding 1.5 · 2²³ leaves the whole number in the low bits; a NaN gives some number, never a trap.
inline F32 pow2(F32 whole) {
  FIRSTHAND_EACH(bits_to_float((float_to_bits(whole.v[i] + 12582912.0f) << 23) + 0x3F800000u));
}
// a · 2ⁿ where `shifted` is n + 1.5 · 2²³, so that n stands in its lowest bits.
inline F32 add_exponent(F32 a, F32 shifted) {
  FIRSTHAND_EACH(bits_to_float(float_to_bits(a.v[i]) + (float_to_bits(shifted.v[i]) << 23)));
}
inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return bits_to_float(sign | 0x7F800000u | fraction << 13);
  if (exponent != 0) return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
  // A subnormal half is fraction · 2⁻²⁴, a normal float32.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return bits_to_float(sign | float_to_bits(magnitude));
}
inline uint16_t float_to_half(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint16_t>(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
  }
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00);  // ≥ 65520
  if (magnitude < 0x38800000u) {  // below 2⁻¹⁴: round to a multiple of 2⁻²⁴
    const float scaled = bits_to_float(magnitude) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)));
  }
  const uint32_t even = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign | ((magnitude + 0xFFFu + even - 0x38000000u) >> 13));
}
inline F32 load_half(const uint16_t* p) { FIRSTHAND_EACH(half_to_float(p[i])); }
inline F32 load_byte(const int8_t* p) { FIRSTHAND_EACH(static_cast<float>(p[i])); }
inline F32 load_bfloat(const uint16_t* p) {
  FIRSTHAND_EACH(bits_to_float(static_cast<uint32_t>(p[i]) << 16));
}
inline void store_half(uint16_t* p, F32 a) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_half(a.v[i]);
}

inline I32 set1(int32_t x) {
  I32 r;
  for (int i = 0; i < 16; ++i) r.v[i] = x;
  return r;
}
inline I32 zero_i32() { return set1(int32_t{0}); }
inline I32 add(I32 a, I32 b) {
  for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
  return a;
}
inline I32 sub(I32 a, I32 b) {
  for (int i = 0; i < 16; ++i) a.v[i] -= b.v[i];
  return a;
}
inline F32 to_float(I32 a) { FIRSTHAND_EACH(static_cast<float>(a.v[i])); }
inline I32 add_high(I32 low, I32 high) {
  for (int i = 0; i < 16; ++i) low.v[i] += 128 * high.v[i];
  return low;
}
inline void store(int32_t* p, I32 a) { std::memcpy(p, a.v, sizeof a.v); }
inline int32_t sum(I32 a) {
  int32_t total = 0;
  for (int i = 0; i < 16; ++i) total += a.v[i];
  return total;
}
inline I32 to_int(F32 a) {
  I32 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = a.v[i] == a.v[i] ? static_cast<int32_t>(std::nearbyint(a.v[i])) : 0;
  return r;
}
inline void store_words(int16_t* p, I32 a) {  // numbers of 16 bits
  int16_t words[16];
  for (int i = 0; i < 16; ++i) words[i] = static_cast<int16_t>(a.v[i]);
  std::memcpy(p, words, sizeof words);
}
// Codes without sign, four columns of each lane in 64 bytes (nibbles: eight), times int16. They are
// taken in parts of two columns: 0 and 2, then 1 and 3 (then those of the high nibbles); a row of
// activations keeps its pairs in the same order.
struct Words {
  struct Weights {
    int16_t v[32];
  };
  struct Few {
    int16_t v[2];
  };
  static constexpr bool kHasHigh = false;
  template <Code code>
  static constexpr int kParts = code == Code::nibble ? 4 : 2;

  // acc[i] += w[2·i] · x[0] + w[2·i + 1] · x[1], exact. Where the sum is one that nobody uses, it may
  // go round.
  static I32 dot(I32 acc, const Weights& w, Few x) {
    for (int i = 0; i < 16; ++i)
      acc.v[i] = static_cast<int32_t>(static_cast<uint32_t>(acc.v[i]) +
                                      static_cast<uint32_t>(w.v[2 * i] * x.v[0]) +
                                      static_cast<uint32_t>(w.v[2 * i + 1] * x.v[1]));
    return acc;
  }
  template <Code code, int part>
  static Weights load(const uint8_t* p) {
    Weights r;
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = p[2 * i + part % 2];
      if constexpr (code == Code::unsigned8) r.v[i] = byte;
      else if constexpr (code == Code::signed8) r.v[i] = static_cast<int8_t>(byte);
      else r.v[i] = part < 2 ? byte & 15 : byte >> 4;
    }
    return r;
  }
  // A row of activations takes two bytes each. Gives the fours that have a high digit, as bits.
  static uint8_t store(int8_t* row, int64_t, int64_t i, I32 q) {
    int16_t codes[16];
    for (int j = 0; j < 16; ++j)
      codes[j] = static_cast<int16_t>(q.v[j / 4 * 4 + j % 2 * 2 + j % 4 / 2]);
    std::memcpy(row + 2 * i, codes, sizeof codes);
    return 0;
  }
  // Codes as they are, two of each lane.
  static Weights pairs(const int16_t* p) {
    Weights r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }
  static Few few(const int8_t* row, int64_t column, int part) {
    Few x;
    std::memcpy(x.v, row + 2 * column + 4 * part, sizeof x.v);
    return x;
  }
};
using Digits = Words;  // a set whose multiplication of bytes is faster has them apart
inline void transpose(F32 (&x)[16]) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < i; ++j) std::swap(x[i].v[j], x[j].v[i]);
}
constexpr int kTileRows = 4, kTilePanels = 1, kAttendTile = 2;
inline float sum(F32 a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a.v[i] = a.v[i] + a.v[i + width];
  return a.v[0];
}
inline float max_of(F32 a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
  return a.v[0];
}

#undef FIRSTHAND_EACH

}  // namespace firsthand::FIRSTHAND_ISA

#include "simd_each.hpp"
