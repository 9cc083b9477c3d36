// Attention of query rows: softmax(q · kᵀ / √d) · v, each row over its own context.
//
// Owns: the walk. The context is read back from the store in chunks of 64 positions from position
// 0, whatever the block size. Each chunk gives its own maximum, sum and output; they are merged in
// order (arXiv 1805.02867, the online softmax; names as in torch/attention.py):
//   chunk   m_c = max s,  p = exp(s − m_c),  l_c = Σ p,  o_c = Σ p · v
//   merge   m' = max(m, m_c),  l' = l · exp(m − m') + l_c · exp(m_c − m'),  o' likewise
// A score is summed over d in order; o_c over the positions in order. Rows of a sequence are taken
// in tiles, so that a chunk is read and transposed once for all of them; no sum knows of its tile.
// May not know: who owns a block, how many sequences there are.
// Limit that it meets: one row, the reading of keys and values; many rows, the multiply rate.
// Read next: kernel_table.cpp.
#pragma once

#include <limits>

#include "rows.hpp"

namespace firsthand::FIRSTHAND_ISA {

constexpr int kChunkVectors = kChunk / kLanes;
// Queries times vectors that stay in registers: 16 accumulators of a vector each.
constexpr int kQueriesAtOnce = kMaxTileRows / 2;
constexpr int kVectorsAtOnce = kMaxTileRows / 2;
static_assert(kChunkVectors % kVectorsAtOnce == 0);

template <bool half>
inline F32 load_kv(const void* base, int64_t at, int n) {
  if constexpr (half) {
    const auto* p = static_cast<const uint16_t*>(base) + at;
    return n == kLanes ? load_half(p) : load_half_first(p, n);
  } else {
    return load_n(static_cast<const float*>(base) + at, n);
  }
}

// One chunk of one key/value head as float32: keys (d padded to 16, 64), so that a vector holds one
// dimension of 16 positions, and values (64, d padded to 16). Beyond `count` keys are 0; those
// scores are not used.
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
  int64_t at[kChunk];
  int64_t block = first / c.block_size, offset = first % c.block_size;
  for (int j = 0; j < chunk.count; ++j) {
    at[j] = (starts[block] + offset) * slot_width + static_cast<int64_t>(g) * d;
    if (++offset == c.block_size) {
      offset = 0;
      ++block;
    }
  }
  each_lanes(d, [&](int64_t i, int n) {
    for (int j = 0; j < chunk.count; ++j)
      store(chunk.values + j * chunk.stride + i, load_kv<half>(c.cache.values, at[j] + i, n));
    for (int first_row = 0; first_row < kChunk; first_row += kLanes) {
      F32 rows[kLanes];
      for (int j = 0; j < kLanes; ++j)
        rows[j] = first_row + j < chunk.count
                      ? load_kv<half>(c.cache.keys, at[first_row + j] + i, n)
                      : zero();
      transpose(rows);
      for (int lane = 0; lane < kLanes; ++lane)
        store(chunk.keys + (i + lane) * kChunk + first_row, rows[lane]);
    }
  });
}

// acc[q][v] += Σ_i a[q][i] · b[i][16 v …], i = 0 … count − 1 in order: both halves of attention.
template <int Q, int V>
inline void multiply(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int count,
                     F32 (&acc)[Q][V]) {
  for (auto& row : acc)
    for (F32& v : row) v = zero();
  for (int i = 0; i < count; ++i) {
    F32 columns[V];
    for (int v = 0; v < V; ++v) columns[v] = load(b + i * b_stride + v * kLanes);
    for (int q = 0; q < Q; ++q) {
      const F32 x = set1(a[q * a_stride + i]);
      for (int v = 0; v < V; ++v) acc[q][v] = fma(x, columns[v], acc[q][v]);
    }
  }
}

// The state of one tile: all strides are those of a chunk's values.
struct TileState {
  const float* queries;  // (queries, stride), scaled
  float* outputs;        // (queries, stride)
  float* gathered;       // (queries, 2): m and l
  float* weights;        // (queries, 64): scores, then p, of the current chunk
  int64_t stride;
  int d;
};

// s = q · kᵀ for Q queries and the chunk's 64 positions.
template <int Q>
inline void score(const Chunk& chunk, const TileState& t, int64_t first) {
  for (int v = 0; v < kChunkVectors; v += kVectorsAtOnce) {
    F32 acc[Q][kVectorsAtOnce];
    multiply<Q, kVectorsAtOnce>(t.queries + first * t.stride, t.stride, chunk.keys + v * kLanes,
                                kChunk, t.d, acc);
    for (int q = 0; q < Q; ++q)
      for (int j = 0; j < kVectorsAtOnce; ++j)
        store(t.weights + (first + q) * kChunk + (v + j) * kLanes, acc[q][j]);
  }
}

