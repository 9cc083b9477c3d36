// Attention of query rows: softmax(q · kᵀ / √d) · v, each row over its own context.
//
// Owns: the walk. The context is read back from the store in chunks of 64 positions from position
// 0, whatever the block size. Each chunk gives its own maximum, sum and output; they are merged in
// order (arXiv 1805.02867, the online softmax; names as in torch/attention.py):
//   chunk   m_c = max s,  p = exp(s − m_c),  l_c = Σ p,  o_c = Σ p · v
//   merge   m' = max(m, m_c),  l' = l · exp(m − m') + l_c · exp(m_c − m'),  o' likewise
// A score is summed over d in order; o_c over the positions in order. With a window, chunks that lie
// before it are passed over, and positions before it in its first chunk have p = 0; where chunks
// begin does not change. Rows of a sequence are taken
// in tiles, so that a chunk is read once for all of them; no sum knows of its tile, nor whether its
// chunk was computed beside others and merged afterwards.
// May not know: who owns a block, how many sequences there are, threads.
// Limit that it meets: one row, the reading of keys and values; many rows, the multiply rate.
// Read next: cache.hpp (how the context is read); kernel_table.cpp.
#pragma once

#include <limits>

#include "cache.hpp"
#include "elementwise.hpp"

namespace firsthand::FIRSTHAND_ISA {

constexpr int kChunkVectors = kChunk / kLanes;
// Queries times vectors that stay in registers: 16 accumulators of a vector each.
constexpr int kQueriesAtOnce = kAttendTile;
constexpr int kVectorsAtOnce = kAttendTile;
// So few queries read the cache as it lies; more of them read it from float32, converted once.
constexpr int64_t kFewQueries = 2 * kQueriesAtOnce;
static_assert(kChunkVectors % kVectorsAtOnce == 0);

// The state of one tile. Queries are numbered row · heads + head; `part` is only for chunks apart.
struct TileState {
  const AttendCall& call;
  const AttendTile& tile;
  int g, heads, d;
  int64_t stride;    // of queries and outputs: d padded to 16
  float* queries;    // (queries, stride), scaled
  float* outputs;    // (queries, stride): o
  float* gathered;   // (queries, 2): m and l
  float* weights;    // (queries, 64): scores, then p, of the current chunk
  float* converted;  // a chunk as float32

