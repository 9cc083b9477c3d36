// out (rows, n) = x (rows, k) · weightᵀ: one template over the number of rows.
//
// Owns: the order in which an output element is summed. It depends on k and the format alone:
//   float     runs of 32 products are summed with fma from 0, then the runs are added in order
//   integer   products are exact in int32 within a group (channel: within the row); then
//             total = fma(scale, float(Σ q·(code − zero)), total), and
//             total = fma(minimum, float(Σ q), total), group after group; at the end times the
//             row's scale (channel: total · row scale, then times the output's scale)
// For int8 per channel, a set that multiplies bytes takes q as two digits. Most high ones are 0, and
// are multiplied only for those four columns where one of two neighbouring rows has one. What this
// adds to the other row is an exact 0, so a row's bits do not depend on its company.
// K is never split across threads; more rows or more lanes never change the order.
// May not know: threads, the plan, who prepared the rows.
// Limit that it meets: one row, the reading of the weights; many rows, the multiply rate.
// Read next: attention.hpp.
#pragma once

#include <bit>

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

template <int R, int P, Kind kind>
inline void float_tile(const PackedWeight& w, const Prepared& x, int64_t row, int64_t p,
                       F32 (&total)[R][P]) {
  const uint8_t* panel = w.panel(p);
  for (auto& of_row : total)
    for (F32& one : of_row) one = zero();
  for (int64_t start = 0; start < w.k; start += kFloatRun) {
    const int64_t stop = start + kFloatRun < w.k ? start + kFloatRun : w.k;
    F32 run[R][P];
    for (auto& of_row : run)
      for (F32& one : of_row) one = zero();
    for (int64_t i = start; i < stop; ++i) {
      F32 weights[P];
      for (int j = 0; j < P; ++j) weights[j] = load_weights<kind>(panel + j * w.panel_bytes, i);
      for (int r = 0; r < R; ++r) {
        const F32 one = set1(x.f[(row + r) * x.stride + i]);
        for (int j = 0; j < P; ++j) run[r][j] = fma(one, weights[j], run[r][j]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < P; ++j) total[r][j] = add(total[r][j], run[r][j]);
  }
}

// Σ q · code over columns first … first + count − 1 (multiples of 4, nibbles: 8) of P panels that
// lie `apart` bytes from each other. Exact, so that any order is allowed.
template <int R, int P, Code code, class Set>
struct CodeSums {
  static constexpr int kColumns = code == Code::nibble ? 8 : 4;  // of 64 bytes of codes
  using Weights = typename Set::Weights;
  using Few = typename Set::Few;
  const uint8_t* codes;
  int64_t apart;
  const int8_t* q;      // of the first row
  const uint8_t* wide;  // likewise
  int64_t stride;

  const int8_t* at(int r) const { return q + 2 * r * stride; }

  // Adds 64 bytes of codes of each panel, those from `column` on.
  template <int part = 0>
  [[gnu::always_inline]] void step(int64_t first, int64_t column, I32 (&into)[R][P]) const {
    if constexpr (part < Set::template kParts<code>) {
      const uint8_t* source = codes + column / kColumns * 64;
      Weights w[P];
      for (int p = 0; p < P; ++p) w[p] = Set::template load<code, part>(source + p * apart);
      for (int r = 0; r < R; ++r) {
        const Few few = Set::few(at(r), first + column, part);
        for (int p = 0; p < P; ++p) into[r][p] = Set::dot(into[r][p], w[p], few);
      }
      step<part + 1>(first, column, into);
    }
  }

  // Inlined, so that the sums of a short group stay in registers.
  [[gnu::always_inline]] void run(int64_t first, int64_t count, I32 (&out)[R][P]) const {
    constexpr int kChains = R * P <= 2 ? 4 : 1;  // several hide the latency of few rows
    I32 more[kChains][R][P];                     // but the first, which is `out`
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) {
        out[r][p] = zero_i32();
        for (auto& chain : more) chain[r][p] = zero_i32();
      }
    int64_t column = 0;
    for (; column + kChains * kColumns <= count; column += kChains * kColumns) {
      step(first, column, out);
      for (int c = 1; c < kChains; ++c) step(first, column + c * kColumns, more[c]);
    }
    for (; column < count; column += kColumns) step(first, column, out);
    for (int c = 1; c < kChains; ++c)
      for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) out[r][p] = add(out[r][p], more[c][r][p]);
  }

  // Bit 8·i + j: a row of r … r + N − 1 has a high digit in columns from start + 16·i + 4·j on.
  template <int N>
  uint64_t high_digits(int r, int64_t start, int64_t count) const {
    uint64_t any = 0;
    for (int i = r; i < r + N; ++i) {
      uint64_t eight;
      std::memcpy(&eight, wide + i * (stride / 16) + start / 16, sizeof eight);
      any |= eight;
    }
    const int64_t bytes = (count - start + 15) / 16;
    return bytes >= 8 ? any : any & ((uint64_t{1} << 8 * bytes) - 1);
  }
  // Adds the high digits of columns 0 … count − 1 of rows r … r + N − 1.
  template <int N>
  void add_high_digits(int r, int64_t count, I32 (&out)[R][P]) const {
    I32 sums[N][P];
    for (auto& of_row : sums)
      for (I32& sum : of_row) sum = zero_i32();
    for (int64_t start = 0; start < count; start += 128)
      for (uint64_t bits = high_digits<N>(r, start, count); bits != 0; bits &= bits - 1) {
        const int bit = std::countr_zero(bits);
        const int64_t column = start + bit / 8 * 16 + bit % 8 * 4;
        Few fours[N];
        for (int i = 0; i < N; ++i) fours[i] = Set::few(at(r + i) + stride, column, 0);
        for (int p = 0; p < P; ++p) {
          const Weights w = Set::template load<code, 0>(codes + column / 4 * 64 + p * apart);
          for (int i = 0; i < N; ++i) sums[i][p] = Set::dot(sums[i][p], w, fours[i]);
        }
      }
    for (int i = 0; i < N; ++i)
      for (int p = 0; p < P; ++p) out[r + i][p] = add_high(out[r + i][p], sums[i][p]);
  }
};

