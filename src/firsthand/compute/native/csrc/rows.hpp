// Kernels that take one row at a time: norm, rounding of activations, rope, activation, residual
// add, embedding.
//
// Owns: their formulas (each stated above its function; contracts in ops.py).
// May not know: threads, the plan.
// Limit that they meet: they touch each element once; memory of the caches, not arithmetic.
// Read next: linear.hpp, cache.hpp.
#pragma once

#include <cmath>

#include "kernels.hpp"
#include "simd.hpp"

namespace firsthand::FIRSTHAND_ISA {

// Calls f(i, n) for i = 0, 16, … with n lanes valid: 16, and fewer at the tail.
template <class F>
inline void each_lanes(int64_t k, F f) {
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) f(i, kLanes);
  if (i < k) f(i, static_cast<int>(k - i));
}
inline F32 load_n(const float* p, int n) { return n == kLanes ? load(p) : load_first(p, n); }
inline void store_n(float* p, F32 a, int n) {
  if (n == kLanes) store(p, a);
  else store_first(p, a, n);
}

// y = (x · (1 / sqrt(mean(x²) + eps))) · gain. Padding lanes add 0 to the sum.
inline void norm_row(const float* x, const float* gain, float* y, int64_t k, float eps) {
  F32 squares = zero();
  each_lanes(k, [&](int64_t i, int n) {
    const F32 v = load_n(x + i, n);
    squares = fma(v, v, squares);
  });
  const float inverse = 1.0f / std::sqrt(sum(squares) / static_cast<float>(k) + eps);
  each_lanes(k, [&](int64_t i, int n) {
    store_n(y + i, mul(mul(load_n(x + i, n), set1(inverse)), load_n(gain + i, n)), n);
  });
}

inline void norm(const NormCall& c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r)
    norm_row(c.x + r * c.k, c.gain, c.out + r * c.k, c.k, c.eps);
}

struct RowSize {
  float largest;    // NaN where the row has a NaN or an infinity
  float magnitude;  // mean of |x|
};
inline RowSize size_of(const float* x, int64_t k) {
  F32 largest = zero(), magnitudes = zero(), poison = zero();
  each_lanes(k, [&](int64_t i, int n) {
    const F32 v = load_n(x + i, n), magnitude = abs(v);
    largest = max(largest, magnitude);
    magnitudes = add(magnitudes, magnitude);
    poison = fma(v, zero(), poison);
  });
  return {max_of(largest) + sum(poison), sum(magnitudes) / static_cast<float>(k)};
}

// q = round(x · (limit / reach)) for all of a row, each 16 handed to `keep`; gives the scale,
// reach / limit. A row of zeros has scale 0; one with a NaN or an infinity the scale NaN, so that it
// reaches the logits and is seen there.
template <class Keep>
inline float round_row(const float* x, int64_t k, int64_t stride, float limit, float reach,
                       float highest, Keep keep) {
  const float to_code = reach > 0.0f ? limit / reach : 0.0f;
  // A tiny reach makes the factor infinite; such a row is below every float32 that matters.
  const F32 factor = set1(std::isfinite(to_code) ? to_code : 0.0f);
  const auto bounded = [&](F32 codes) {  // a NaN becomes the lowest code
    return to_int(min(max(codes, set1(-highest)), set1(highest)));
  };
  each_lanes(k, [&](int64_t i, int n) { keep(i, bounded(mul(load_n(x + i, n), factor))); });
  for (int64_t i = (k + 15) / 16 * 16; i < stride; i += 16) keep(i, zero_i32());
  return reach / limit;
}

inline void round_words(const float* x, int64_t k, const Prepared& out, int64_t r) {
  int8_t* q = out.words.q + 2 * r * out.stride;
  int32_t* sums = out.words.sums + r * (out.stride / 16);
  out.words.scale[r] = round_row(x, k, out.stride, 32767.0f, size_of(x, k).largest, 32767.0f,
                                 [&](int64_t i, I32 codes) {
                                   Words::store(q, out.stride, i, codes);
                                   sums[i / 16] = sum(codes);
                                 });
}

