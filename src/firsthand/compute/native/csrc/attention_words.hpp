// Scores and outputs of a chunk in integers, for a cache of int16.
//
// Owns: its formula. A vector x is codes times a step, as cache.hpp rounds it (`round_to_words`);
// keys and values are stored so, the query is rounded once:
//   s_j = float(Σ q̂ · k̂_j) · (step of q · step of k_j)
//   w_j = p_j · step of v_j,  t = Σ w_j,  ŵ_j = round(w_j · (32767 / max(t, 1e-30)))
//   o_c = float(Σ ŵ_j · v̂_j) · (t / 32767)
// Both sums are exact in int32, in any order: |Σ q̂ · k̂| ≤ |q̂| · |k̂|, and norms of codes are about
// 32767; |Σ ŵ · v̂| ≤ Σ ŵ · 32767, and Σ ŵ is at most 32767 + 32. A position that a query does not
// see has ŵ = 0, which adds nothing whatever lies there.
// May not know: the walk over the chunks, and how they are merged.
// Limit that it meets: one row, the reading of keys and values; many rows, the rate of 16-bit
// multiply-accumulates, twice that of float32.
// Read next: attention.hpp.
#pragma once

#include "attention_tile.hpp"

namespace firsthand::FIRSTHAND_ISA {

// So small a sum of w gives an output of nothing.
constexpr float kLeastTotal = 1e-30f;

// A query's codes lie in the first half of its floats, its step behind them.
inline int16_t* query_codes(const TileState& t, int64_t query) {
  return reinterpret_cast<int16_t*>(t.queries + query * t.stride);
}
inline float& query_step(const TileState& t, int64_t query) {
  return t.queries[query * t.stride + t.stride / 2];
}
// The codes of p lie over the scores that they come from.
inline int16_t* weight_codes(const TileState& t, int64_t query) {
  return reinterpret_cast<int16_t*>(t.weights + query * kChunk);
}
inline Words::Few pair_at(const int16_t* codes, int64_t pair) {
  return Words::few(reinterpret_cast<const int8_t*>(codes), 2 * pair, 0);
}

// s of Q queries and V times 16 positions. Few queries wait for memory, so that `ahead` asks for the
// values of these positions meanwhile.
template <int Q, int V, bool ahead>
inline void score_words(const WordChunk& chunk, const TileState& t, int64_t first, int v) {
  I32 acc[Q][V];
  for (auto& row : acc)
    for (I32& x : row) x = zero_i32();
  const int16_t* codes = query_codes(t, first);
  for (int i = 0; i < t.d / 2; ++i) {
    Words::Weights keys[V];
    if constexpr (ahead)
      for (int j = 0; j < V; ++j) __builtin_prefetch(chunk.values[v + j] + int64_t{i} * 2 * kTile);
    for (int j = 0; j < V; ++j) keys[j] = Words::pairs(chunk.keys[v + j] + int64_t{i} * 2 * kTile);
    for (int r = 0; r < Q; ++r) {
      const Words::Few pair = pair_at(codes + r * 2 * t.stride, i);
      for (int j = 0; j < V; ++j) acc[r][j] = Words::dot(acc[r][j], keys[j], pair);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Q; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      const F32 step = mul(set1(query_step(t, first + r)), load(chunk.key_steps[v + j]));
      store(t.weights + (first + r) * kChunk + (int64_t{v} + j) * kLanes,
            mul(to_float(acc[r][j]), step));
    }
}

// The steps of the values that a query sees; 0 for the others, whose steps may be anything.
inline F32 seen_steps(const WordChunk& chunk, int v, Seen seen) {
  const int low = seen.low - v * kTile, count = seen.count - v * kTile;
  if (count <= 0 || low >= kTile) return zero();
  const F32 steps = load(chunk.value_steps[v]);
  if (low <= 0 && count >= kTile) return steps;
  float lanes[kTile];
  store(lanes, steps);
  for (int j = 0; j < kTile; ++j)
    if (j < low || j >= count) lanes[j] = 0.0f;
  return load(lanes);
}

// m, l and ŵ of n ≤ 16 queries from their scores, and the step of their outputs.
inline ChunkSums soften(const WordChunk& chunk, const TileState& t, int64_t first, int64_t start,
                        int n, float (&out_steps)[kLanes]) {
  float* s = t.weights + first * kChunk;
  const bool whole = start + kChunk <= t.context(first) && start >= t.first(first + n - 1);
  F32 all_steps[kChunkVectors];
  for (int v = 0; v < kChunkVectors && whole; ++v) all_steps[v] = load(chunk.value_steps[v]);
  F32 lanes[kLanes], weighted[kLanes];
  for (int r = 0; r < n; ++r) {
    mask_scores(s + r * kChunk, t.seen(first + r, start), t.call.cap);
    lanes[r] = peak_of(s + r * kChunk);
  }
  for (int r = n; r < kLanes; ++r) lanes[r] = weighted[r] = zero();
  ChunkSums sums;
  store(sums.m, maxima_of(lanes, n));
  for (int r = 0; r < n; ++r) {
    const Seen seen = t.seen(first + r, start);
    const F32 m = set1(sums.m[r]);
    lanes[r] = weighted[r] = zero();
    for (int v = 0; v < kChunkVectors; ++v) {
      float* at = s + r * kChunk + v * kLanes;
      const F32 p = exp2(sub(load(at), m)),
                steps = whole ? all_steps[v] : seen_steps(chunk, v, seen), w = mul(p, steps);
      store(at, w);
      lanes[r] = add(lanes[r], p);
      weighted[r] = add(weighted[r], w);
    }
  }
  store(sums.l, sums_of(lanes, n));
  const F32 total = sums_of(weighted, n);
  store(out_steps, div(total, set1(32767.0f)));
  float factors[kLanes];
  store(factors, div(set1(32767.0f), max(set1(kLeastTotal), total)));
  for (int r = 0; r < n; ++r)
    for (int v = 0; v < kChunkVectors; ++v) {
      const F32 w = load(s + r * kChunk + v * kLanes);
      store_words(weight_codes(t, first + r) + v * kLanes, to_int(mul(w, set1(factors[r]))));
    }
  return sums;
}

// Σ ŵ · v̂ of Q queries and V vectors of d from i on, `lanes` of the last one valid.
template <int Q, int V>
inline void mix_words(const WordChunk& chunk, const TileState& t, int64_t first, Seen seen,
                      int64_t i, int lanes, I32 (&acc)[Q][V]) {
  for (auto& row : acc)
    for (I32& x : row) x = zero_i32();
  const int16_t* codes = weight_codes(t, first);
  for (int j = seen.low / 2; j < (seen.count + 1) / 2; ++j) {
    const int16_t* row = chunk.values[j / (kTile / 2)] + (j % (kTile / 2)) * 2 * t.d + 2 * i;
    Words::Weights values[V];
    for (int v = 0; v < V; ++v)
      values[v] = lanes == kLanes ? Words::pairs(row + v * 2 * kLanes) : pairs_first(row, lanes);
    for (int r = 0; r < Q; ++r) {
      const Words::Few pair = pair_at(codes + r * 2 * kChunk, j);
      for (int v = 0; v < V; ++v) acc[r][v] = Words::dot(acc[r][v], values[v], pair);
    }
  }
}

// Scores, then outputs, of Q queries that lie in one tile, of which each sees some positions.
template <int Q, bool ahead>
inline void score_queries(const WordChunk& chunk, const TileState& t, int64_t first, Seen seen) {
  const int vectors = (seen.count + kLanes - 1) / kLanes;
  int v = seen.low / kLanes;
  for (; v + kVectorsAtOnce <= vectors; v += kVectorsAtOnce)
    score_words<Q, kVectorsAtOnce, ahead>(chunk, t, first, v);
  for (; v < vectors; ++v) score_words<Q, 1, ahead>(chunk, t, first, v);
}
template <int Q, class Take>
inline void mix_queries(const WordChunk& chunk, const TileState& t, int64_t first, Seen seen,
                        const Take& take) {
  int64_t i = 0;
  const auto columns = [&]<int V>(int lanes) {
    I32 acc[Q][V];
    mix_words<Q, V>(chunk, t, first, seen, i, lanes, acc);
#pragma GCC unroll 4
    for (int r = 0; r < Q; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) take(r, i + j * kLanes, to_float(acc[r][j]));
  };
  for (; i + kVectorsAtOnce * kLanes <= t.d; i += kVectorsAtOnce * kLanes)
    columns.template operator()<kVectorsAtOnce>(kLanes);
  for (; i < t.d; i += kLanes)
    columns.template operator()<1>(static_cast<int>(t.d - i < kLanes ? t.d - i : kLanes));
}

// Calls f with so many of n queries as a constant, and which is the first, until all are done.
template <class F>
inline void by_queries(int n, const F& f) {
  int i = 0;
  for (; i + kQueriesAtOnce <= n; i += kQueriesAtOnce) f.template operator()<kQueriesAtOnce>(i);
  switch (n - i) {
    case 3:
      if constexpr (kQueriesAtOnce > 3) f.template operator()<3>(i);
      break;
    case 2:
      if constexpr (kQueriesAtOnce > 2) f.template operator()<2>(i);
      break;
    case 1:
      f.template operator()<1>(i);
      break;
    default:
      break;
  }
}

// All queries of the tile that see a position of the chunk which begins at `start`, a run of them,
// sixteen at a time. `take_sums` gets m and l of some queries; `take_output` which of them it is, i,
// and 16 lanes of o_c from i on.
template <class Sums, class Output>
inline void attend_queries(const WordChunk& chunk, const TileState& t, int64_t start,
                           const Sums& take_sums, const Output& take_output) {
  int64_t first = 0, end = t.num_queries();
  while (t.context(first) <= start) first += t.heads;
  while (t.first(end - 1) >= start + kChunk) end -= t.heads;
  for (; first < end; first += kLanes) {
    const int n = static_cast<int>(end - first < kLanes ? end - first : kLanes);
    const auto seen = [&](int i, int q) {  // by one of them: later rows see more, and begin later
      return Seen{t.seen(first + i, start).low, t.seen(first + i + q - 1, start).count};
    };
    by_queries(n, [&]<int Q>(int i) {
      if (n <= kQueriesAtOnce) score_queries<Q, true>(chunk, t, first + i, seen(i, Q));
      else score_queries<Q, false>(chunk, t, first + i, seen(i, Q));
    });
    float steps[kLanes];
    take_sums(first, n, soften(chunk, t, first, start, n, steps));
    by_queries(n, [&]<int Q>(int i) {
      mix_queries<Q>(chunk, t, first + i, seen(i, Q), [&](int r, int64_t k, F32 o) {
        take_output(first, i + r, k, mul(o, set1(steps[i + r])));
      });
    });
  }
}

}  // namespace firsthand::FIRSTHAND_ISA