template <int Q, int V>
inline void mix_columns(const Chunk& chunk, const TileState& t, int64_t first, int count, int64_t i,
                        const float (&factors)[Q][2]) {
  F32 acc[Q][V];
  multiply<Q, V>(t.weights + first * kChunk, kChunk, chunk.values + i, chunk.stride, count, acc);
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < V; ++v) {
      float* o = t.outputs + (first + q) * t.stride + i + v * kLanes;
      store(o, fma(acc[q][v], set1(factors[q][1]), mul(load(o), set1(factors[q][0]))));
    }
}

// p and l_c from the scores of one query, and what old and new are worth after the merge.
inline void soften(const TileState& t, int64_t query, int count, float (&factors)[2]) {
  float* p = t.weights + query * kChunk;
  float* gathered = t.gathered + 2 * query;
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
  float both[kLanes] = {m == m_new ? 0.0f : m - m_new, m_c - m_new};  // never ∞ − ∞
  store(both, exp(load(both)));
  factors[0] = both[0];
  factors[1] = both[1];
  gathered[0] = m_new;
  gathered[1] = gathered[1] * both[0] + sum(sums) * both[1];
}

// One chunk for Q queries that all have `count` of its positions in their context.
template <int Q>
inline void attend_chunk(const Chunk& chunk, const TileState& t, int64_t first, int count) {
  score<Q>(chunk, t, first);
  float factors[Q][2];
  for (int q = 0; q < Q; ++q) soften(t, first + q, count, factors[q]);
  int64_t i = 0;
  for (; i + kVectorsAtOnce * kLanes <= t.stride; i += kVectorsAtOnce * kLanes)
    mix_columns<Q, kVectorsAtOnce>(chunk, t, first, count, i, factors);
  for (; i < t.stride; i += kLanes) mix_columns<Q, 1>(chunk, t, first, count, i, factors);
}

// One tile: `rows` rows of one sequence, all heads that share key/value head g.
template <bool half>
inline void attend_tile(const AttendCall& c, const AttendTile& tile, int g, float* scratch) {
  const int d = c.cache.d, heads = c.h / c.cache.g;
  const int64_t stride = attend_stride(d), num_queries = static_cast<int64_t>(tile.rows) * heads;
  float* const queries = scratch;
  float* const outputs = queries + num_queries * stride;
  float* const gathered = outputs + num_queries * stride;
  float* const weights = gathered + 2 * num_queries;
  Chunk chunk{weights + kChunk * num_queries, nullptr, stride, 0};
  chunk.values = chunk.keys + stride * kChunk;
  const TileState state{queries, outputs, gathered, weights, stride, d};

  std::memset(outputs, 0, sizeof(float) * static_cast<size_t>(num_queries * stride));
  for (int64_t i = 0; i < num_queries; ++i) {
    const int64_t row = tile.first_row + i / heads;
    const float* x = c.q + (row * c.h + g * heads + i % heads) * d;
    float* q = queries + i * stride;
    const int64_t at = row * (d / 2);
    if (c.rotate) rotate_head(x, q, c.rotation.cosine + at, c.rotation.sine + at, d);
    else std::memcpy(q, x, sizeof(float) * static_cast<size_t>(d));
    for (int k = 0; k < d; ++k) q[k] *= c.scale;
    gathered[2 * i] = -std::numeric_limits<float>::infinity();
    gathered[2 * i + 1] = 0.0f;
  }

  const int64_t* starts = c.block_starts + tile.sequence * c.max_blocks;
  const int64_t shortest = c.positions[tile.first_row] + int64_t{1};
  const int64_t longest = shortest + tile.rows - 1;
  for (int64_t first = 0; first < longest; first += kChunk) {
    chunk.count = static_cast<int>(longest - first < kChunk ? longest - first : kChunk);
    read_chunk<half>(c, starts, g, first, chunk);
    int64_t i = 0;
    if (first + kChunk <= shortest)
      for (; i + kQueriesAtOnce <= num_queries; i += kQueriesAtOnce)
        attend_chunk<kQueriesAtOnce>(chunk, state, i, kChunk);
    for (; i < num_queries; ++i) {
      const int64_t context = shortest + i / heads;
      if (first >= context) continue;
      attend_chunk<1>(chunk, state, i,
                      static_cast<int>(context - first < kChunk ? context - first : kChunk));
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