// One digit, |q| ≤ 127, reaches to kReach times the mean of |x|, or to the largest |x| where that is
// less. Two digits reach 128 times as far; where this is not enough, the step grows.
inline void round_digits(const float* x, int64_t k, const Prepared& out, int64_t r) {
  const RowSize size = size_of(x, k);
  const float usual = kReach * size.magnitude, least = size.largest * (127.0f / kTwoDigits);
  const float one_digit = usual < size.largest ? usual : size.largest;
  int8_t* q = out.digits.q + 2 * r * out.stride;
  uint8_t* wide = out.wide + r * (out.stride / 16);
  int32_t row_sum = 0;
  out.digits.scale[r] = round_row(x, k, out.stride, 127.0f, one_digit > least ? one_digit : least,
                                  kTwoDigits, [&](int64_t i, I32 codes) {
                                    wide[i / 16] = Digits::store(q, out.stride, i, codes);
                                    row_sum += sum(codes);
                                  });
  out.digits.sums[r] = row_sum;
}

inline void prepare(const PrepareCall& c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = c.x + (c.row_of ? c.row_of[r] : r) * c.k;
    float* f = c.out.f + r * c.out.stride;
    if (c.gain) {
      norm_row(x, c.gain, f, c.k, c.eps);
    } else if (c.wanted.floats) {
      std::memcpy(f, x, sizeof(float) * static_cast<size_t>(c.k));
    }
    if (c.wanted.words) round_words(c.gain ? f : x, c.k, c.out, r);
    if (c.wanted.digits) round_digits(c.gain ? f : x, c.k, c.out, r);
  }
}

// sin and cos of one angle: x = n·π/2 + r with |r| ≤ π/4, π/2 in two doubles, then Taylor's series
// in r (error below 1e-15). Our own, so that no mathematics library decides a bit.
inline void sine_cosine(double x, double& sine, double& cosine) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 · 2⁵²
  const double n = (x * 0.63661977236758134308 + kRound) - kRound;
  const double r = std::fma(-n, 6.123233995736766036e-17, std::fma(-n, 1.5707963267948965580, x));
  const double z = r * r;
  double s = 1.0 / 355687428096000.0;
  for (const double divisor :
       {-1307674368000.0, 6227020800.0, -39916800.0, 362880.0, -5040.0, 120.0, -6.0, 1.0})
    s = std::fma(s, z, 1.0 / divisor);
  double c = 1.0 / 20922789888000.0;
  for (const double divisor :
       {-87178291200.0, 479001600.0, -3628800.0, 40320.0, -720.0, 24.0, -2.0, 1.0})
    c = std::fma(c, z, 1.0 / divisor);
  s *= r;
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      sine = s, cosine = c;
      break;
    case 1:
      sine = c, cosine = -s;
      break;
    case 2:
      sine = -s, cosine = -c;
      break;
    default:
      sine = -c, cosine = s;
  }
}

inline void rotation(const RotationCall& c, int64_t begin, int64_t end) {
  const int half = c.d / 2;
  for (int64_t r = begin; r < end; ++r)
    for (int i = 0; i < half; ++i) {
      double sine, cosine;
      sine_cosine(c.positions[r] * c.frequencies[i], sine, cosine);
      c.cosine[r * half + i] = static_cast<float>(cosine * c.factor);
      c.sine[r * half + i] = static_cast<float>(sine * c.factor);
    }
}

// (a, b) → (a·cos − b·sin, b·cos + a·sin) for the pairs (i, i + d/2) of one head.
inline void rotate_head(const float* x, float* y, const float* cosine, const float* sine, int d) {
  const int half = d / 2;
  each_lanes(half, [&](int64_t i, int n) {
    const F32 a = load_n(x + i, n), b = load_n(x + half + i, n);
    const F32 c = load_n(cosine + i, n), s = load_n(sine + i, n);
    store_n(y + i, sub(mul(a, c), mul(b, s)), n);
    store_n(y + half + i, add(mul(b, c), mul(a, s)), n);
  });
}

