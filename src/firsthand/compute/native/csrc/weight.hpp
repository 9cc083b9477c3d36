// A weight packed for the linear kernels.
//
// Owns: the packed layout. Outputs go in panels of 16, one lane each; no horizontal sum is needed,
// and one layout serves one row and five hundred.
// May not know: Python, threads, the plan.
// Read next: linear.hpp, which reads it.
//
//   float     [N/16][K][16]                          float32, float16 or bfloat16
//   channel   [N/16][K/4][16][4] uint8                scales (N) float32 apart
//   grouped8  [N/16][group][ codes [g/4][16][4] int8 | scales [16] | minima [16] ]
//   grouped4  [N/16][group][ nibbles [g/8][16][4] bytes | scales [16] | minima [16] ]
//             low nibbles are the first four k of eight, high nibbles the other four
// A channel's codes are stored as code + 128, since the multiplication of bytes takes one side
// without sign. N is padded to 16 with zeros, K to a whole group (channel: to 4).
//
// Stored, as a file keeps it: the panels and 64 spare bytes, to a multiple of 64; for `channel` the
// scales (N padded to 16), to a multiple of 64.
#pragma once

#include <cstdint>
#include <memory>

namespace firsthand {

constexpr int64_t kPanel = 16;
// A vector load at the last code may reach so far past it.
constexpr int64_t kSpareBytes = 64;
constexpr int32_t kCodeOffset = 128;
// For int8 per channel a sum over the whole row stays exact in int32 up to this many columns:
// 65536 · 127 · 255 < 2³¹; and in a row with codes above 127 their mean is below 127 (round_row).
constexpr int64_t kMaxChannelColumns = 65536;

// How a packed code of 64 bytes is read.
enum class Code { unsigned8, signed8, nibble };

enum class Kind : int32_t { float32, float16, bfloat16, channel, grouped8, grouped4 };

struct PackedWeight {
  Kind kind;
  int64_t n, k;
  int64_t group;  // grouped: codes per scale; channel: K padded to 4; float: 0
  int64_t num_groups;
  bool half_scales;  // grouped: scales and minima are float16, else float32
  bool has_minimum;
  int32_t zero;
  int64_t group_bytes;  // one group of one panel, scales included
  int64_t panel_bytes;
  int64_t num_bytes;  // all panels
  std::unique_ptr<uint8_t[], void (*)(void*)> data{nullptr, nullptr};
  std::unique_ptr<float[]> scales;  // channel only, (N padded)
  bool owned = true;                // else the panels lie in memory that is only read

  PackedWeight(Kind kind, int64_t n, int64_t k, int64_t group, bool half_scales, bool has_minimum,
               int32_t zero);
  // Over `stored_bytes()` of a weight as it is stored, which must outlive this one; no panel is
  // copied. Throws std::invalid_argument when the size or the alignment to 64 is wrong.
  PackedWeight(Kind kind, int64_t n, int64_t k, int64_t group, bool half_scales, bool has_minimum,
               int32_t zero, const uint8_t* stored, int64_t size);

  bool is_float() const { return kind <= Kind::bfloat16; }
  bool is_grouped() const { return kind >= Kind::grouped8; }
  // The codes of one group of one panel; scales and minima follow them.
  int64_t code_bytes() const { return group * kPanel / (kind == Kind::grouped4 ? 2 : 1); }
  int64_t num_panels() const { return (n + kPanel - 1) / kPanel; }
  int64_t held_bytes() const;
  int64_t scale_bytes() const { return scales ? num_panels() * kPanel * int64_t{4} : 0; }
  int64_t stored_scales_at() const { return (num_bytes + kSpareBytes + 63) / 64 * 64; }
  int64_t stored_bytes() const { return stored_scales_at() + (scale_bytes() + 63) / 64 * 64; }
  const uint8_t* panel(int64_t p) const { return data.get() + p * panel_bytes; }

  // Rows row0 … row0 + rows − 1. Codes are one per byte, (rows, k); scales and minima
  // (rows, num_groups) in the weight's scale type. Each row is written once.
  void fill_float(int64_t row0, int64_t rows, const void* values);
  void fill_channel(int64_t row0, int64_t rows, const int8_t* codes, const float* row_scales);
  void fill_grouped(int64_t row0, int64_t rows, const uint8_t* codes, const void* group_scales,
                    const void* group_minima);

 private:
  void size();  // everything but the memory, from the shape and the format
};

}  // namespace firsthand
