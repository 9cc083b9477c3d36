// The lanes of simd.hpp on NEON (AArch64): sixteen lanes are four registers.
//
// Owns: the vector types and the operations that need instructions of their own; what each of them
// means stands in simd_portable.hpp, as plain loops.
// May not know: what a kernel computes.
// Read next: rows.hpp.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace firsthand::FIRSTHAND_ISA {

struct F32 {
  float32x4_t q[4];
};
struct I32 {
  int32x4_t q[4];
};
#define FIRSTHAND_EACH(expression)                   \
  F32 r;                                             \
  for (int i = 0; i < 4; ++i) r.q[i] = (expression); \
  return r

inline F32 set1(float x) { FIRSTHAND_EACH(vdupq_n_f32(x)); }
inline F32 zero() { return set1(0.0f); }
inline F32 load(const float* p) { FIRSTHAND_EACH(vld1q_f32(p + 4 * i)); }
inline void store(float* p, F32 a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.q[i]);
}
inline F32 add(F32 a, F32 b) { FIRSTHAND_EACH(vaddq_f32(a.q[i], b.q[i])); }
inline F32 sub(F32 a, F32 b) { FIRSTHAND_EACH(vsubq_f32(a.q[i], b.q[i])); }
inline F32 mul(F32 a, F32 b) { FIRSTHAND_EACH(vmulq_f32(a.q[i], b.q[i])); }
inline F32 div(F32 a, F32 b) { FIRSTHAND_EACH(vdivq_f32(a.q[i], b.q[i])); }
inline F32 fma(F32 a, F32 b, F32 c) { FIRSTHAND_EACH(vfmaq_f32(c.q[i], a.q[i], b.q[i])); }
inline F32 max(F32 a, F32 b) {
  FIRSTHAND_EACH(vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}
inline F32 min(F32 a, F32 b) {
  FIRSTHAND_EACH(vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}
inline F32 abs(F32 a) { FIRSTHAND_EACH(vabsq_f32(a.q[i])); }
inline F32 zero_where_less(F32 x, float limit, F32 value) {
  FIRSTHAND_EACH(vreinterpretq_f32_u32(
      vbicq_u32(vreinterpretq_u32_f32(value.q[i]), vcltq_f32(x.q[i], vdupq_n_f32(limit)))));
}
inline F32 pow2(F32 whole) {
  FIRSTHAND_EACH(vreinterpretq_f32_s32(
      vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(whole.q[i]), vdupq_n_s32(127)), 23)));
}
inline F32 add_exponent(F32 a, F32 shifted) {
  FIRSTHAND_EACH(vreinterpretq_f32_s32(vaddq_s32(
      vreinterpretq_s32_f32(a.q[i]), vshlq_n_s32(vreinterpretq_s32_f32(shifted.q[i]), 23))));
}
inline F32 load_half(const uint16_t* p) {
  FIRSTHAND_EACH(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
inline F32 load_byte(const int8_t* p) {
  const int8x16_t codes = vld1q_s8(p);
  const int16x8_t wide[2] = {vmovl_s8(vget_low_s8(codes)), vmovl_s8(vget_high_s8(codes))};
  FIRSTHAND_EACH(
      vcvtq_f32_s32(vmovl_s16(i % 2 ? vget_high_s16(wide[i / 2]) : vget_low_s16(wide[i / 2]))));
}
inline F32 load_bfloat(const uint16_t* p) {
  FIRSTHAND_EACH(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
inline void store_half(uint16_t* p, F32 a) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.q[i])));
}
#undef FIRSTHAND_EACH

inline I32 set1(int32_t x) {
  I32 r;
  for (auto& q : r.q) q = vdupq_n_s32(x);
  return r;
}
inline I32 zero_i32() { return set1(int32_t{0}); }
inline I32 add(I32 a, I32 b) {
  for (int i = 0; i < 4; ++i) a.q[i] = vaddq_s32(a.q[i], b.q[i]);
  return a;
}
inline I32 sub(I32 a, I32 b) {
  for (int i = 0; i < 4; ++i) a.q[i] = vsubq_s32(a.q[i], b.q[i]);
  return a;
}
inline F32 to_float(I32 a) {
  F32 r;
  for (int i = 0; i < 4; ++i) r.q[i] = vcvtq_f32_s32(a.q[i]);
  return r;
}
inline I32 add_high(I32 low, I32 high) {
  for (int i = 0; i < 4; ++i) low.q[i] = vaddq_s32(low.q[i], vshlq_n_s32(high.q[i], 7));
  return low;
}
inline void store(int32_t* p, I32 a) {
  for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, a.q[i]);
}
inline int32_t sum(I32 a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.q[0], a.q[1]), vaddq_s32(a.q[2], a.q[3])));
}
inline I32 to_int(F32 a) {
  I32 r;
  for (int i = 0; i < 4; ++i) r.q[i] = vcvtnq_s32_f32(a.q[i]);
  return r;
}
inline void store_words(int16_t* p, I32 a) {
  for (int i = 0; i < 4; ++i) vst1_s16(p + 4 * i, vmovn_s32(a.q[i]));
}
struct Words {
  struct Weights {
    int16x8_t q[4];
  };
  using Few = int16x4_t;  // a pair, twice
  static constexpr bool kHasHigh = false;
  template <Code code>
  static constexpr int kParts = code == Code::nibble ? 4 : 2;

