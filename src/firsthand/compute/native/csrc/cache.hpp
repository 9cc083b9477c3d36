// The cache as attention reads it and as new tokens are written into it.
//
// Owns: where a key or a value lies (kernels.hpp, `Cache`), and its number formats:
//   int8   code = round(x · (127 / max|x|)), x ≈ code · scale, scale = max|x| / 127, per token and
//          head, fixed when the token is written
// May not know: scores, queries, who owns a slot.
// Limit that it meets: the reading of memory.
// Read next: attention.hpp.
#pragma once

#include "rows.hpp"

namespace firsthand::FIRSTHAND_ISA {

static_assert(kTile == kLanes);

// n elements of the cache as float32; for int8 the codes.
template <CacheKind kind>
inline F32 load_elements(const void* base, int64_t at, int n) {
  if constexpr (kind == CacheKind::float16) {
    const auto* p = static_cast<const uint16_t*>(base) + at;
    return n == kLanes ? load_half(p) : load_half_first(p, n);
  } else if constexpr (kind == CacheKind::float32) {
    return load_n(static_cast<const float*>(base) + at, n);
  } else {
    const auto* p = static_cast<const int8_t*>(base) + at;
    return n == kLanes ? load_byte(p) : load_byte_first(p, n);
  }
}

// `count` ≤ 64 positions of one key/value head, where they lie. A vector of keys in tiles holds 16
// positions; beyond `count` they may be anything, and what comes of them is not used.
template <CacheKind kind, bool tiles>
struct CacheChunk {
  const Cache& cache;
  int count;
  int64_t elements[kChunk / kTile];  // where 16 positions begin, in keys and in values
  int64_t scales[kChunk / kTile];
  F32 key_scales[kChunk / kTile];

  CacheChunk(const AttendCall& c, int64_t sequence, int g, int64_t start, int num_positions)
      : cache(c.cache), count(num_positions) {
    const int64_t* starts = c.block_starts + sequence * c.max_blocks;
    for (int v = 0; v * kTile < count; ++v) {
      const int64_t position = start + v * kTile;
      const int64_t tile = (starts[position / c.block_size] + position % c.block_size) / kTile;
      elements[v] =
          tiles ? (tile * cache.g + g) * kTile * cache.d : (tile * kTile * cache.g + g) * cache.d;
      scales[v] = tiles ? (tile * cache.g + g) * kTile : tile * kTile * cache.g + g;
      if constexpr (kind == CacheKind::int8 && tiles)
        key_scales[v] = load(cache.key_scales + scales[v]);
    }
  }

  // Dimension i of positions 16 v … 16 v + 15, from tiles.
  F32 key(int v, int i) const {
    const F32 x = load_elements<kind>(cache.keys, elements[v] + int64_t{i} * kTile, kTile);
    if constexpr (kind == CacheKind::int8) return mul(x, key_scales[v]);
    else return x;
  }

  // n dimensions from i on, of position j.
  F32 value(int j, int64_t i, int n) const {
    return row(cache.values, cache.value_scales, j, i, n);
  }

  // The same of a key, from rows.
  F32 key_row(int j, int64_t i, int n) const { return row(cache.keys, cache.key_scales, j, i, n); }

 private:
  F32 row(const void* base, const float* row_scales, int j, int64_t i, int n) const {
    const int v = j / kTile, lane = j % kTile;
    const int64_t stride = tiles ? cache.d : int64_t{cache.g} * cache.d;
    const F32 x = load_elements<kind>(base, elements[v] + lane * stride + i, n);
    if constexpr (kind == CacheKind::int8)
      return mul(x, set1(row_scales[scales[v] + lane * (tiles ? 1 : cache.g)]));
    else return x;
  }
};

// The same as float32, converted once for many queries: keys (d, 64), values (64, d padded to 16).
struct FloatChunk {
  float* keys;
  float* values;
  int64_t stride;

