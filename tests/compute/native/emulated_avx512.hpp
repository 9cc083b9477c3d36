// AVX-512 by plain code, so that its kernels are tested on a machine without it: SIMDe's types and
// functions, and those that its Debian package (0.7.4) lacks.
//
// Owns: what `simd_avx512.hpp` needs instead of <immintrin.h>, for a build with FIRSTHAND_EMULATED.
// May not know: kernels. Read next: test_instruction_sets.py.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

template <class To, class From>
inline To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class T, int num>
struct Lanes {
  T lane[num];
};
using F32s = Lanes<float, 16>;
using I32s = Lanes<int32_t, 16>;
using U16s = Lanes<uint16_t, 16>;

inline __m512 fmadd(__m512 a, __m512 b, __m512 c) {
  const auto x = bits<F32s>(a), y = bits<F32s>(b), z = bits<F32s>(c);
  F32s out;
  for (int i = 0; i < 16; ++i) out.lane[i] = std::fma(x.lane[i], y.lane[i], z.lane[i]);
  return bits<__m512>(out);
}
inline __m512 to_float(__m512i a) {
  const auto x = bits<I32s>(a);
  F32s out;
  for (int i = 0; i < 16; ++i) out.lane[i] = static_cast<float>(x.lane[i]);
  return bits<__m512>(out);
}
inline __m512i to_int(__m512 a) {  // to nearest even; what does not fit gives the least int32
  const auto x = bits<F32s>(a);
  I32s out;
  for (int i = 0; i < 16; ++i) {
    const bool fits = x.lane[i] >= -0x1p31f && x.lane[i] < 0x1p31f;
    out.lane[i] = fits ? static_cast<int32_t>(std::nearbyint(x.lane[i])) : INT32_MIN;
  }
  return bits<__m512i>(out);
}
inline __m512i widen(__m256i a) {
  const auto x = bits<U16s>(a);
  I32s out;
  for (int i = 0; i < 16; ++i) out.lane[i] = x.lane[i];
  return bits<__m512i>(out);
}
inline __m512i widen_signed(__m128i a) {
  const auto x = bits<Lanes<int8_t, 16>>(a);
  I32s out;
  for (int i = 0; i < 16; ++i) out.lane[i] = x.lane[i];
  return bits<__m512i>(out);
}
inline __m512i shift_right(__m512i a, int count) {
  auto x = bits<I32s>(a);
  for (int32_t& lane : x.lane) lane >>= count;
  return bits<__m512i>(x);
}
template <class To, class Narrow>
inline To narrowed(__m512i a) {
  const auto x = bits<I32s>(a);
  Lanes<Narrow, 16> out;
  for (int i = 0; i < 16; ++i) out.lane[i] = static_cast<Narrow>(x.lane[i]);
  return bits<To>(out);
}
inline __m512 from_half(__m256i a) {
  const auto x = bits<Lanes<__m128i, 2>>(a);
  Lanes<__m256, 2> out;
  for (int i = 0; i < 2; ++i) out.lane[i] = _mm256_cvtph_ps(x.lane[i]);
  return bits<__m512>(out);
}
inline __m256i to_half(__m512 a) {  // to nearest even
  const auto x = bits<Lanes<__m256, 2>>(a);
  Lanes<__m128i, 2> out;
  for (int i = 0; i < 2; ++i) out.lane[i] = _mm256_cvtps_ph(x.lane[i], _MM_FROUND_TO_NEAREST_INT);
  return bits<__m256i>(out);
}
inline __m256 half_of(__m512 a, int i) { return bits<Lanes<__m256, 2>>(a).lane[i]; }
inline __m512 shuffle_quarters(__m512 a, __m512 b, int control) {
  const auto x = bits<Lanes<__m128, 4>>(a), y = bits<Lanes<__m128, 4>>(b);
  const Lanes<__m128, 4> out{x.lane[control & 3], x.lane[control >> 2 & 3],
                             y.lane[control >> 4 & 3], y.lane[control >> 6 & 3]};
  return bits<__m512>(out);
}

}  // namespace emulated

#undef _mm512_fmadd_ps  // SIMDe's own rounds the product where the compiler has no FMA
#define _mm512_fmadd_ps(a, b, c) emulated::fmadd(a, b, c)
#define _mm512_cvtepi32_ps(a) emulated::to_float(a)
#define _mm512_cvtps_epi32(a) emulated::to_int(a)
#define _mm512_cvtepu16_epi32(a) emulated::widen(a)
#define _mm512_cvtepi8_epi32(a) emulated::widen_signed(a)
#define _mm512_srai_epi32(a, count) emulated::shift_right(a, count)
#define _mm512_cvtepi32_epi16(a) emulated::narrowed<__m256i, int16_t>(a)
#define _mm512_cvtepi32_epi8(a) emulated::narrowed<__m128i, int8_t>(a)
#define _mm512_cvtph_ps(a) emulated::from_half(a)
#define _mm512_cvtps_ph(a, rounding) emulated::to_half(a)
#define _mm512_extractf32x8_ps(a, i) emulated::half_of(a, i)
#define _mm512_shuffle_f32x4(a, b, control) emulated::shuffle_quarters(a, b, control)