  static I32 dot(I32 acc, const Weights& w, Few x) {
    for (int i = 0; i < 4; ++i) {
      const int32x4_t low = vmull_s16(vget_low_s16(w.q[i]), x);
      const int32x4_t high = vmull_s16(vget_high_s16(w.q[i]), x);
      acc.q[i] = vaddq_s32(acc.q[i], vpaddq_s32(low, high));
    }
    return acc;
  }
  template <Code code, int part>
  static Weights load(const uint8_t* p) {
    const uint16x8_t mask = vdupq_n_u16(code == Code::nibble ? 15 : 255);
    const int16x8_t shift = vdupq_n_s16(-(part % 2 * 8 + part / 2 * 4));
    Weights r;
    for (int i = 0; i < 4; ++i) {
      const uint16x8_t codes = vreinterpretq_u16_u8(vld1q_u8(p + 16 * i));
      if constexpr (code == Code::signed8)
        r.q[i] = vshrq_n_s16(vreinterpretq_s16_u16(part == 0 ? vshlq_n_u16(codes, 8) : codes), 8);
      else r.q[i] = vreinterpretq_s16_u16(vandq_u16(vshlq_u16(codes, shift), mask));
    }
    return r;
  }
  // Each four as codes 0, 2, 1, 3.
  static uint8_t store(int8_t* row, int64_t, int64_t i, I32 q) {
    auto* p = reinterpret_cast<int16_t*>(row + 2 * i);
    for (int j = 0; j < 4; ++j) {
      const int16x4_t codes = vmovn_s32(q.q[j]);
      const int16x4x2_t halves = vuzp_s16(codes, codes);
      vst1_s16(p + 4 * j, vreinterpret_s16_s32(vzip1_s32(vreinterpret_s32_s16(halves.val[0]),
                                                         vreinterpret_s32_s16(halves.val[1]))));
    }
    return 0;
  }
  static Weights pairs(const int16_t* p) {
    return {{vld1q_s16(p), vld1q_s16(p + 8), vld1q_s16(p + 16), vld1q_s16(p + 24)}};
  }
  static Few few(const int8_t* row, int64_t column, int part) {
    int32_t pair;
    std::memcpy(&pair, row + 2 * column + 4 * part, sizeof pair);
    return vreinterpret_s16_s32(vdup_n_s32(pair));
  }
};
using Digits = Words;  // as on AVX2
inline float sum(F32 a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float max_of(F32 a) {
  float lanes[16];
  store(lanes, a);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
}
// x[i] lane j ↔ x[j] lane i, in blocks of 4 by 4.
inline void transpose(F32 (&x)[16]) {
  F32 y[16];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const float32x4_t a = x[4 * i].q[j], b = x[4 * i + 1].q[j], c = x[4 * i + 2].q[j],
                        d = x[4 * i + 3].q[j];
      const auto wide = [](float32x4_t v) { return vreinterpretq_f64_f32(v); };
      const float32x4_t ab0 = vtrn1q_f32(a, b), ab1 = vtrn2q_f32(a, b);
      const float32x4_t cd0 = vtrn1q_f32(c, d), cd1 = vtrn2q_f32(c, d);
      y[4 * j].q[i] = vreinterpretq_f32_f64(vtrn1q_f64(wide(ab0), wide(cd0)));
      y[4 * j + 1].q[i] = vreinterpretq_f32_f64(vtrn1q_f64(wide(ab1), wide(cd1)));
      y[4 * j + 2].q[i] = vreinterpretq_f32_f64(vtrn2q_f64(wide(ab0), wide(cd0)));
      y[4 * j + 3].q[i] = vreinterpretq_f32_f64(vtrn2q_f64(wide(ab1), wide(cd1)));
    }
  std::memcpy(x, y, sizeof y);
}
constexpr int kTileRows = 4, kTilePanels = 1, kAttendTile = 2;

}  // namespace firsthand::FIRSTHAND_ISA

#include "simd_each.hpp"
