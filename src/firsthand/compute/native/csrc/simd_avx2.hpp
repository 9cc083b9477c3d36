// The lanes of simd.hpp on AVX2 with FMA and F16C: sixteen lanes are two registers.
//
// Owns: the vector types and the operations that need instructions of their own; what each of them
// means stands in simd_portable.hpp, as plain loops.
// May not know: what a kernel computes.
// Read next: rows.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace firsthand::FIRSTHAND_ISA {

struct F32 {
  __m256 lo, hi;
};
struct I32 {
  __m256i lo, hi;
};
inline F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F32 abs(F32 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline F32 zero_where_less(F32 x, float limit, F32 value) {
  const __m256 l = _mm256_set1_ps(limit);
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.lo, l, _CMP_LT_OQ), value.lo),
          _mm256_andnot_ps(_mm256_cmp_ps(x.hi, l, _CMP_LT_OQ), value.hi)};
}
inline __m256 pow2_8(__m256 whole) {
  const __m256i n = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
}
inline F32 pow2(F32 whole) { return {pow2_8(whole.lo), pow2_8(whole.hi)}; }
inline __m256 add_exponent_8(__m256 a, __m256 shifted) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), n));
}
inline F32 add_exponent(F32 a, F32 shifted) {
  return {add_exponent_8(a.lo, shifted.lo), add_exponent_8(a.hi, shifted.hi)};
}
inline F32 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline __m256 load_byte_8(const int8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline F32 load_byte(const int8_t* p) { return {load_byte_8(p), load_byte_8(p + 8)}; }
inline __m256 load_bfloat_8(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline F32 load_bfloat(const uint16_t* p) { return {load_bfloat_8(p), load_bfloat_8(p + 8)}; }
inline void store_half(uint16_t* p, F32 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, mode));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, mode));
}
inline __m256 halves_sum(F32 a) { return _mm256_add_ps(a.lo, a.hi); }
inline __m256 halves_max(F32 a) { return _mm256_max_ps(a.lo, a.hi); }

inline I32 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I32 set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I32 add(I32 a, I32 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline I32 sub(I32 a, I32 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
inline F32 to_float(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline I32 add_high(I32 low, I32 high) {
  return {_mm256_add_epi32(low.lo, _mm256_slli_epi32(high.lo, 7)),
          _mm256_add_epi32(low.hi, _mm256_slli_epi32(high.hi, 7))};
}
inline void store(int32_t* p, I32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
inline int32_t sum(I32 a) {
  const __m256i h = _mm256_add_epi32(a.lo, a.hi);
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xB1)));
}
inline I32 to_int(F32 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline __m256i pack_words(I32 a) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
}
inline void store_words(int16_t* p, I32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pack_words(a));
}
struct Words {
  struct Weights {
    __m256i lo, hi;
  };
  using Few = int32_t;
  static constexpr bool kHasHigh = false;
  template <Code code>
  static constexpr int kParts = code == Code::nibble ? 4 : 2;

  static I32 dot(I32 acc, Weights w, Few pair) {
    const __m256i x = _mm256_set1_epi32(pair);
    acc.lo = _mm256_add_epi32(acc.lo, _mm256_madd_epi16(w.lo, x));
    acc.hi = _mm256_add_epi32(acc.hi, _mm256_madd_epi16(w.hi, x));
    // Else GCC adds products of several columns first, and has no registers to keep them in.
    __asm__("" : "+x"(acc.lo), "+x"(acc.hi));
    return acc;
  }
  template <Code code, int part>
  static __m256i load_half_of(const uint8_t* p) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (code == Code::signed8)
      return _mm256_srai_epi16(part == 0 ? _mm256_slli_epi16(codes, 8) : codes, 8);
    const __m256i shifted = _mm256_srli_epi16(codes, part % 2 * 8 + part / 2 * 4);
    if constexpr (part == kParts<code> - 1) return shifted;  // nothing above it to mask
    return _mm256_and_si256(shifted, _mm256_set1_epi16(code == Code::nibble ? 15 : 255));
  }
  template <Code code, int part>
  static Weights load(const uint8_t* p) {
    return {load_half_of<code, part>(p), load_half_of<code, part>(p + 32)};
  }
  // Each four as codes 0, 2, 1, 3.
  static uint8_t store(int8_t* row, int64_t, int64_t i, I32 q) {
    const __m256i packed = pack_words(q);
    const __m256i low = _mm256_set1_epi64x(0x0706030205040100);
    const __m256i high = _mm256_set_epi64x(0x0808080808080808, 0, 0x0808080808080808, 0);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * i),
                        _mm256_shuffle_epi8(packed, _mm256_add_epi8(low, high)));
    return 0;
  }
  static Weights pairs(const int16_t* p) {
    const auto* from = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
  }
  static Few few(const int8_t* row, int64_t column, int part) {
    Few pair;
    std::memcpy(&pair, row + 2 * column + 4 * part, sizeof pair);
    return pair;
  }
};
using Digits = Words;  // bytes are multiplied no faster than words here
inline void transpose_8(__m256 (&x)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {  // u[i + j]: rows i … i + 3, columns j and 4 + j
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
  for (int j = 0; j < 4; ++j) {
    x[j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x20);
    x[4 + j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x31);
  }
}
// x[i] lane j ↔ x[j] lane i.
inline void transpose(F32 (&x)[16]) {
  __m256 quarter[2][2][8];  // rows, columns
  for (int i = 0; i < 8; ++i)
    for (int half = 0; half < 2; ++half) {
      quarter[half][0][i] = x[8 * half + i].lo;
      quarter[half][1][i] = x[8 * half + i].hi;
    }
  for (auto& rows : quarter)
    for (auto& block : rows) transpose_8(block);
  for (int i = 0; i < 8; ++i)
    for (int half = 0; half < 2; ++half)
      x[8 * half + i] = {quarter[0][half][i], quarter[1][half][i]};
}
constexpr int kTileRows = 4, kTilePanels = 1, kAttendTile = 2;

inline float sum(F32 a) {
  const __m256 h = halves_sum(a);
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
inline float max_of(F32 a) {
  const __m256 h = halves_max(a);
  const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

}  // namespace firsthand::FIRSTHAND_ISA

#include "simd_each.hpp"