inline void rope(const RopeCall& c, int64_t begin, int64_t end) {
  const int d = c.rotation.d;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t at = r * (d / 2);
    for (int h = 0; h < c.heads; ++h) {
      const int64_t head = (r * c.heads + h) * d;
      rotate_head(c.x + head, c.out + head, c.rotation.cosine + at, c.rotation.sine + at, d);
    }
  }
}

// tanh by way of exp: 1 − 2 / (e²ˣ + 1).
inline F32 tanh(F32 x) { return sub(set1(1.0f), div(set1(2.0f), add(exp(add(x, x)), set1(1.0f)))); }

// silu: x / (1 + e⁻ˣ). gelu_tanh: x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), arXiv 1606.08415.
inline F32 activate(F32 x, Activation kind) {
  if (kind == Activation::silu) return div(x, add(set1(1.0f), exp(sub(zero(), x))));
  const F32 cube = mul(mul(x, x), x);
  const F32 inner = mul(set1(0.7978845608f), fma(set1(0.044715f), cube, x));
  return mul(mul(set1(0.5f), x), add(set1(1.0f), tanh(inner)));
}

inline void activation(const ActivationCall& c, int64_t begin, int64_t end) {
  for (int64_t i = begin * kLanes; i < end * kLanes; i += kLanes)
    store(c.out + i, mul(activate(load(c.gate + i), c.kind), load(c.up + i)));
}

inline void add_rows(const float* x, const float* y, float* out, int64_t begin, int64_t end) {
  for (int64_t i = begin * kLanes; i < end * kLanes; i += kLanes)
    store(out + i, add(load(x + i), load(y + i)));
}

inline float scale_at(const uint8_t* p, int64_t lane, bool half) {
  float lanes[kLanes];
  if (half) store(lanes, load_half(reinterpret_cast<const uint16_t*>(p)));
  else store(lanes, load(reinterpret_cast<const float*>(p)));
  return lanes[lane];
}

// Row n as float32: scale · (code − zero), rounded, then + minimum, rounded.
inline void decode_row(const PackedWeight& w, int64_t row, float* out) {
  const uint8_t* panel = w.panel(row / kPanel);
  const int64_t lane = row % kPanel;
  if (w.is_float()) {
    for (int64_t i = 0; i < w.k; ++i) {
      float lanes[kLanes];
      const uint8_t* p = panel + i * kPanel * (w.kind == Kind::float32 ? 4 : 2);
      if (w.kind == Kind::float32) store(lanes, load(reinterpret_cast<const float*>(p)));
      else if (w.kind == Kind::float16)
        store(lanes, load_half(reinterpret_cast<const uint16_t*>(p)));
      else store(lanes, load_bfloat(reinterpret_cast<const uint16_t*>(p)));
      out[i] = lanes[lane];
    }
    return;
  }
  const int64_t scale_bytes = w.half_scales ? 2 : 4;
  for (int64_t g = 0; g < w.num_groups; ++g) {
    const uint8_t* block = panel + g * w.group_bytes;
    const uint8_t* tail = block + w.code_bytes();
    const float scale = w.kind == Kind::channel ? w.scales[static_cast<size_t>(row)]
                                                : scale_at(tail, lane, w.half_scales);
    const float minimum =
        w.has_minimum ? scale_at(tail + kPanel * scale_bytes, lane, w.half_scales) : 0.0f;
    const int64_t first = g * w.group, count = w.k - first < w.group ? w.k - first : w.group;
    for (int64_t i = 0; i < count; ++i) {
      int code;
      if (w.kind == Kind::grouped4) {
        const uint8_t byte = block[i / 8 * 64 + lane * 4 + i % 4];
        code = i % 8 < 4 ? byte & 15 : byte >> 4;
      } else {
        const uint8_t byte = block[i / 4 * 64 + lane * 4 + i % 4];
        code = w.kind == Kind::channel ? byte - kCodeOffset : static_cast<int8_t>(byte);
      }
      const float value = scale * static_cast<float>(code - w.zero);
      out[first + i] = w.has_minimum ? value + minimum : value;
    }
  }
}

inline void embed(const EmbedCall& c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r)
    decode_row(*c.table, c.token_ids[r], c.out + r * c.table->k);
}

}  // namespace firsthand::FIRSTHAND_ISA
