// The lanes of simd.hpp on AVX-512 with VNNI: sixteen lanes are one register.
//
// Owns: the vector types and the operations that need instructions of their own; what each of them
// means stands in simd_portable.hpp, as plain loops.
// May not know: what a kernel computes.
// Read next: rows.hpp.
#pragma once

#if defined(FIRSTHAND_EMULATED)
#include "emulated_avx512.hpp"  // beside the tests
#else
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

namespace firsthand::FIRSTHAND_ISA {

struct F32 {
  __m512 v;
};  // 16 float32
struct I32 {
  __m512i v;
};  // 16 int32
inline F32 zero() { return {_mm512_setzero_ps()}; }
inline F32 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
inline F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b, so that a NaN in b is kept.
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
inline F32 zero_where_less(F32 x, float limit, F32 value) {
  const __mmask16 less = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_LT_OQ);
  return {_mm512_mask_blend_ps(less, value.v, _mm512_setzero_ps())};
}
inline F32 pow2(F32 whole) {
  const __m512i n = _mm512_add_epi32(_mm512_cvtps_epi32(whole.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(n, 23))};
}
inline F32 add_exponent(F32 a, F32 shifted) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), n))};
}
inline F32 load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F32 load_byte(const int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline F32 load_bfloat(const uint16_t* p) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void store_half(uint16_t* p, F32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline __m256 halves_sum(F32 a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
inline __m256 halves_max(F32 a) {
  return _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}

inline I32 zero_i32() { return {_mm512_setzero_si512()}; }
inline I32 set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I32 add(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I32 sub(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline F32 to_float(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I32 add_high(I32 low, I32 high) {
  return {_mm512_add_epi32(low.v, _mm512_slli_epi32(high.v, 7))};
}
inline void store(int32_t* p, I32 a) { _mm512_storeu_si512(p, a.v); }
inline int32_t sum(I32 a) {
  const __m256i h =
      _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xB1)));
}
inline void store_words(int16_t* p, I32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
// To nearest even; a NaN gives a number whose low byte is 0.
inline I32 to_int(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
// Else GCC 12 copies sums from register to register in a loop, and spills some.
inline void hold([[maybe_unused]] I32& a) {
#if !defined(FIRSTHAND_EMULATED)
  __asm__("" : "+v"(a.v));
#endif
}
struct Words {
  using Weights = __m512i;
  using Few = __m512i;
  static constexpr bool kHasHigh = false;
  template <Code code>
  static constexpr int kParts = code == Code::nibble ? 4 : 2;

  static I32 dot(I32 acc, Weights w, Few x) {
    acc.v = _mm512_dpwssd_epi32(acc.v, w, x);
    hold(acc);
    return acc;
  }
  template <Code code, int part>
  static Weights load(const uint8_t* p) {
    const __m512i codes = _mm512_loadu_si512(p);
    if constexpr (code == Code::signed8)
      return _mm512_srai_epi16(part == 0 ? _mm512_slli_epi16(codes, 8) : codes, 8);
    const __m512i shifted = _mm512_srli_epi16(codes, part % 2 * 8 + part / 2 * 4);
    if constexpr (part == kParts<code> - 1) return shifted;  // nothing above it to mask
    return _mm512_and_si512(shifted, _mm512_set1_epi16(code == Code::nibble ? 15 : 255));
  }
  // Each four as codes 0, 2, 1, 3.
  static uint8_t store(int8_t* row, int64_t, int64_t i, I32 q) {
    const __m256i order = _mm256_set_epi64x(0x0F0E0B0A0D0C0908, 0x0706030205040100,
                                            0x0F0E0B0A0D0C0908, 0x0706030205040100);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * i),
                        _mm256_shuffle_epi8(_mm512_cvtepi32_epi16(q.v), order));
    return 0;
  }
  static Weights pairs(const int16_t* p) { return _mm512_loadu_si512(p); }
  static Few few(const int8_t* row, int64_t column, int part) {
    int32_t pair;
    std::memcpy(&pair, row + 2 * column + 4 * part, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
};
// The multiplication of bytes runs at twice the rate. Two digits, q = low + 128 · high, in two
// planes of a row; a code that fits into one has high = 0.
struct Digits {
  using Weights = __m512i;
  using Few = __m512i;
  static constexpr bool kHasHigh = true;
  template <Code>
  static constexpr int kParts = 1;

  static I32 dot(I32 acc, Weights w, Few x) { return {_mm512_dpbusd_epi32(acc.v, w, x)}; }
  template <Code code, int part>
  static Weights load(const uint8_t* p) {
    static_assert(code == Code::unsigned8);
    return _mm512_loadu_si512(p);
  }
  static uint8_t store(int8_t* row, int64_t stride, int64_t i, I32 q) {
    const __mmask16 wide = _mm512_cmpgt_epi32_mask(_mm512_abs_epi32(q.v), _mm512_set1_epi32(127));
    const __m512i nearest = _mm512_srai_epi32(_mm512_add_epi32(q.v, _mm512_set1_epi32(64)), 7);
    const __m512i high = _mm512_maskz_mov_epi32(wide, nearest);
    const __m512i low = _mm512_sub_epi32(q.v, _mm512_slli_epi32(high, 7));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + i), _mm512_cvtepi32_epi8(low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + stride + i), _mm512_cvtepi32_epi8(high));
    const uint32_t pairs = wide | wide >> 1, fours = (pairs | pairs >> 2) & 0x1111;
    return static_cast<uint8_t>(fours * 0x1248 >> 12 & 15);  // bits 0, 4, 8, 12 come together
  }
  static Few few(const int8_t* row, int64_t column, int) {
    int32_t four;
    std::memcpy(&four, row + column, sizeof four);
    return _mm512_set1_epi32(four);
  }
};
inline __m512 pairs_low(__m512 a, __m512 b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
inline __m512 pairs_high(__m512 a, __m512 b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
// x[i] lane j ↔ x[j] lane i.
inline void transpose(F32 (&x)[16]) {
  __m512 t[16], u[16], v[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(x[i].v, x[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(x[i].v, x[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {  // u[i + j]: rows i … i + 3, columns j, 4 + j, 8 + j, 12 + j
    u[i] = pairs_low(t[i], t[i + 2]);
    u[i + 1] = pairs_high(t[i], t[i + 2]);
    u[i + 2] = pairs_low(t[i + 1], t[i + 3]);
    u[i + 3] = pairs_high(t[i + 1], t[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    v[j] = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x88);
    v[4 + j] = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xDD);
    v[8 + j] = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x88);
    v[12 + j] = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xDD);
  }
  for (int j = 0; j < 4; ++j) {
    x[j].v = _mm512_shuffle_f32x4(v[j], v[8 + j], 0x88);
    x[4 + j].v = _mm512_shuffle_f32x4(v[4 + j], v[12 + j], 0x88);
    x[8 + j].v = _mm512_shuffle_f32x4(v[j], v[8 + j], 0xDD);
    x[12 + j].v = _mm512_shuffle_f32x4(v[4 + j], v[12 + j], 0xDD);
  }
}
constexpr int kTileRows = 4, kTilePanels = 3, kAttendTile = 4;

inline float sum(F32 a) {
  const __m256 h = halves_sum(a);
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
// Lane i becomes what the lanes of x[i] join to, in the order of `sum`: 8 apart, 4, 2, 1.
template <class Join>
inline F32 join(const F32 (&x)[16], Join op) {
  F32 eight[8], four[4], two[2];
  for (int i = 0; i < 8; ++i) {
    const __m512 a = x[2 * i].v, b = x[2 * i + 1].v;
    eight[i] = op(F32{_mm512_shuffle_f32x4(a, b, 0x44)}, F32{_mm512_shuffle_f32x4(a, b, 0xEE)});
  }
  for (int i = 0; i < 4; ++i) {
    const __m512 a = eight[2 * i].v, b = eight[2 * i + 1].v;
    four[i] = op(F32{_mm512_shuffle_f32x4(a, b, 0x88)}, F32{_mm512_shuffle_f32x4(a, b, 0xDD)});
  }
  for (int i = 0; i < 2; ++i) {
    const __m512 a = four[2 * i].v, b = four[2 * i + 1].v;
    two[i] = op(F32{pairs_low(a, b)}, F32{pairs_high(a, b)});
  }
  const __m512 a = two[0].v, b = two[1].v;
  const F32 one = op(F32{_mm512_shuffle_ps(a, b, 0x88)}, F32{_mm512_shuffle_ps(a, b, 0xDD)});
  const __m512i order =  // lane 4 · b + j is that of x[4 · j + b]
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {_mm512_permutexvar_ps(order, one.v)};
}
inline float max_of(F32 a) {
  const __m256 h = halves_max(a);
  const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
// Of the first n vectors; lanes from n on may be anything.
inline F32 sums_of(const F32 (&x)[16], int n) {
  float lanes[16] = {};
  if (n > 4) return join(x, [](F32 a, F32 b) { return add(a, b); });
  for (int i = 0; i < n; ++i) lanes[i] = sum(x[i]);
  return load(lanes);
}
inline F32 maxima_of(const F32 (&x)[16], int n) {
  float lanes[16] = {};
  if (n > 4) return join(x, [](F32 a, F32 b) { return max(a, b); });
  for (int i = 0; i < n; ++i) lanes[i] = max_of(x[i]);
  return load(lanes);
}

}  // namespace firsthand::FIRSTHAND_ISA
