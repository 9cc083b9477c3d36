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

namespace firsthand::FIRSTHAND_ISA {

struct F32 {
  __m512 v;
};  // 16 float32
struct I32 {
  __m512i v;
};  // 16 int32
struct I16 {
  __m512i v;
};  // 32 int16: 16 pairs

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
// acc[i] + w[2i] · x₀ + w[2i + 1] · x₁, exact; `pair` holds (x₀, x₁) as two int16.
inline I32 dot_pair(I32 acc, I16 w, int32_t pair) {
  return {_mm512_dpwssd_epi32(acc.v, w.v, _mm512_set1_epi32(pair))};
}
inline I16 load_int8(const uint8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// 16 bytes: low nibbles are the first 16 codes, high nibbles the other 16.
inline I16 load_nibbles(const uint8_t* p) {
  const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi16(15));
  const __m256i high = _mm256_srli_epi16(bytes, 4);
  return {_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)};
}
// Round to nearest even and narrow; |a| ≤ 32767 is the caller's promise.
inline void store_int16(int16_t* p, F32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.v)));
}
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
constexpr int kMaxTileRows = 8;

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
