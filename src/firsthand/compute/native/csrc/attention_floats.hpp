// Scores and outputs of a chunk in float32, for caches of float16, float32 and int8.
//
// Owns: their order: a score is summed over d in order; o_c over the positions in order. No sum knows
// of its tile.
// May not know: the walk over the chunks, and how they are merged.
// Limit that it meets: the rate of float32 multiply-adds.
// Read next: attention.hpp.
#pragma once

#include "attention_tile.hpp"

namespace firsthand::FIRSTHAND_ISA {

// So few queries read the cache as it lies; more of them read it from float32, converted once.
constexpr int64_t kFewQueries = 2 * kQueriesAtOnce;

// s = q · kᵀ for Q queries and V times 16 positions; each score over d in order.
template <int Q, int V, class Context>
inline void score_columns(const Context& context, const TileState& t, int64_t first, int v) {
  F32 acc[Q][V];
  for (auto& row : acc)
    for (F32& x : row) x = zero();
  const float* q = t.queries + first * t.stride;
  for (int i = 0; i < t.d; ++i) {
    F32 keys[V];
    for (int j = 0; j < V; ++j) keys[j] = context.key(v + j, i);
    for (int r = 0; r < Q; ++r) {
      const F32 x = set1(q[r * t.stride + i]);
      for (int j = 0; j < V; ++j) acc[r][j] = fma(x, keys[j], acc[r][j]);
    }
  }
  for (int r = 0; r < Q; ++r)
    for (int j = 0; j < V; ++j)
      store(t.weights + (first + r) * kChunk + (int64_t{v} + j) * kLanes, acc[r][j]);
}

// o_c = Σ p · v for Q queries and V vectors of d from i on, `lanes` of the last one valid.
template <int Q, int V, class Context>
inline void mix_columns(const Context& context, const TileState& t, int64_t first, Seen seen,
                        int64_t i, int lanes, F32 (&acc)[Q][V]) {
  for (auto& row : acc)
    for (F32& x : row) x = zero();
  const float* p = t.weights + first * kChunk;
  for (int j = seen.low; j < seen.count; ++j) {
    F32 values[V];
    for (int v = 0; v < V; ++v) values[v] = context.value(j, i + v * kLanes, lanes);
    for (int r = 0; r < Q; ++r) {
      const F32 x = set1(p[r * kChunk + j]);
      for (int v = 0; v < V; ++v) acc[r][v] = fma(x, values[v], acc[r][v]);
    }
  }
}

// p from the scores of one query, and the chunk's m_c and l_c.
inline void soften(float* p, Seen seen, float cap, float& m, float& l) {
  mask_scores(p, seen, cap);
  m = max_of(peak_of(p));
  F32 sums = zero();
  for (int v = 0; v < kChunkVectors; ++v) {
    const F32 weights = exp2(sub(load(p + v * kLanes), set1(m)));
    store(p + v * kLanes, weights);
    sums = add(sums, weights);
  }
  l = sum(sums);
}

// One chunk for Q queries that all see the same of its positions. `take_sums` and `take_output` as in
// attention_words.hpp.
template <int Q, class Context, class Sums, class Output>
inline void attend_chunk(const Context& context, const TileState& t, int64_t first, Seen seen,
                         const Sums& take_sums, const Output& take_output) {
  const int vectors = (seen.count + kLanes - 1) / kLanes;
  int v = seen.low / kLanes;
  for (; v + kVectorsAtOnce <= vectors; v += kVectorsAtOnce)
    score_columns<Q, kVectorsAtOnce>(context, t, first, v);
  for (; v < vectors; ++v) score_columns<Q, 1>(context, t, first, v);
  ChunkSums chunk_sums{};
  for (int r = 0; r < Q; ++r)
    soften(t.weights + (first + r) * kChunk, seen, t.call.cap, chunk_sums.m[r], chunk_sums.l[r]);
  take_sums(first, Q, chunk_sums);
  int64_t i = 0;
  const auto columns = [&]<int V>(int lanes) {
    F32 acc[Q][V];
    mix_columns<Q, V>(context, t, first, seen, i, lanes, acc);
    for (int r = 0; r < Q; ++r)
      for (int j = 0; j < V; ++j) take_output(first, r, i + j * kLanes, acc[r][j]);
  };
  for (; i + kVectorsAtOnce * kLanes <= t.d; i += kVectorsAtOnce * kLanes)
    columns.template operator()<kVectorsAtOnce>(kLanes);
  for (; i < t.d; i += kLanes)
    columns.template operator()<1>(static_cast<int>(t.d - i < kLanes ? t.d - i : kLanes));
}

// All queries of the tile that see a position of the chunk which begins at `start`.
template <class Context, class Sums, class Output>
inline void attend_queries(const Context& context, const TileState& t, int64_t start,
                           const Sums& sums, const Output& output) {
  const int64_t num_queries = t.num_queries();
  const auto chunk = [&]<int Q>(int64_t i, Seen seen) {
    attend_chunk<Q>(context, t, i, seen, sums, output);
  };
  int64_t i = 0;
  if (start + kChunk <= t.context(0) && start >= t.first(num_queries - 1))
    for (; i + kQueriesAtOnce <= num_queries; i += kQueriesAtOnce)
      chunk.template operator()<kQueriesAtOnce>(i, {0, kChunk});
  while (i < num_queries) {
    const int64_t same = t.heads - i % t.heads;  // queries of one row have one context
    if (t.context(i) > start && t.first(i) < start + kChunk) {
      const Seen seen = t.seen(i, start);
      int64_t j = i;
      for (; j + kQueriesAtOnce <= i + same; j += kQueriesAtOnce)
        chunk.template operator()<kQueriesAtOnce>(j, seen);
      switch (i + same - j) {
        case 3:
          if constexpr (kQueriesAtOnce > 3) chunk.template operator()<3>(j, seen);
          break;
        case 2:
          if constexpr (kQueriesAtOnce > 2) chunk.template operator()<2>(j, seen);
          break;
        case 1:
          chunk.template operator()<1>(j, seen);
          break;
        default:
          break;
      }
    }
    i += same;
  }
}

// The chunk of the tile that begins at `start`, read the way that its number of queries wants.
template <CacheKind kind, bool tiles, class Sums, class Output>
inline void walk_floats(const TileState& t, int64_t start, int count, const Sums& sums,
                        const Output& output) {
  const CacheChunk<kind, tiles> stored(t.call, t.tile.sequence, t.g, start, count);
  if constexpr (tiles)
    if (t.num_queries() <= kFewQueries) return attend_queries(stored, t, start, sums, output);
  const FloatChunk converted(stored, t.converted, t.stride);
  attend_queries(converted, t, start, sums, output);
}

}  // namespace firsthand::FIRSTHAND_ISA
