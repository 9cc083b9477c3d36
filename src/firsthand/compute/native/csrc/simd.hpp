// Sixteen virtual lanes, on every instruction set.
//
// Owns: the few vector operations that the kernels are written in. All of them round the same way
// everywhere, so that a kernel gives the same bits on each set: fused multiply-add is explicit, a
// horizontal sum is one fixed tree, rounding is to nearest even.
// May not know: what a kernel computes.
// Read next: rows.hpp, linear.hpp, attention.hpp.
//
// This header is compiled once per instruction set, each time in a namespace of its own.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace firsthand::FIRSTHAND_ISA {

constexpr int kLanes = 16;

#if defined(__AVX512F__) && defined(__AVX512VNNI__)

struct F32 { __m512 v; };                    // 16 float32
struct I32 { __m512i v; };                   // 16 int32
struct I16 { __m512i v; };                   // 32 int16: 16 pairs

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
inline F32 load_bfloat(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
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

#elif defined(__AVX2__)

struct F32 { __m256 lo, hi; };
struct I32 { __m256i lo, hi; };
struct I16 { __m256i lo, hi; };

inline F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F32 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
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
inline F32 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
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
inline I32 add(I32 a, I32 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline I32 sub(I32 a, I32 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
inline F32 to_float(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline I32 dot_pair(I32 acc, I16 w, int32_t pair) {
  const __m256i x = _mm256_set1_epi32(pair);
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(w.lo, x)),
          _mm256_add_epi32(acc.hi, _mm256_madd_epi16(w.hi, x))};
}
inline I16 load_int8(const uint8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
inline I16 load_nibbles(const uint8_t* p) {
  const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_and_si256(bytes, _mm256_set1_epi16(15)), _mm256_srli_epi16(bytes, 4)};
}
inline void store_int16(int16_t* p, F32 a) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
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
constexpr int kMaxTileRows = 4;

#else  // portable: plain loops over the lanes, which any compiler turns into what it has

struct F32 { float v[16]; };
struct I32 { int32_t v[16]; };
struct I16 { int16_t v[32]; };

#define FIRSTHAND_EACH(expression) \
  F32 r;                           \
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
inline I32 dot_pair(I32 acc, const I16& w, int32_t pair) {
  int16_t x[2];
  std::memcpy(x, &pair, sizeof x);
  for (int i = 0; i < 16; ++i) acc.v[i] += w.v[2 * i] * x[0] + w.v[2 * i + 1] * x[1];
  return acc;
}
inline I16 load_int8(const uint8_t* p) {
  I16 r;
  for (int i = 0; i < 32; ++i) r.v[i] = static_cast<int8_t>(p[i]);
  return r;
}
inline I16 load_nibbles(const uint8_t* p) {
  I16 r;
  for (int i = 0; i < 16; ++i) {
    r.v[i] = p[i] & 15;
    r.v[16 + i] = p[i] >> 4;
  }
  return r;
}
inline void store_int16(int16_t* p, F32 a) {
  for (int i = 0; i < 16; ++i)
    p[i] = a.v[i] == a.v[i] ? static_cast<int16_t>(std::nearbyint(a.v[i])) : int16_t{0};
}
inline void transpose(F32 (&x)[16]) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < i; ++j) std::swap(x[i].v[j], x[j].v[i]);
}
constexpr int kMaxTileRows = 4;
#undef FIRSTHAND_EACH

#endif

// The one tree of every horizontal reduction: lanes 8 apart, then 4, 2, 1.
#if defined(__AVX2__)
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
#else
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
#endif

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

}  // namespace firsthand::FIRSTHAND_ISA
