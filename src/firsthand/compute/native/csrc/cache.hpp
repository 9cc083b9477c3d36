// The cache as attention reads it and as new tokens are written into it.
//
// Owns: where a key or a value lies (kernels.hpp, `Cache`), and its number formats:
//   int8   code = round(x · (127 / max|x|)), x ≈ code · scale, scale = max|x| / 127, per token and
//          head, fixed when the token is written
//   int16  code = round(x · (32767 / |x|)), x ≈ code · step, step = |x| / 32767, where |x| is the
//          root of the sum of squares: likewise per token and head. In tiles, two dimensions of a
//          key and two positions of a value lie side by side, as the 16-bit product wants them:
//          keys (d / 2, 16, 2), values (8, d, 2)
// May not know: scores, queries, who owns a slot.
// Limit that it meets: the reading of memory.
// Read next: attention.hpp.
#pragma once

#include <limits>

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

// Codes of int16, written in whole vectors, and the step. A NaN, an infinity or a square that
// overflows makes the step NaN, and the codes 0: what is made of them is NaN.
inline float round_to_words(const float* x, int d, int16_t* codes) {
  F32 squares = zero();
  each_lanes(d, [&](int64_t i, int n) {
    const F32 v = load_n(x + i, n);
    squares = add(squares, mul(v, v));
  });
  const float norm = std::sqrt(sum(squares)), to_code = norm > 0.0f ? 32767.0f / norm : 0.0f;
  const F32 factor = set1(std::isfinite(to_code) ? to_code : 0.0f);
  if (!std::isfinite(norm)) {
    std::memset(codes, 0, sizeof(int16_t) * static_cast<size_t>(d));
    return std::numeric_limits<float>::quiet_NaN();
  }
  each_lanes(
      d, [&](int64_t i, int n) { store_words(codes + i, to_int(mul(load_n(x + i, n), factor))); });
  return norm / 32767.0f;
}

// `count` ≤ 64 positions of one key/value head in int16, 16 by 16, in the order of tiles: from tiles
// where they lie, from rows by way of `memory`.
struct WordChunk {
  const int16_t* keys[kChunk / kTile];
  const int16_t* values[kChunk / kTile];
  const float* key_steps[kChunk / kTile];
  const float* value_steps[kChunk / kTile];

  WordChunk(const AttendCall& c, int64_t sequence, int g, int64_t start, int count, float* memory) {
    const Cache& cache = c.cache;
    const int64_t* starts = c.block_starts + sequence * c.max_blocks;
    for (int v = 0; v * kTile < count; ++v) {
      const int64_t position = start + v * kTile;
      const int64_t tile = (starts[position / c.block_size] + position % c.block_size) / kTile;
      const int64_t at = (tile * cache.g + g) * kTile, size = int64_t{kTile} * cache.d;
      if (cache.tiles) {
        keys[v] = static_cast<const int16_t*>(cache.keys) + at * cache.d;
        values[v] = static_cast<const int16_t*>(cache.values) + at * cache.d;
        key_steps[v] = cache.key_scales + at;
        value_steps[v] = cache.value_scales + at;
      } else {
        auto* codes = reinterpret_cast<int16_t*>(memory) + 2 * v * size;
        float* steps = memory + kChunk / kTile * size + 2 * v * kTile;
        const int left = count - v * kTile;
        turn(cache, tile * kTile * cache.g + g, left < kTile ? left : kTile, codes, steps);
        keys[v] = codes;
        values[v] = codes + size;
        key_steps[v] = steps;
        value_steps[v] = steps + kTile;
      }
    }
  }

 private:
  // `count` positions from rows, the first at `at`; the others become 0.
  static void turn(const Cache& cache, int64_t at, int count, int16_t* codes, float* steps) {
    const int d = cache.d;
    std::memset(codes, 0, sizeof(int16_t) * static_cast<size_t>(2 * kTile * d));
    std::memset(steps, 0, sizeof(float) * 2 * kTile);
    for (int j = 0; j < count; ++j, at += cache.g) {
      const int16_t* key = static_cast<const int16_t*>(cache.keys) + at * d;
      const int16_t* value = static_cast<const int16_t*>(cache.values) + at * d;
      int16_t* to = codes + kTile * d + j / 2 * 2 * d + j % 2;
      for (int i = 0; i < d; ++i) {
        codes[i / 2 * 2 * kTile + 2 * j + i % 2] = key[i];
        to[2 * i] = value[i];
      }
      steps[j] = cache.key_scales[at];
      steps[kTile + j] = cache.value_scales[at];
    }
  }
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
      case CacheKind::int16:
        break;  // store_as_words: two positions lie side by side
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

// Where the codes of a head go: element i to first + i / 2 · pair + i % 2 · element.
struct PairPlace {
  int64_t first, pair, element;
};
inline void store_as_words(const float* x, int16_t* base, float* step, int d, PairPlace place) {
  int16_t codes[kMaxHead];
  *step = round_to_words(x, d, codes);
  base += place.first;
  for (int i = 0; i < d; i += 2, base += place.pair) {
    base[0] = codes[i];
    base[place.element] = codes[i + 1];
  }
}

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
      if (cache.kind == CacheKind::int16) {
        store_as_words(k, static_cast<int16_t*>(cache.keys) + (cache.tiles ? head : row) * d,
                       cache.key_scales + scale, d,
                       cache.tiles ? PairPlace{2 * lane, 2 * kTile, 1} : PairPlace{0, 2, 1});
        store_as_words(
            v, static_cast<int16_t*>(cache.values) + (cache.tiles ? head : row) * d,
            cache.value_scales + scale, d,
            cache.tiles ? PairPlace{lane / 2 * 2 * d + lane % 2, 4, 2} : PairPlace{0, 2, 1});
        continue;
      }
      const bool scaled = cache.kind == CacheKind::int8;
      writer.write(k, cache.keys, scaled ? cache.key_scales + scale : &unused,
                   cache.tiles ? head * d + lane : row * d, cache.tiles ? kTile : 1);
      writer.write(v, cache.values, scaled ? cache.value_scales + scale : &unused,
                   cache.tiles ? (head + lane) * d : row * d, 1);
    }
  }
}

}  // namespace firsthand::FIRSTHAND_ISA
