// The bare loops of one instruction set. Compiled once per set; see CMakeLists.txt.
//
// Every loop keeps its operands in registers: 2 or 3 weights times 3 or 4 activations, as a kernel
// does, and so few that nothing spills. The operands are hidden from the compiler in every pass, or
// it would move the multiplication out of the loop. Two ways to multiply 8-bit codes exactly are
// timed, and VNNI's own where there is one: through pairs of bytes, and widened to 16 bits, which
// is what our kernels do. Sums in 16 bits would be faster still, but hold 4-bit codes only.
#include <cstdint>
#include <cstring>

#include "limits.hpp"

#if defined(__x86_64__) && !defined(FIRSTHAND_PORTABLE)
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(FIRSTHAND_PORTABLE)
#include <arm_neon.h>
#endif

namespace firsthand::FIRSTHAND_ISA {

namespace {

constexpr int64_t kAhead = 2048;  // bytes

template <class V>
inline void hide(V& value) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(value));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

template <class V>
uint64_t low_bits(V value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

template <class V>
V filled_with(int byte) {
  V value;
  std::memset(&value, byte, sizeof(value));
  return value;
}

// A pass is X · W steps: acc[i][j] = step(acc[i][j], x[i], w[j]). Every loop over the arrays is
// unrolled, else they would live in memory.
template <class V, int X, int W, class Step>
inline uint64_t spin(int64_t passes, Step step) {
  const V one = filled_with<V>(1), none = filled_with<V>(0);
  V acc[X * W], x[X], w[W];
#pragma GCC unroll 4
  for (int i = 0; i < X; ++i) x[i] = one;
#pragma GCC unroll 4
  for (int j = 0; j < W; ++j) w[j] = one;
#pragma GCC unroll 16
  for (int i = 0; i < X * W; ++i) {
    acc[i] = none;
    hide(acc[i]);
  }
  for (int64_t pass = 0; pass < passes; ++pass) {
#pragma GCC unroll 4
    for (int i = 0; i < X; ++i) hide(x[i]);
#pragma GCC unroll 4
    for (int j = 0; j < W; ++j) hide(w[j]);
#pragma GCC unroll 16
    for (int i = 0; i < X * W; ++i) acc[i] = step(acc[i], x[i / W], w[i % W]);
  }
  uint64_t all = 0;
#pragma GCC unroll 16
  for (int i = 0; i < X * W; ++i) all ^= low_bits(acc[i]);
  return all;
}

template <class V, class Load, class Join>
inline uint64_t read_all(const uint8_t* data, int64_t num_bytes, bool ahead, Load load, Join join) {
  constexpr int64_t kStep = 8 * static_cast<int64_t>(sizeof(V));
  V seen[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) seen[i] = filled_with<V>(0);
  for (const uint8_t* p = data; p < data + num_bytes; p += kStep) {
    if (ahead)
      for (int64_t line = 0; line < kStep; line += 64) __builtin_prefetch(p + kAhead + line);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      seen[i] = join(seen[i], load(p + i * static_cast<int64_t>(sizeof(V))));
  }
  uint64_t all = 0;
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) all ^= low_bits(seen[i]);
  return all;
}

#if defined(__AVX512F__) && !defined(FIRSTHAND_PORTABLE)

using Bits = __m512i;
inline Bits load(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Bits join(Bits a, Bits b) { return _mm512_or_si512(a, b); }

uint64_t vnni(int64_t passes) {
  return spin<__m512i, 4, 3>(
      passes, [](__m512i acc, __m512i x, __m512i w) { return _mm512_dpbusd_epi32(acc, x, w); });
}
uint64_t widened(int64_t passes) {
  return spin<__m512i, 4, 3>(
      passes, [](__m512i acc, __m512i x, __m512i w) { return _mm512_dpwssd_epi32(acc, x, w); });
}
uint64_t bytes(int64_t passes) {
  const __m512i ones = _mm512_set1_epi16(1);
  return spin<__m512i, 4, 3>(passes, [ones](__m512i acc, __m512i x, __m512i w) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(x, w), ones));
  });
}
uint64_t floats(int64_t passes) {
  return spin<__m512, 4, 3>(
      passes, [](__m512 acc, __m512 x, __m512 w) { return _mm512_fmadd_ps(x, w, acc); });
}
constexpr LimitLoop loops[] = {
    {"vpdpbusd", LimitKind::int8, 12 * 64, vnni},
    {"vpdpwssd", LimitKind::int8, 12 * 32, widened},
    {"vpmaddubsw + vpmaddwd + vpaddd", LimitKind::int8, 12 * 64, bytes},
    {"vfmadd", LimitKind::fp32, 12 * 32, floats},
};

#elif defined(__AVX2__) && !defined(FIRSTHAND_PORTABLE)

using Bits = __m256i;
inline Bits load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Bits join(Bits a, Bits b) { return _mm256_or_si256(a, b); }