  TileState(const AttendCall& c, const AttendTile& t, int group, float* scratch)
      : call(c), tile(t), g(group), heads(c.h / c.cache.g), d(c.cache.d), stride(attend_stride(d)) {
    queries = scratch;
    outputs = queries + num_queries() * stride;
    gathered = outputs + num_queries() * stride;
    weights = gathered + 2 * num_queries();
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
  int64_t first_chunk() const { return first(0) / kChunk * kChunk; }
};

// Which positions of a chunk a query sees: low … count − 1.
struct Seen {
  int low, count;
};

inline void prepare_queries(const TileState& t) {
  const AttendCall& c = t.call;
  for (int64_t i = 0; i < t.num_queries(); ++i) {
    const float* x = c.q + t.head(i) * t.d;
    float* q = t.queries + i * t.stride;
    const int64_t at = t.row(i) * (t.d / 2);
    if (c.rotate) rotate_head(x, q, c.rotation.cosine + at, c.rotation.sine + at, t.d);
    else std::memcpy(q, x, sizeof(float) * static_cast<size_t>(t.d));
    for (int k = 0; k < t.d; ++k) q[k] *= c.scale;
  }
}

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

struct ChunkSums {
  float m, l;
};

// p from the scores of one query, and the chunk's m_c and l_c.
inline ChunkSums soften(float* p, Seen seen, float cap) {
  if (cap > 0.0f)
    for (int v = 0; v < kChunkVectors; ++v)
      store(p + v * kLanes, capped(load(p + v * kLanes), cap));
  for (int j = 0; j < seen.low; ++j) p[j] = -std::numeric_limits<float>::infinity();
  for (int j = seen.count; j < kChunk; ++j) p[j] = -std::numeric_limits<float>::infinity();
  F32 peak = load(p);
  for (int v = 1; v < kChunkVectors; ++v) peak = max(peak, load(p + v * kLanes));
  const float m = max_of(peak);
  F32 sums = zero();
  for (int v = 0; v < kChunkVectors; ++v) {
    const F32 weights = exp(sub(load(p + v * kLanes), set1(m)));
    store(p + v * kLanes, weights);
    sums = add(sums, weights);
  }
  return {m, sum(sums)};
}

// What old and new are worth after the merge of m and l.
struct Factors {
  float old_, new_;
};
inline Factors merge(float* gathered, const ChunkSums& chunk) {
  const float m = gathered[0], m_new = m > chunk.m ? m : chunk.m;
  float both[kLanes] = {m == m_new ? 0.0f : m - m_new, chunk.m - m_new};  // never ∞ − ∞
  store(both, exp(load(both)));
  gathered[0] = m_new;
  gathered[1] = gathered[1] * both[0] + chunk.l * both[1];
  return {both[0], both[1]};
}
inline void merge(float* o, F32 chunk, const Factors& factors) {
  store(o, fma(chunk, set1(factors.new_), mul(load(o), set1(factors.old_))));
}

// One chunk for Q queries that all see the same of its positions. `take` gets the chunk's sums of a
// query; then, for each vector of its output, what it returned, i and o_c.
template <int Q, class Context, class Sums, class Output>
inline void attend_chunk(const Context& context, const TileState& t, int64_t first, Seen seen,
                         const Sums& take_sums, const Output& take_output) {
  const int vectors = (seen.count + kLanes - 1) / kLanes;
  int v = seen.low / kLanes;
  for (; v + kVectorsAtOnce <= vectors; v += kVectorsAtOnce)
    score_columns<Q, kVectorsAtOnce>(context, t, first, v);
  for (; v < vectors; ++v) score_columns<Q, 1>(context, t, first, v);
  decltype(take_sums(int64_t{}, ChunkSums{})) taken[Q];
  for (int r = 0; r < Q; ++r)
    taken[r] = take_sums(first + r, soften(t.weights + (first + r) * kChunk, seen, t.call.cap));
  int64_t i = 0;
  const auto columns = [&]<int V>(int lanes) {
    F32 acc[Q][V];
    mix_columns<Q, V>(context, t, first, seen, i, lanes, acc);
    for (int r = 0; r < Q; ++r)
      for (int j = 0; j < V; ++j) take_output(first + r, taken[r], i + j * kLanes, acc[r][j]);
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
    const int64_t left = t.context(i) - start, hidden = t.first(i) - start;
    const int64_t same = t.heads - i % t.heads;  // queries of one row have one context
    if (left > 0 && hidden < kChunk) {
      const Seen seen{static_cast<int>(hidden > 0 ? hidden : 0),
                      static_cast<int>(left < kChunk ? left : kChunk)};
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
inline void walk(const TileState& t, int64_t start, const Sums& sums, const Output& output) {
  const int64_t left = t.longest() - start;
  const int count = static_cast<int>(left < kChunk ? left : kChunk);
  const CacheChunk<kind, tiles> stored(t.call, t.tile.sequence, t.g, start, count);
  if constexpr (tiles)
    if (t.num_queries() <= kFewQueries) return attend_queries(stored, t, start, sums, output);
  const FloatChunk converted(stored, t.converted, t.stride);
  attend_queries(converted, t, start, sums, output);
}

// Calls f with the cache's kind and layout as constants.
template <class F>
inline void with_cache(const Cache& cache, const F& f) {
  const auto layout = [&]<CacheKind kind>() {
    if (cache.tiles) f.template operator()<kind, true>();
    else f.template operator()<kind, false>();
  };
  switch (cache.kind) {
    case CacheKind::float16:
      return layout.template operator()<CacheKind::float16>();
    case CacheKind::float32:
      return layout.template operator()<CacheKind::float32>();
    case CacheKind::int8:
      return layout.template operator()<CacheKind::int8>();
  }
}

inline void finish_query(const TileState& t, int64_t query, const float* o, float l) {
  float* out = t.call.out + t.head(query) * t.d;
  each_lanes(t.d, [&](int64_t k, int n) { store_n(out + k, div(load(o + k), set1(l)), n); });
}

inline void attend(const AttendCall& c, int64_t begin, int64_t end, float* scratch) {
  for (int64_t item = begin; item < end; ++item) {
    const TileState t(c, c.tiles[item / c.cache.g], static_cast<int>(item % c.cache.g), scratch);
    prepare_queries(t);
    std::memset(t.outputs, 0, sizeof(float) * static_cast<size_t>(t.num_queries() * t.stride));
    for (int64_t i = 0; i < t.num_queries(); ++i) {
      t.gathered[2 * i] = -std::numeric_limits<float>::infinity();
      t.gathered[2 * i + 1] = 0.0f;
    }
    const auto sums = [&](int64_t query, const ChunkSums& chunk) {
      return merge(t.gathered + 2 * query, chunk);
    };
    const auto output = [&](int64_t query, const Factors& factors, int64_t i, F32 chunk) {
      merge(t.outputs + query * t.stride + i, chunk, factors);
    };
    with_cache(c.cache, [&]<CacheKind kind, bool tiles>() {
      for (int64_t start = t.first_chunk(); start < t.longest(); start += kChunk)
        walk<kind, tiles>(t, start, sums, output);
    });
    for (int64_t i = 0; i < t.num_queries(); ++i)
      finish_query(t, i, t.outputs + i * t.stride, t.gathered[2 * i + 1]);
  }
}

// Part 0 of a query is what is merged so far, part 1 + c that of chunk c of the round: o, m, l.
inline float* part_of(const AttendParts& parts, const TileState& t, int64_t query, int64_t part) {
  return parts.memory + t.head(query) * parts.query_floats(t.stride) + part * (t.stride + 2);
}

inline void attend_part(const AttendCall& c, const AttendParts& parts, int64_t begin, int64_t end,
                        float* scratch) {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t chunk = item % parts.num_chunks, pair = item / parts.num_chunks;
    const TileState t(c, c.tiles[pair / c.cache.g], static_cast<int>(pair % c.cache.g), scratch);
    const int64_t start = (parts.first_chunk + chunk) * kChunk;
    if (start >= t.longest() || start < t.first_chunk()) continue;
    prepare_queries(t);
    const auto sums = [&](int64_t query, const ChunkSums& chunk_sums) {
      float* part = part_of(parts, t, query, 1 + chunk);
      part[t.stride] = chunk_sums.m;
      part[t.stride + 1] = chunk_sums.l;
      return part;
    };
    const auto output = [](int64_t, float* part, int64_t i, F32 o) { store(part + i, o); };
    with_cache(c.cache,
               [&]<CacheKind kind, bool tiles>() { walk<kind, tiles>(t, start, sums, output); });
  }
}

inline void attend_merge(const AttendCall& c, const AttendParts& parts, int64_t begin,
                         int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const TileState t(c, c.tiles[item / c.cache.g], static_cast<int>(item % c.cache.g), nullptr);
    for (int64_t query = 0; query < t.num_queries(); ++query) {
      float* o = part_of(parts, t, query, 0);
      if (parts.is_first) {
        std::memset(o, 0, sizeof(float) * static_cast<size_t>(t.stride));
        o[t.stride] = -std::numeric_limits<float>::infinity();
        o[t.stride + 1] = 0.0f;
      }
      for (int64_t chunk = 0; chunk < parts.num_chunks; ++chunk) {
        const int64_t start = (parts.first_chunk + chunk) * kChunk;
        if (start >= t.context(query)) break;
        if (start + kChunk <= t.first(query)) continue;
        const float* part = part_of(parts, t, query, 1 + chunk);
        const Factors factors = merge(o + t.stride, {part[t.stride], part[t.stride + 1]});
        for (int64_t i = 0; i < t.d; i += kLanes) merge(o + i, load(part + i), factors);
      }
      if (parts.is_last) finish_query(t, query, o, o[t.stride + 1]);
    }
  }
}

}  // namespace firsthand::FIRSTHAND_ISA
