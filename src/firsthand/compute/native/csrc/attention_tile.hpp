// A tile of attention: the queries that read a chunk together, and the softmax of their scores.
//
// Owns: the tile's memory, which positions a query sees, p of a chunk, and the merge of chunks.
// May not know: how scores and outputs are multiplied, what the cache holds.
// Read next: attention_words.hpp, attention_floats.hpp.
#pragma once

#include <limits>

#include "cache.hpp"
#include "elementwise.hpp"

namespace firsthand::FIRSTHAND_ISA {

constexpr int kChunkVectors = kChunk / kLanes;
// Queries times vectors that stay in registers: 16 accumulators of a vector each.
constexpr int kQueriesAtOnce = kAttendTile;
constexpr int kVectorsAtOnce = kAttendTile;
constexpr float kLog2E = 1.44269504088896341f;
static_assert(kChunkVectors % kVectorsAtOnce == 0);

// Which positions of a chunk a query sees: low … count − 1.
struct Seen {
  int low, count;
};

// The state of one tile. Queries are numbered row · heads + head; `part` is only for chunks apart.
struct TileState {
  const AttendCall& call;
  const AttendTile& tile;
  int g, heads, d;
  int64_t stride;    // of queries and outputs: d padded to 16
  float* queries;    // (queries, stride), scaled
  float* outputs;    // (queries, stride): o
  float* maxima;     // (queries): m
  float* sums;       // (queries): l
  float* weights;    // (queries, 64): scores, then p, of the current chunk
  float* converted;  // a chunk as float32

  TileState(const AttendCall& c, const AttendTile& t, int group, float* scratch)
      : call(c), tile(t), g(group), heads(c.h / c.cache.g), d(c.cache.d), stride(attend_stride(d)) {
    queries = scratch;
    outputs = queries + num_queries() * stride;
    maxima = outputs + num_queries() * stride;
    sums = maxima + num_queries();
    weights = sums + num_queries();
    converted = weights + kChunk * num_queries();
  }
  int64_t num_queries() const { return static_cast<int64_t>(tile.rows) * heads; }
  int64_t row(int64_t query) const { return tile.first_row + query / heads; }
  int64_t head(int64_t query) const { return row(query) * call.h + g * heads + query % heads; }
  int64_t context(int64_t query) const { return call.positions[row(query)] + int64_t{1}; }
  int64_t longest() const { return context(num_queries() - 1); }
  // The first position that the query sees.
  int64_t first(int64_t query) const {
    const int64_t before = context(query) - call.window;
    return call.window > 0 && before > 0 ? before : 0;
  }
  // Of the chunk that begins at `start`.
  Seen seen(int64_t query, int64_t start) const {
    const int64_t left = context(query) - start, hidden = first(query) - start;
    return {static_cast<int>(hidden > 0 ? hidden : 0),
            static_cast<int>(left < kChunk ? left : kChunk)};
  }
  int64_t first_chunk() const { return first(0) / kChunk * kChunk; }
};

// Of up to 16 queries of one chunk: m_c and l_c.
struct ChunkSums {
  float m[kLanes], l[kLanes];
};
// What old and new are worth after the merge of m and l.
struct Factors {
  float old_[kLanes], new_[kLanes];
};

// Scores of one query as powers of two, those of other positions −∞.
inline void mask_scores(float* s, Seen seen, float cap) {
  if (cap > 0.0f)
    for (int v = 0; v < kChunkVectors; ++v)
      store(s + v * kLanes, mul(capped(load(s + v * kLanes), cap), set1(kLog2E)));
  for (int j = 0; j < seen.low; ++j) s[j] = -std::numeric_limits<float>::infinity();
  for (int j = seen.count; j < kChunk; ++j) s[j] = -std::numeric_limits<float>::infinity();
}
inline F32 peak_of(const float* s) {
  F32 peak = load(s);
  for (int v = 1; v < kChunkVectors; ++v) peak = max(peak, load(s + v * kLanes));
  return peak;
}

// m and l of `n` ≤ 16 queries with those of a chunk.
inline Factors merge(float* maxima, float* sums, const ChunkSums& chunk, int n) {
  const F32 m = load_first(maxima, n), m_chunk = load(chunk.m), m_new = max(m, m_chunk);
  const F32 old = exp2(sub(m, m_new)), fresh = exp2(sub(m_chunk, m_new));
  store_first(maxima, m_new, n);
  store_first(sums, fma(load(chunk.l), fresh, mul(load_first(sums, n), old)), n);
  Factors factors;
  store(factors.old_, old);
  store(factors.new_, fresh);
  return factors;
}
inline void merge(float* o, F32 chunk, float old, float fresh) {
  store(o, fma(chunk, set1(fresh), mul(load(o), set1(old))));
}

}  // namespace firsthand::FIRSTHAND_ISA
