// Attention of one query row: softmax(q · kᵀ / √d) · v over the row's own context.
//
// Owns: the walk. The context is read back from the store in chunks of 64 positions from position
// 0, whatever the block size, and merged in order with the online softmax (arXiv 1805.02867):
//   m' = max(m, max(s)),  p = exp(s − m'),  l' = l · exp(m − m') + Σ p,  o' = o · exp(m − m') + p·v
// The number of rows in a step, the threads and the blocks never change it. The names are those of
// the tiled version in torch/attention.py.
// May not know: who owns a block, how many sequences there are.
// Limit that it meets: the reading of keys and values.
// Read next: kernels.cpp.
#pragma once

#include <limits>

#include "rows.hpp"

namespace firsthand::FIRSTHAND_ISA {

constexpr int kChunk = 64;

template <bool half>
inline F32 load_kv(const void* base, int64_t at, int n) {
  if constexpr (half) {
    const auto* p = static_cast<const uint16_t*>(base) + at;
    return n == kLanes ? load_half(p) : load_half_first(p, n);
  } else {
    return load_n(static_cast<const float*>(base) + at, n);
  }
}

// One head: q (d) scaled already, o (d) the result.
template <bool half>
inline void attend_head(const AttendCall& c, const float* q, float* o, int64_t row, int g) {
  const int d = c.cache.d;
  const int64_t slot_width = static_cast<int64_t>(c.cache.g) * d;
  const int64_t* starts = c.block_starts + c.sequence_of[row] * c.max_blocks;
  const int64_t context = static_cast<int64_t>(c.positions[row]) + 1;
  float m = -std::numeric_limits<float>::infinity(), l = 0.0f;
  each_lanes(d, [&](int64_t i, int n) { store_n(o + i, zero(), n); });
  for (int64_t first = 0; first < context; first += kChunk) {
    const int count = context - first < kChunk ? static_cast<int>(context - first) : kChunk;
    int64_t at[kChunk];
    float p[kChunk];
    for (int j = 0; j < kChunk; ++j) p[j] = -std::numeric_limits<float>::infinity();
    for (int j = 0; j < count; ++j) {
      const int64_t position = first + j;
      const int64_t slot = starts[position / c.block_size] + position % c.block_size;
      at[j] = slot * slot_width + static_cast<int64_t>(g) * d;
      F32 dot = zero();
      each_lanes(d, [&](int64_t i, int n) {
        dot = fma(load_n(q + i, n), load_kv<half>(c.cache.keys, at[j] + i, n), dot);
      });
      p[j] = sum(dot);
    }
    F32 peak = load(p);
    for (int j = kLanes; j < kChunk; j += kLanes) peak = max(peak, load(p + j));
    const float m_new = std::fmax(m, max_of(peak));
    float old[kLanes];
    store(old, exp(set1(m - m_new)));
    const float shrink = m == m_new ? 1.0f : old[0];
    F32 chunk_sum = zero();
    for (int j = 0; j < kChunk; j += kLanes) {
      const F32 weights = exp(sub(load(p + j), set1(m_new)));
      store(p + j, weights);
      chunk_sum = add(chunk_sum, weights);
    }
    l = l * shrink + sum(chunk_sum);
    each_lanes(d, [&](int64_t i, int n) {
      F32 acc = mul(load_n(o + i, n), set1(shrink));
      for (int j = 0; j < count; ++j)
        acc = fma(set1(p[j]), load_kv<half>(c.cache.values, at[j] + i, n), acc);
      store_n(o + i, acc, n);
    });
    m = m_new;
  }
  each_lanes(d, [&](int64_t i, int n) { store_n(o + i, div(load_n(o + i, n), set1(l)), n); });
}

inline void attend(const AttendCall& c, int64_t begin, int64_t end) {
  const int d = c.cache.d, per_group = c.h / c.cache.g;
  float q[kMaxHead];
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / c.cache.g;
    const int g = static_cast<int>(item % c.cache.g);
    const int64_t at = static_cast<int64_t>(c.positions[row]) * (d / 2);
    for (int h = g * per_group; h < (g + 1) * per_group; ++h) {
      const int64_t head = (row * c.h + h) * d;
      if (c.rotate) rotate_head(c.q + head, q, c.table.cosine + at, c.table.sine + at, d);
      else std::memcpy(q, c.q + head, sizeof(float) * static_cast<size_t>(d));
      each_lanes(d, [&](int64_t i, int n) { store_n(q + i, mul(load_n(q + i, n), set1(c.scale)), n); });
      if (c.cache.half) attend_head<true>(c, q, c.out + head, row, g);
      else attend_head<false>(c, q, c.out + head, row, g);
    }
  }
}

}  // namespace firsthand::FIRSTHAND_ISA
