// Attention of query rows: softmax(q · kᵀ / √d) · v, each row over its own context.
//
// Owns: the walk. The context is read back from the store in chunks of 64 positions from position
// 0, whatever the block size. Each chunk gives its own maximum, sum and output; they are merged in
// order (arXiv 1805.02867, the online softmax; names as in torch/attention.py):
//   chunk   m_c = max s,  p = 2^(s − m_c),  l_c = Σ p,  o_c = Σ p · v
//   merge   m' = max(m, m_c),  l' = l · 2^(m − m') + l_c · 2^(m_c − m'),  o' likewise
// where a score has the factor log2 e, so that powers are those of 2.
// With a window, chunks that lie before it are passed over, and positions before it in its first
// chunk have p = 0; where chunks begin does not change. Rows of a sequence are taken in tiles, so
// that a chunk is read once for all of them; no sum knows of its tile, nor whether its chunk was
// computed beside others and merged afterwards.
// How scores and outputs are multiplied depends on the type of the cache: in integers for int16
// (attention_words.hpp), else in float32 (attention_floats.hpp).
// May not know: who owns a block, how many sequences there are, threads.
// Limit that it meets: one row, the reading of keys and values; many rows, the multiply rate.
// Read next: cache.hpp (how the context is read); kernel_table.cpp.
#pragma once

#include "attention_floats.hpp"
#include "attention_words.hpp"

namespace firsthand::FIRSTHAND_ISA {

inline void prepare_queries(const TileState& t) {
  const AttendCall& c = t.call;
  const float factor = c.cap > 0.0f ? c.scale : c.scale * kLog2E;
  for (int64_t i = 0; i < t.num_queries(); ++i) {
    const float* x = c.q + t.head(i) * t.d;
    const bool words = c.cache.kind == CacheKind::int16;
    float exact[kMaxHead];
    float* q = words ? exact : t.queries + i * t.stride;
    const int64_t at = t.row(i) * (t.d / 2);
    if (c.rotate) rotate_head(x, q, c.rotation.cosine + at, c.rotation.sine + at, t.d);
    else std::memcpy(q, x, sizeof(float) * static_cast<size_t>(t.d));
    for (int k = 0; k < t.d; ++k) q[k] *= factor;
    if (words) query_step(t, i) = round_to_words(q, t.d, query_codes(t, i));
  }
}

// The chunk of the tile that begins at `start`.
template <CacheKind kind, bool tiles, class Sums, class Output>
inline void walk(const TileState& t, int64_t start, const Sums& sums, const Output& output) {
  const int64_t left = t.longest() - start;
  const int count = static_cast<int>(left < kChunk ? left : kChunk);
  if constexpr (kind == CacheKind::int16)
    return attend_queries(WordChunk(t.call, t.tile.sequence, t.g, start, count, t.converted), t,
                          start, sums, output);
  else return walk_floats<kind, tiles>(t, start, count, sums, output);
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
    case CacheKind::int16:
      return layout.template operator()<CacheKind::int16>();
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
      t.maxima[i] = -std::numeric_limits<float>::infinity();
      t.sums[i] = 0.0f;
    }
    Factors factors;
    const auto sums = [&](int64_t first, int n, const ChunkSums& chunk) {
      factors = merge(t.maxima + first, t.sums + first, chunk, n);
    };
    const auto output = [&](int64_t first, int r, int64_t i, F32 chunk) {
      merge(t.outputs + (first + r) * t.stride + i, chunk, factors.old_[r], factors.new_[r]);
    };
    with_cache(c.cache, [&]<CacheKind kind, bool tiles>() {
      for (int64_t start = t.first_chunk(); start < t.longest(); start += kChunk)
        walk<kind, tiles>(t, start, sums, output);
    });
    for (int64_t i = 0; i < t.num_queries(); ++i)
      finish_query(t, i, t.outputs + i * t.stride, t.sums[i]);
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
    const auto sums = [&](int64_t first, int n, const ChunkSums& chunk_sums) {
      for (int r = 0; r < n; ++r) {
        float* part = part_of(parts, t, first + r, 1 + chunk);
        part[t.stride] = chunk_sums.m[r];
        part[t.stride + 1] = chunk_sums.l[r];
      }
    };
    const auto output = [&](int64_t first, int r, int64_t i, F32 o) {
      store(part_of(parts, t, first + r, 1 + chunk) + i, o);
    };
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
        const ChunkSums of_chunk{{part[t.stride]}, {part[t.stride + 1]}};
        const Factors factors = merge(o + t.stride, o + t.stride + 1, of_chunk, 1);
        for (int64_t i = 0; i < t.d; i += kLanes)
          merge(o + i, load(part + i), factors.old_[0], factors.new_[0]);
      }
      if (parts.is_last) finish_query(t, query, o, o[t.stride + 1]);
    }
  }
}

}  // namespace firsthand::FIRSTHAND_ISA