template <int R, int P>
inline void channel_tile(const PackedWeight& w, const Prepared& x, int64_t row, int64_t p,
                         F32 (&total)[R][P]) {
  const CodeSums<R, P, Code::unsigned8, Digits> codes{w.panel(p), w.panel_bytes,
                                                      x.digits.q + 2 * row * x.stride,
                                                      x.wide + row * (x.stride / 16), x.stride};
  I32 sums[R][P];
  codes.run(0, w.group, sums);
  constexpr int kTogether = R % 2 == 0 ? 2 : 1;
  if constexpr (Digits::kHasHigh)
    for (int r = 0; r < R; r += kTogether)
      codes.template add_high_digits<kTogether>(r, w.group, sums);
  for (int r = 0; r < R; ++r) {
    const I32 offset = set1(kCodeOffset * x.digits.sums[row + r]);
    for (int i = 0; i < P; ++i) {
      const F32 scaled = mul(to_float(sub(sums[r][i], offset)), set1(x.digits.scale[row + r]));
      total[r][i] = mul(scaled, load(w.scales.get() + (p + i) * kPanel));
    }
  }
}

template <int R, int P, Code code, bool half>
inline void grouped_tile(const PackedWeight& w, const Prepared& x, int64_t row, int64_t p,
                         F32 (&total)[R][P]) {
  CodeSums<R, P, code, Words> codes{w.panel(p), w.panel_bytes, x.words.q + 2 * row * x.stride,
                                    nullptr, x.stride};
  const int64_t parts = w.group / 16;
  const bool wants_sums = w.has_minimum || w.zero != 0;
  const auto scales_at = [](const uint8_t* s) {
    if constexpr (half) return load_half(reinterpret_cast<const uint16_t*>(s));
    else return load(reinterpret_cast<const float*>(s));
  };
  for (auto& of_row : total)
    for (F32& one : of_row) one = zero();
  for (int64_t g = 0; g < w.num_groups; ++g, codes.codes += w.group_bytes) {
    I32 sums[R][P];
    codes.run(g * w.group, w.group, sums);
    const uint8_t* scale_of = codes.codes + w.code_bytes();
    int32_t q_sums[R] = {};
    if (wants_sums)
      for (int r = 0; r < R; ++r)
        for (int64_t i = 0; i < parts; ++i)
          q_sums[r] += x.words.sums[(row + r) * (x.stride / 16) + g * parts + i];
    for (int i = 0; i < P; ++i, scale_of += w.panel_bytes) {
      const F32 scale = scales_at(scale_of);
      for (int r = 0; r < R; ++r) {
        const I32 shifted = w.zero != 0 ? sub(sums[r][i], set1(w.zero * q_sums[r])) : sums[r][i];
        total[r][i] = fma(scale, to_float(shifted), total[r][i]);
      }
      if (w.has_minimum) {
        const F32 minimum = scales_at(scale_of + kPanel * (half ? 2 : 4));
        for (int r = 0; r < R; ++r)
          total[r][i] = fma(minimum, set1(static_cast<float>(q_sums[r])), total[r][i]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (F32& one : total[r]) one = mul(one, set1(x.words.scale[row + r]));
}

// The outputs of panels p … p + P − 1 for R rows, before bias and what follows.
template <int R, int P>
inline void tile(const PackedWeight& w, const Prepared& x, int64_t row, int64_t p,
                 F32 (&out)[R][P]) {
  switch (w.kind) {
    case Kind::float32:
      return float_tile<R, P, Kind::float32>(w, x, row, p, out);
    case Kind::float16:
      return float_tile<R, P, Kind::float16>(w, x, row, p, out);
    case Kind::bfloat16:
      return float_tile<R, P, Kind::bfloat16>(w, x, row, p, out);
    case Kind::channel:
      return channel_tile<R, P>(w, x, row, p, out);
    case Kind::grouped8:
      return w.half_scales ? grouped_tile<R, P, Code::signed8, true>(w, x, row, p, out)
                           : grouped_tile<R, P, Code::signed8, false>(w, x, row, p, out);
    case Kind::grouped4:
      break;
  }
  return w.half_scales ? grouped_tile<R, P, Code::nibble, true>(w, x, row, p, out)
                       : grouped_tile<R, P, Code::nibble, false>(w, x, row, p, out);
}

// A row without an adapter skips the addition, so it has the bits that it has alone.
inline F32 with_delta(F32 one, const Delta& delta, int64_t row, int64_t n, int64_t first,
                      int count) {
  const int32_t at = delta.row_of[row];
  return at < 0 ? one : add(one, load_n(delta.values + at * n + first, count));
}

template <int R, int P>
inline void output_tile(const LinearCall& c, int64_t row, int64_t p) {
  const int64_t n = c.weight->n;
  // Rows lie far apart: asked for now, they are there when the sums are.
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < P; ++i) {
      const int64_t at = (row + r) * n + (p + i) * kPanel;
      if (c.residual) __builtin_prefetch(c.residual + at);
      __builtin_prefetch(c.out + at, 1);
    }
  F32 out[R][P], up[R][P];
  tile<R, P>(*c.weight, c.x, row, p, out);
  if (c.up) tile<R, P>(*c.up, c.x, row, p, up);
  for (int i = 0; i < P; ++i) {
    const int64_t first = (p + i) * kPanel, rest = n - first;
    const int count = rest < kPanel ? static_cast<int>(rest) : static_cast<int>(kPanel);
    for (int r = 0; r < R; ++r) {
      F32 one = out[r][i];
      if (c.bias) one = add(one, load_n(c.bias + first, count));
      if (c.delta.values) one = with_delta(one, c.delta, row + r, n, first, count);
      if (c.up) {
        F32 gated = up[r][i];
        if (c.up_bias) gated = add(gated, load_n(c.up_bias + first, count));
        if (c.up_delta.values) gated = with_delta(gated, c.up_delta, row + r, n, first, count);
        one = mul(activate(one, c.activation), gated);
      }
      const int64_t at = (row + r) * n + first;
      if (c.residual) one = add(load_n(c.residual + at, count), one);
      store_n(c.out + at, one, count);
    }
  }
}

template <int R, int P>
inline void output_rest(const LinearCall& c, int64_t row, int64_t rest, int64_t p) {
  if constexpr (R > 0) {
    if (rest == R) return output_tile<R, P>(c, row, p);
    output_rest<R - 1, P>(c, row, rest, p);
  }
}

template <int P>
inline void output_rows(const LinearCall& c, int64_t p) {
  int64_t row = 0;
  for (; row + kTileRows <= c.rows; row += kTileRows) output_tile<kTileRows, P>(c, row, p);
  output_rest<kTileRows - 1, P>(c, row, c.rows - row, p);
}

static_assert(kPanelsTogether % kTilePanels == 0, "a thread's share is whole tiles");

inline void linear(const LinearCall& c, int64_t begin, int64_t end) {
  int64_t p = begin;
  if (c.rows >= kTileRows)  // fewer wait for memory, which likes one panel after the other
    for (; p + kTilePanels <= end; p += kTilePanels) output_rows<kTilePanels>(c, p);
  for (; p < end; ++p) output_rows<1>(c, p);
}

}  // namespace firsthand::FIRSTHAND_ISA