  template <CacheKind kind, bool tiles>
  FloatChunk(const CacheChunk<kind, tiles>& chunk, float* memory, int64_t padded)
      : keys(memory), values(memory + padded * kChunk), stride(padded) {
    const int d = chunk.cache.d;
    for (int j = 0; j < chunk.count; ++j)
      each_lanes(d,
                 [&](int64_t i, int n) { store(values + j * stride + i, chunk.value(j, i, n)); });
    for (int v = 0; v * kTile < chunk.count; ++v) {
      float* to = keys + v * kTile;
      if constexpr (tiles) {
        for (int i = 0; i < d; ++i) store(to + i * kChunk, chunk.key(v, i));
      } else {
        const int count = chunk.count - v * kTile < kTile ? chunk.count - v * kTile : kTile;
        each_lanes(d, [&](int64_t i, int n) {
          F32 rows[kLanes];
          for (int j = 0; j < kLanes; ++j)
            rows[j] = j < count ? chunk.key_row(v * kTile + j, i, n) : zero();
          transpose(rows);
          for (int lane = 0; lane < kLanes; ++lane) store(to + (i + lane) * kChunk, rows[lane]);
        });
      }
    }
  }

  F32 key(int v, int i) const { return load(keys + int64_t{i} * kChunk + v * kTile); }
  F32 value(int j, int64_t i, int) const { return load(values + j * stride + i); }
};

// One head of one token, rounded to the cache's type: element i goes to base + i · step.
struct CacheWriter {
  const Cache& cache;

  void write(const float* x, void* base, float* scale, int64_t at, int64_t step) const {
    switch (cache.kind) {
      case CacheKind::float32:
        each_lanes(cache.d, [&](int64_t i, int n) {
          place(x + i, static_cast<float*>(base) + at + i * step, step, n);
        });
        break;
      case CacheKind::float16:
        each_lanes(cache.d, [&](int64_t i, int n) {
          uint16_t rounded[kLanes];
          store_half(rounded, load_n(x + i, n));
          place(rounded, static_cast<uint16_t*>(base) + at + i * step, step, n);
        });
        break;
      case CacheKind::int8:
        *scale = round(x, static_cast<int8_t*>(base) + at, step);
        break;
    }
  }

 private:
  template <class T>
  static void place(const T* from, T* to, int64_t step, int n) {
    if (step == 1) std::memcpy(to, from, sizeof(T) * static_cast<size_t>(n));
    else
      for (int i = 0; i < n; ++i) to[i * step] = from[i];
  }

  // A NaN or an infinity makes the scale NaN, so that it is seen in the logits.
  float round(const float* x, int8_t* to, int64_t step) const {
    F32 largest = zero(), poison = zero();
    each_lanes(cache.d, [&](int64_t i, int n) {
      const F32 v = load_n(x + i, n);
      largest = max(largest, abs(v));
      poison = fma(v, zero(), poison);
    });
    const float peak = max_of(largest) + sum(poison);
    const float to_code = peak > 0.0f ? 127.0f / peak : 0.0f;
    const F32 factor = set1(std::isfinite(to_code) ? to_code : 0.0f);
    each_lanes(cache.d, [&](int64_t i, int n) {
      int32_t wide[kLanes];
      int8_t codes[kLanes];
      store(wide, to_int(mul(load_n(x + i, n), factor)));
      for (int j = 0; j < kLanes; ++j) codes[j] = static_cast<int8_t>(wide[j]);
      place(codes, to + i * step, step, n);
    });
    return peak / 127.0f;
  }
};

// Keys (rotated first where rope is fused) and values of the step's rows, into their slots.
inline void store_rows(const StoreCall& c, int64_t begin, int64_t end) {
  const Cache& cache = c.cache;
  const int d = cache.d;
  const CacheWriter writer{cache};
  float rotated[kMaxHead];
  for (int64_t r = begin; r < end; ++r) {
    const int64_t tile = c.slots[r] / kTile, lane = c.slots[r] % kTile;
    for (int g = 0; g < cache.g; ++g) {
      const float* k = c.k + (r * cache.g + g) * d;
      const float* v = c.v + (r * cache.g + g) * d;
      if (c.rotate) {
        const int64_t at = r * (d / 2);
        rotate_head(k, rotated, c.rotation.cosine + at, c.rotation.sine + at, d);
        k = rotated;
      }
      const int64_t head = (tile * cache.g + g) * kTile;  // of tiles
      const int64_t row = c.slots[r] * cache.g + g;       // of rows
      const int64_t scale = cache.tiles ? head + lane : row;
      float unused;
      const bool scaled = cache.kind == CacheKind::int8;
      writer.write(k, cache.keys, scaled ? cache.key_scales + scale : &unused,
                   cache.tiles ? head * d + lane : row * d, cache.tiles ? kTile : 1);
      writer.write(v, cache.values, scaled ? cache.value_scales + scale : &unused,
                   cache.tiles ? (head + lane) * d : row * d, 1);
    }
  }
}

}  // namespace firsthand::FIRSTHAND_ISA