uint64_t bytes(int64_t passes) {
  const __m256i ones = _mm256_set1_epi16(1);
  return spin<__m256i, 3, 2>(passes, [ones](__m256i acc, __m256i x, __m256i w) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(x, w), ones));
  });
}
uint64_t widened(int64_t passes) {
  return spin<__m256i, 4, 2>(passes, [](__m256i acc, __m256i x, __m256i w) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(x, w));
  });
}
uint64_t floats(int64_t passes) {
  return spin<__m256, 4, 2>(
      passes, [](__m256 acc, __m256 x, __m256 w) { return _mm256_fmadd_ps(x, w, acc); });
}
constexpr LimitLoop loops[] = {
    {"vpmaddubsw + vpmaddwd + vpaddd", LimitKind::int8, 6 * 32, bytes},
    {"vpmaddwd + vpaddd", LimitKind::int8, 8 * 16, widened},
    {"vfmadd", LimitKind::fp32, 8 * 16, floats},
};

#elif defined(__aarch64__) && !defined(FIRSTHAND_PORTABLE)

using Bits = uint8x16_t;
inline Bits load(const uint8_t* p) { return vld1q_u8(p); }
inline Bits join(Bits a, Bits b) { return vorrq_u8(a, b); }

uint64_t bytes(int64_t passes) {
  return spin<int32x4_t, 4, 3>(passes, [](int32x4_t acc, int32x4_t x, int32x4_t w) {
    const int8x16_t a = vreinterpretq_s8_s32(x), b = vreinterpretq_s8_s32(w);
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    return vpadalq_s16(acc, vmlal_s8(low, vget_high_s8(a), vget_high_s8(b)));
  });
}
uint64_t widened(int64_t passes) {
  return spin<int32x4_t, 4, 3>(passes, [](int32x4_t acc, int32x4_t x, int32x4_t w) {
    const int16x8_t a = vreinterpretq_s16_s32(x), b = vreinterpretq_s16_s32(w);
    const int32x4_t low = vmlal_s16(acc, vget_low_s16(a), vget_low_s16(b));
    return vmlal_s16(low, vget_high_s16(a), vget_high_s16(b));
  });
}
uint64_t floats(int64_t passes) {
  return spin<float32x4_t, 4, 3>(
      passes, [](float32x4_t acc, float32x4_t x, float32x4_t w) { return vfmaq_f32(acc, x, w); });
}
constexpr LimitLoop loops[] = {
    {"smull + smlal + sadalp", LimitKind::int8, 12 * 16, bytes},
    {"smlal", LimitKind::int8, 12 * 8, widened},
    {"fmla", LimitKind::fp32, 12 * 8, floats},
};

#else

using Bits = uint64_t;
inline Bits load(const uint8_t* p) {
  Bits bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bits;
}
inline Bits join(Bits a, Bits b) { return a | b; }

// Short arrays instead of registers: what a compiler makes of a plain loop.
constexpr int kNumbers = 256;

uint64_t bytes(int64_t passes) {
  int8_t x[kNumbers], w[kNumbers];
  std::memset(x, 1, sizeof(x));
  std::memset(w, 1, sizeof(w));
  int32_t sum = 0;
  for (int64_t pass = 0; pass < passes; ++pass) {
    asm volatile("" : "+m"(x), "+m"(w));
    for (int i = 0; i < kNumbers; ++i) sum += x[i] * w[i];
  }
  return static_cast<uint64_t>(static_cast<uint32_t>(sum));
}
uint64_t floats(int64_t passes) {
  float x[kNumbers], w[kNumbers], sums[kNumbers] = {};
  for (int i = 0; i < kNumbers; ++i) x[i] = w[i] = 1e-3f;
  for (int64_t pass = 0; pass < passes; ++pass) {
    asm volatile("" : "+m"(x), "+m"(w));
    for (int i = 0; i < kNumbers; ++i) sums[i] += x[i] * w[i];
  }
  uint64_t all = 0;
  for (const float sum : sums) all += static_cast<uint64_t>(sum);
  return all;
}
constexpr LimitLoop loops[] = {
    {"plain bytes", LimitKind::int8, kNumbers, bytes},
    {"plain floats", LimitKind::fp32, 2 * kNumbers, floats},
};

#endif

uint64_t read(const uint8_t* data, int64_t num_bytes) {
  return read_all<Bits>(data, num_bytes, false, load, join);
}
uint64_t read_ahead(const uint8_t* data, int64_t num_bytes) {
  return read_all<Bits>(data, num_bytes, true, load, join);
}

#define FIRSTHAND_QUOTE(x) #x
#define FIRSTHAND_NAME(x) FIRSTHAND_QUOTE(x)

}  // namespace

extern const LimitLoops limit_loops;
const LimitLoops limit_loops = {
    FIRSTHAND_NAME(FIRSTHAND_ISA), loops, sizeof(loops) / sizeof(loops[0]), read, read_ahead,
};

}  // namespace firsthand::FIRSTHAND_ISA
