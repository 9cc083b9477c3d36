// What the kernels are called with: plain structs, and one table of functions per instruction set.
//
// Owns: the border between the plan (who decides what runs) and the kernels (who compute).
// May not know: Python, threads.
// Read next: weight.hpp, plan.cpp.
#pragma once

#include <cstdint>

#include "weight.hpp"

namespace firsthand {

// The largest head size: kernels keep one head on the stack.
constexpr int kMaxHead = 512;
// The most experts of a layer: a router keeps a row of them on the stack.
constexpr int kMaxExperts = 1024;
// Attention walks its context in chunks of so many positions.
constexpr int kChunk = 64;
// Slots of the cache lie in tiles of so many: the lanes of a vector.
constexpr int kTile = 16;

// One digit reaches to this times the mean of |x|; docs/experiments.md has what it costs and saves.
constexpr float kReach = 3.0f;
constexpr float kTwoDigits = 127 * 128 + 63;
// Linear kernels may take so many panels at once: items are handed out in multiples of it.
constexpr int64_t kPanelsTogether = 3;

// Rows rounded to integers, x ≈ q · scale. Two ways, each for the weights whose products it serves:
//   words   for groups: |q| ≤ 32767, scale max|x| / 32767
//   digits  for int8 per channel: a step such that most q take one digit of 8 bits (round_digits)
struct Rounded {
  int8_t* q;     // (rows, stride), zero beyond K; two bytes each, as the instruction set likes them
  float* scale;  // (rows)
  int32_t* sums;  // of q: words (rows, stride / 16), over 16 at a time; digits (rows)
};

// Rows prepared for linear operators. Several weights share them.
struct Prepared {
  Rounded words, digits;
  uint8_t* wide;  // (rows, stride / 16): bit j: columns 16·i + 4·j … + 3 have a high digit
  float* f;       // (rows, stride): the (normalised) row itself, for float weights
  int64_t stride;
};

// Which parts of Prepared are made.
struct Forms {
  bool words, digits, floats;
};

struct PrepareCall {
  const float* x;  // (rows of the value, k)
  int64_t k;
  const int32_t* row_of;  // which row of x is row r; null: r itself
  const float* gain;      // (k) when a norm comes first, else null
  float eps;
  Forms wanted;
  Prepared out;
};

enum class Activation : int32_t { none, silu, gelu_tanh };

// What adapters add to an output, before the activation and the residual.
struct Delta {
  const float* values = nullptr;  // (count, n); null: nothing
  const int32_t* row_of =
      nullptr;  // which row of `values` is row r's; −1: none, and nothing is added
};

struct LinearCall {
  const PackedWeight* weight;
  const PackedWeight* up;  // gated: out = act(x·weightᵀ) · (x·upᵀ)
  const float* bias;       // (n) or null
  const float* up_bias;
  const float* residual;  // (rows, n) or null; may be `out` itself
  float* out;             // (rows, n)
  Activation activation;
  Prepared x;
  int64_t rows;
  Delta delta = {}, up_delta = {};
};

// cos and sin of each row's angles, attention factor included.
struct Rotation {
  const float* cosine;  // (rows, d / 2)
  const float* sine;
  int32_t d;
};

struct RotationCall {
  const int32_t* positions;
  const double* frequencies;  // (d / 2)
  double factor;
  float* cosine;  // (rows, d / 2)
  float* sine;
  int32_t d;
};

struct RopeCall {
  const float* x;  // (rows, heads · d)
  float* out;      // may be x
  int32_t heads;
  Rotation rotation;
};

enum class CacheKind : int32_t { float16, float32, int8, int16 };

// One layer's keys and values; N tiles of 16 slots (kvcache/arrays.py):
//   tiles  keys (N, g, d, 16), values (N, g, 16, d), scales (N, g, 16)
//   rows   keys and values (N, 16, g, d), scales (N, 16, g)
// For int16 in tiles, the order within (d, 16) and (16, d) is cache.hpp's.
struct Cache {
  void* keys;
  void* values;
  float* key_scales;  // int8 and int16: x ≈ code · scale, one scale per token and head
  float* value_scales;
  CacheKind kind;
  bool tiles;
  int32_t g, d;
};

struct StoreCall {
  const float* k;  // (rows, g · d)
  const float* v;
  const int64_t* slots;  // (rows)
  bool rotate;           // rope fused into the store
  Rotation rotation;
  Cache cache;
};

// Rows of one sequence whose attention is computed together.
struct AttendTile {
  int64_t first_row;
  int32_t sequence, rows;
};

// A tile has at most this many queries (rows · heads of a key/value head), or one row.
constexpr int64_t kTileQueries = 96;
constexpr int64_t attend_stride(int64_t d) { return (d + 15) / 16 * 16; }
// Floats of scratch that a thread needs: queries, outputs, m and l, weights, and a chunk.
constexpr int64_t attend_scratch(int64_t d, int64_t heads) {
  const int64_t queries = heads > kTileQueries ? heads : kTileQueries;
  return queries * (2 * attend_stride(d) + 2 + kChunk) + 2 * kChunk * attend_stride(d);
}

// Where few tiles would leave threads idle, the chunks of a tile are computed apart and merged
// afterwards, in the same order and with the same operations. For each query (row · h + head) of
// the step: what is merged so far, then one part per chunk of this round; each is o (stride), m, l.
struct AttendParts {
  float* memory;
  int64_t first_chunk, num_chunks;  // of this round
  bool is_first, is_last;           // round
  constexpr int64_t query_floats(int64_t stride) const { return (1 + num_chunks) * (stride + 2); }
};

struct AttendCall {
  const float* q;  // (rows, h · d)
  float* out;      // (rows, h · d)
  const int32_t* positions;
  const AttendTile* tiles;
  const int64_t* block_starts;  // (sequences, max_blocks)
  int64_t max_blocks, block_size;
  int32_t h;
  float scale;
  float cap;       // scores become cap · tanh(score / cap); 0: they stay
  int64_t window;  // a row sees so many positions, its own the last; 0: all
  bool rotate;
  Rotation rotation;
  Cache cache;
};

struct NormCall {
  const float* x;
  const float* gain;
  float* out;
  int64_t k;
  float eps;
};

struct RouteCall {
  const float* logits;  // (rows, experts)
  const float* shared;  // (rows) logits of one more expert that every row takes, or null
  float* out;           // (rows, experts, and one more if there is a shared one): 0 is not chosen
  int32_t num_experts, top_k;
  bool renormalise;
};

// out[rows[i]] += weights[rows[i]] · x[i]
struct AddExpertCall {
  const float* x;        // (num rows, width)
  const int32_t* rows;   // whose rows of `out` and `weights` they are
  const float* weights;  // those of this expert, `num_weights` apart
  float* out;            // (all rows, width)
  int64_t num_weights, width;
};

struct ActivationCall {
  const float* gate;
  const float* up;
  float* out;
  Activation kind;
};

struct EmbedCall {
  const PackedWeight* table;
  const int32_t* token_ids;
  float* out;
};

// Every function computes items begin…end − 1 of its call; what an item is stands beside it.
struct Kernels {
  const char* name;
  void (*prepare)(const PrepareCall&, int64_t begin, int64_t end);    // rows
  void (*linear)(const LinearCall&, int64_t begin, int64_t end);      // panels of 16 outputs
  void (*embed)(const EmbedCall&, int64_t begin, int64_t end);        // rows
  void (*norm)(const NormCall&, int64_t begin, int64_t end);          // rows
  void (*rotation)(const RotationCall&, int64_t begin, int64_t end);  // rows
  void (*rope)(const RopeCall&, int64_t begin, int64_t end);          // rows
  void (*store)(const StoreCall&, int64_t begin, int64_t end);        // rows
  // tile · g + key/value head
  void (*attend)(const AttendCall&, int64_t begin, int64_t end, float* scratch);
  // (tile · g + key/value head) · num_chunks + chunk of the round
  void (*attend_part)(const AttendCall&, const AttendParts&, int64_t begin, int64_t end,
                      float* scratch);
  // tile · g + key/value head; the last round also writes the results
  void (*attend_merge)(const AttendCall&, const AttendParts&, int64_t begin, int64_t end);
  void (*activation)(const ActivationCall&, int64_t begin, int64_t end);  // elements / 16
  void (*add)(const float* x, const float* y, float* out, int64_t begin, int64_t end);  // as above
  void (*soft_cap)(float* x, float cap, int64_t begin, int64_t end);                    // as above
  void (*route)(const RouteCall&, int64_t begin, int64_t end);                          // rows
  void (*add_expert)(const AddExpertCall&, int64_t begin, int64_t end);  // rows of the expert
};

namespace portable {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace neon {
extern const Kernels kernels;
}

// The fastest table that this machine runs; `forced` names one instead (throws if it cannot run).
const Kernels& choose_kernels(const char* forced);

}  // namespace firsthand
