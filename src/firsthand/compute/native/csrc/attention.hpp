// Attention of query rows: softmax(q · kᵀ / √d) · v, each row over its own context.
//
// Owns: the walk. The context is read back from the store in chunks of 64 positions from position
// 0, whatever the block size. Each chunk gives its own maximum, sum and output; they are merged in
// order (arXiv 1805.02867, the online softmax; names as in torch/attention.py):
//   chunk   m_c = max s,  p = exp(s − m_c),  l_c = Σ p,  o_c = Σ p · v
//   merge   m' = max(m, m_c),  l' = l · exp(m − m') + l_c · exp(m_c − m'),  o' likewise
// A score is summed over d in order; o_c over the positions in order. Rows of a sequence are taken
// in tiles, so that a chunk is read and turned once for all of them; no sum knows of its tile.
// May not know: who owns a block, how many sequences there are.
// Limit that it meets: one row, the reading of keys and values; many rows, the multiply rate.
// Read next: kernels.cpp.
#pragma once

#include <limits>

#include "rows.hpp"

namespace firsthand::FIRSTHAND_ISA {

constexpr int kChunk = 64;
constexpr int kChunkVectors = kChunk / kLanes;

template <bool half>
inline F32 load_kv(const void* base, int64_t at, int n) {
  if constexpr (half) {
    const auto* p = static_cast<const uint16_t*>(base) + at;
    return n == kLanes ? load_half(p) : load_half_first(p, n);
  } else {
    return load_n(static_cast<const float*>(base) + at, n);
  }
}

// One chunk of one key/value head as float32: keys (d, 64), so that a vector holds one dimension
// of 16 positions, and values (64, d). Beyond `count` keys are 0; those scores are not used.
struct Chunk {
  float* keys;
  float* values;
  int64_t stride;  // of `values`: d padded to 16
  int count;
};

template <bool half>
inline void read_chunk(const AttendCall& c, const int64_t* starts, int g, int64_t first,
                       Chunk& chunk) {
  const int d = c.cache.d;
  const int64_t slot_width = static_cast<int64_t>(c.cache.g) * d;
  int64_t block = first / c.block_size, offset = first % c.block_size;
  float turned[kLanes];
  for (int j = 0; j < chunk.count; ++j) {
    const int64_t at = (starts[block] + offset) * slot_width + static_cast<int64_t>(g) * d;
    each_lanes(d, [&](int64_t i, int n) {
      store(turned, load_kv<half>(c.cache.keys, at + i, n));
      for (int lane = 0; lane < n; ++lane) chunk.keys[(i + lane) * kChunk + j] = turned[lane];
      store(chunk.values + j * chunk.stride + i, load_kv<half>(c.cache.values, at + i, n));
    });
    if (++offset == c.block_size) {
      offset = 0;
      ++block;
    }
  }
  for (int j = chunk.count; j < kChunk; ++j)
    for (int i = 0; i < d; ++i) chunk.keys[i * kChunk + j] = 0.0f;
}

// One chunk for one query; `count` of its positions are in the query's context. (m, l) and o (d
// padded to 16) are what the query has gathered so far.
inline void attend_chunk(const Chunk& chunk, const float* q, int d, int count, float* gathered,
                         float* o) {
  F32 s[kChunkVectors];
  for (F32& v : s) v = zero();
  for (int i = 0; i < d; ++i) {
    const F32 x = set1(q[i]);
    for (int v = 0; v < kChunkVectors; ++v)
      s[v] = fma(x, load(chunk.keys + i * kChunk + v * kLanes), s[v]);
  }
  float p[kChunk];
  for (int v = 0; v < kChunkVectors; ++v) store(p + v * kLanes, s[v]);
  for (int j = count; j < kChunk; ++j) p[j] = -std::numeric_limits<float>::infinity();
  F32 peak = load(p);
  for (int v = 1; v < kChunkVectors; ++v) peak = max(peak, load(p + v * kLanes));
  const float m_c = max_of(peak);
  F32 sums = zero();
  for (int v = 0; v < kChunkVectors; ++v) {
    const F32 weights = exp(sub(load(p + v * kLanes), set1(m_c)));
    store(p + v * kLanes, weights);
    sums = add(sums, weights);
  }
  const float m = gathered[0], m_new = m > m_c ? m : m_c;
  float factors[kLanes] = {m == m_new ? 0.0f : m - m_new, m_c - m_new};  // never ∞ − ∞
  store(factors, exp(load(factors)));
  gathered[0] = m_new;
  gathered[1] = gathered[1] * factors[0] + sum(sums) * factors[1];
  for (int i = 0; i < d; i += kLanes) {
    F32 o_c = zero();
    for (int j = 0; j < count; ++j)
      o_c = fma(set1(p[j]), load(chunk.values + j * chunk.stride + i), o_c);
    store(o + i, fma(o_c, set1(factors[1]), mul(load(o + i), set1(factors[0]))));
  }
}

// One tile: `rows` rows of one sequence, all heads that share key/value head g.
template <bool half>
inline void attend_tile(const AttendCall& c, const AttendTile& tile, int g, float* scratch) {
  const int d = c.cache.d, heads = c.h / c.cache.g;
  const int64_t stride = attend_stride(d), num_queries = static_cast<int64_t>(tile.rows) * heads;
  float* const queries = scratch;
  float* const outputs = queries + num_queries * stride;
  float* const gathered = outputs + num_queries * stride;  // (m, l) of each query
  Chunk chunk{gathered + 2 * num_queries, nullptr, stride, 0};
  chunk.values = chunk.keys + stride * kChunk;

  std::memset(outputs, 0, sizeof(float) * static_cast<size_t>(num_queries * stride));
  for (int64_t i = 0; i < num_queries; ++i) {
    const int64_t row = tile.first_row + i / heads;
    const float* x = c.q + (row * c.h + g * heads + i % heads) * d;
    float* q = queries + i * stride;
    const int64_t at = static_cast<int64_t>(c.positions[row]) * (d / 2);
    if (c.rotate) rotate_head(x, q, c.table.cosine + at, c.table.sine + at, d);
    else std::memcpy(q, x, sizeof(float) * static_cast<size_t>(d));
    for (int k = 0; k < d; ++k) q[k] *= c.scale;
    gathered[2 * i] = -std::numeric_limits<float>::infinity();
    gathered[2 * i + 1] = 0.0f;
  }

  const int64_t* starts = c.block_starts + tile.sequence * c.max_blocks;
  const int64_t longest = c.positions[tile.first_row + tile.rows - 1] + int64_t{1};
  for (int64_t first = 0; first < longest; first += kChunk) {
    chunk.count = static_cast<int>(longest - first < kChunk ? longest - first : kChunk);
    read_chunk<half>(c, starts, g, first, chunk);
    for (int64_t i = 0; i < num_queries; ++i) {
      const int64_t context = c.positions[tile.first_row + i / heads] + int64_t{1};
      if (first >= context) continue;
      const int count = static_cast<int>(context - first < kChunk ? context - first : kChunk);
      attend_chunk(chunk, queries + i * stride, d, count, gathered + 2 * i, outputs + i * stride);
    }
  }

  for (int64_t i = 0; i < num_queries; ++i) {
    float* out = c.out + ((tile.first_row + i / heads) * c.h + g * heads + i % heads) * d;
    each_lanes(d, [&](int64_t k, int n) {
      store_n(out + k, div(load(outputs + i * stride + k), set1(gathered[2 * i + 1])), n);
    });
  }
}

inline void attend(const AttendCall& c, int64_t begin, int64_t end, float* scratch) {
  for (int64_t item = begin; item < end; ++item) {
    const AttendTile& tile = c.tiles[item / c.cache.g];
    const int g = static_cast<int>(item % c.cache.g);
    if (c.cache.half) attend_tile<true>(c, tile, g, scratch);
    else attend_tile<false>(c, tile, g, scratch);
  }
}

}  // namespace firsthand::FIRSTHAND_ISA
