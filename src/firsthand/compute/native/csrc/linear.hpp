// out (rows, n) = x (rows, k) · weightᵀ: one template over the number of rows.
//
// Owns: the order in which an output element is summed. It depends on k and the format alone:
//   float     runs of 32 products are summed with fma from 0, then the runs are added in order
//   integer   int16 · int8 products are exact in int32 within a group (channel: within 512); then
//             total = fma(scale, float(Σ q·(code − zero)), total), and
//             total = fma(minimum, float(Σ q), total), group after group; at the end times the
//             row's scale (channel: total · row scale, then times the output's scale)
// K is never split across threads; more rows or more lanes never change the order.
// May not know: threads, the plan, who prepared the rows.
// Limit that it meets: one row, the reading of the weights; many rows, the multiply rate.
// Read next: attention.hpp.
#pragma once

#include "rows.hpp"

namespace firsthand::FIRSTHAND_ISA {

constexpr int64_t kFloatRun = 32;

template <Kind kind>
inline F32 load_weights(const uint8_t* panel, int64_t i) {
  if constexpr (kind == Kind::float32)
    return load(reinterpret_cast<const float*>(panel) + i * kPanel);
  else if constexpr (kind == Kind::float16)
    return load_half(reinterpret_cast<const uint16_t*>(panel) + i * kPanel);
  else return load_bfloat(reinterpret_cast<const uint16_t*>(panel) + i * kPanel);
}

template <int R, Kind kind>
inline void float_tile(const PackedWeight& w, const Prepared& x, int64_t row, int64_t p,
                       F32 (&total)[R]) {
  const uint8_t* panel = w.panel(p);
  for (int r = 0; r < R; ++r) total[r] = zero();
  for (int64_t start = 0; start < w.k; start += kFloatRun) {
    const int64_t stop = start + kFloatRun < w.k ? start + kFloatRun : w.k;
    F32 run[R];
    for (int r = 0; r < R; ++r) run[r] = zero();
    for (int64_t i = start; i < stop; ++i) {
      const F32 weights = load_weights<kind>(panel, i);
      for (int r = 0; r < R; ++r)
        run[r] = fma(set1(x.f[(row + r) * x.stride + i]), weights, run[r]);
    }
    for (int r = 0; r < R; ++r) total[r] = add(total[r], run[r]);
  }
}

inline int32_t pair_at(const int16_t* q) {
  int32_t pair;
  std::memcpy(&pair, q, sizeof pair);
  return pair;
}

// Σ q · code over `count` (even) codes of one panel. Exact, so several partial sums are allowed.
template <int R, bool nibbles>
inline void integer_sums(const uint8_t* codes, const int16_t* q, int64_t stride, int64_t count,
                         I32 (&out)[R]) {
  constexpr int kPairBytes = nibbles ? kPanel : 2 * kPanel;
  constexpr int kChains = R <= 2 ? 4 : 1;  // independent sums hide the latency of few rows
  I32 sums[kChains][R];
  for (auto& chain : sums)
    for (int r = 0; r < R; ++r) chain[r] = zero_i32();
  const auto step = [&](int64_t pair, I32(&into)[R]) {
    const uint8_t* p = codes + pair * kPairBytes;
    const I16 weights = nibbles ? load_nibbles(p) : load_int8(p);
    for (int r = 0; r < R; ++r)
      into[r] = dot_pair(into[r], weights, pair_at(q + r * stride + 2 * pair));
  };
  const int64_t pairs = count / 2;
  int64_t pair = 0;
  for (; pair + kChains <= pairs; pair += kChains)
    for (int c = 0; c < kChains; ++c) step(pair + c, sums[c]);
  for (; pair < pairs; ++pair) step(pair, sums[0]);
  for (int r = 0; r < R; ++r) {
    out[r] = sums[0][r];
    for (int c = 1; c < kChains; ++c) out[r] = add(out[r], sums[c][r]);
  }
}

template <int R>
inline void channel_tile(const PackedWeight& w, const Prepared& x, int64_t row, int64_t p,
                         F32 (&total)[R]) {
  const uint8_t* panel = w.panel(p);
  const int64_t even = (w.k + 1) / 2 * 2;
  for (int r = 0; r < R; ++r) total[r] = zero();
  for (int64_t start = 0; start < even; start += kExactRun) {
    const int64_t count = even - start < kExactRun ? even - start : kExactRun;
    I32 sums[R];
    integer_sums<R, false>(panel + start * kPanel, x.q + row * x.stride + start, x.stride, count,
                           sums);
    for (int r = 0; r < R; ++r) total[r] = add(total[r], to_float(sums[r]));
  }
  const F32 scales = load(w.scales.get() + p * kPanel);
  for (int r = 0; r < R; ++r) total[r] = mul(mul(total[r], set1(x.scale[row + r])), scales);
}

template <int R, bool nibbles, bool half>
inline void grouped_tile(const PackedWeight& w, const Prepared& x, int64_t row, int64_t p,
                         F32 (&total)[R]) {
  const uint8_t* block = w.panel(p);
  const int64_t code_bytes = w.code_bytes();
  const int64_t parts = w.group / 16;
  const bool wants_sums = w.has_minimum || w.zero != 0;
  const auto scales_at = [](const uint8_t* s) {
    if constexpr (half) return load_half(reinterpret_cast<const uint16_t*>(s));
    else return load(reinterpret_cast<const float*>(s));
  };
  for (int r = 0; r < R; ++r) total[r] = zero();
  for (int64_t g = 0; g < w.num_groups; ++g, block += w.group_bytes) {
    I32 sums[R];
    integer_sums<R, nibbles>(block, x.q + row * x.stride + g * w.group, x.stride, w.group, sums);
    int32_t q_sums[R] = {};
    if (wants_sums)
      for (int r = 0; r < R; ++r)
        for (int64_t i = 0; i < parts; ++i)
          q_sums[r] += x.sums[(row + r) * (x.stride / 16) + g * parts + i];
    const F32 scale = scales_at(block + code_bytes);
    for (int r = 0; r < R; ++r) {
      const I32 shifted = w.zero != 0 ? sub(sums[r], set1(w.zero * q_sums[r])) : sums[r];
      total[r] = fma(scale, to_float(shifted), total[r]);
    }
    if (w.has_minimum) {
      const F32 minimum = scales_at(block + code_bytes + kPanel * (half ? 2 : 4));
      for (int r = 0; r < R; ++r)
        total[r] = fma(minimum, set1(static_cast<float>(q_sums[r])), total[r]);
    }
  }
  for (int r = 0; r < R; ++r) total[r] = mul(total[r], set1(x.scale[row + r]));
}

// The 16 outputs of panel p for R rows, before bias and what follows.
template <int R>
inline void tile(const PackedWeight& w, const Prepared& x, int64_t row, int64_t p, F32 (&out)[R]) {
  switch (w.kind) {
    case Kind::float32:
      return float_tile<R, Kind::float32>(w, x, row, p, out);
    case Kind::float16:
      return float_tile<R, Kind::float16>(w, x, row, p, out);
    case Kind::bfloat16:
      return float_tile<R, Kind::bfloat16>(w, x, row, p, out);
    case Kind::channel:
      return channel_tile<R>(w, x, row, p, out);
    case Kind::grouped8:
      return w.half_scales ? grouped_tile<R, false, true>(w, x, row, p, out)
                           : grouped_tile<R, false, false>(w, x, row, p, out);
    case Kind::grouped4:
      return w.half_scales ? grouped_tile<R, true, true>(w, x, row, p, out)
                           : grouped_tile<R, true, false>(w, x, row, p, out);
  }
}

template <int R>
inline void output_tile(const LinearCall& c, int64_t row, int64_t p) {
  const int64_t n = c.weight->n, first = p * kPanel;
  const int count = n - first < kPanel ? static_cast<int>(n - first) : static_cast<int>(kPanel);
  F32 out[R];
  tile<R>(*c.weight, c.x, row, p, out);
  if (c.bias)
    for (int r = 0; r < R; ++r) out[r] = add(out[r], load_n(c.bias + first, count));
  if (c.up) {
    F32 up[R];
    tile<R>(*c.up, c.x, row, p, up);
    for (int r = 0; r < R; ++r) {
      if (c.up_bias) up[r] = add(up[r], load_n(c.up_bias + first, count));
      out[r] = mul(activate(out[r], c.activation), up[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    const int64_t at = (row + r) * n + first;
    if (c.residual) out[r] = add(load_n(c.residual + at, count), out[r]);
    store_n(c.out + at, out[r], count);
  }
}

template <int R>
inline void output_rest(const LinearCall& c, int64_t row, int64_t rest, int64_t p) {
  if constexpr (R > 0) {
    if (rest == R) return output_tile<R>(c, row, p);
    output_rest<R - 1>(c, row, rest, p);
  }
}

inline void linear(const LinearCall& c, int64_t begin, int64_t end) {
  for (int64_t p = begin; p < end; ++p) {
    int64_t row = 0;
    for (; row + kMaxTileRows <= c.rows; row += kMaxTileRows) output_tile<kMaxTileRows>(c, row, p);
    output_rest<kMaxTileRows - 1>(c, row, c.rows - row, p);
  }
}

}  // namespace firsthand::FIRSTHAND_ISA
