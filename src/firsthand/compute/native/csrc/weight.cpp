// Packing: rows of codes into panels. See weight.hpp for the layout.
#include "weight.hpp"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

namespace firsthand {

namespace {

int64_t element_bytes(Kind kind) { return kind == Kind::float32 ? 4 : 2; }

// Limits that keep every size below well inside 63 bits.
constexpr int64_t kMaxRows = int64_t{1} << 32, kMaxColumns = int64_t{1} << 24;

}  // namespace

PackedWeight::PackedWeight(Kind kind_, int64_t n_, int64_t k_, int64_t group_, bool half_scales_,
                           bool has_minimum_, int32_t zero_)
    : kind(kind_),
      n(n_),
      k(k_),
      group(group_),
      half_scales(half_scales_),
      has_minimum(has_minimum_),
      zero(zero_) {
  size();
  const size_t reserved = static_cast<size_t>(stored_scales_at());
  void* memory = std::aligned_alloc(64, reserved);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, reserved);
  data = {static_cast<uint8_t*>(memory), std::free};
}

PackedWeight::PackedWeight(Kind kind_, int64_t n_, int64_t k_, int64_t group_, bool half_scales_,
                           bool has_minimum_, int32_t zero_, const uint8_t* stored, int64_t size_)
    : kind(kind_),
      n(n_),
      k(k_),
      group(group_),
      half_scales(half_scales_),
      has_minimum(has_minimum_),
      zero(zero_),
      owned(false) {
  // The size first: what a wrong shape asks for must not be allocated.
  if (n < 1 || k < 1 || n > size_ || k > size_)
    throw std::invalid_argument("stored weight of a wrong size");
  size();
  if (size_ != stored_bytes()) throw std::invalid_argument("stored weight of a wrong size");
  if (reinterpret_cast<uintptr_t>(stored) % 64 != 0)
    throw std::invalid_argument("stored weight is not aligned to 64 bytes");
  data = {const_cast<uint8_t*>(stored), [](void*) {}};
  if (scales)
    std::memcpy(scales.get(), stored + stored_scales_at(), static_cast<size_t>(scale_bytes()));
}

void PackedWeight::size() {
  if (n < 1 || k < 1 || n > kMaxRows || k > kMaxColumns)
    throw std::invalid_argument("weight shape out of range");
  if (is_float()) {
    group = 0;
    num_groups = 0;
    group_bytes = 0;
    panel_bytes = k * kPanel * element_bytes(kind);
  } else if (kind == Kind::channel) {
    if (k > kMaxChannelColumns)
      throw std::invalid_argument("int8 per channel takes at most 65536 columns");
    group = (k + 3) / 4 * 4;
    num_groups = 1;
    group_bytes = panel_bytes = group * kPanel;
    scales.reset(new float[static_cast<size_t>(num_panels() * kPanel)]());
  } else {
    if (group < 16 || group % 16 != 0 || group > 256)
      throw std::invalid_argument("group must be a multiple of 16, at most 256");
    num_groups = (k + group - 1) / group;
    const int64_t scale = kPanel * (half_scales ? 2 : 4);
    group_bytes = code_bytes() + scale * (has_minimum ? 2 : 1);
    panel_bytes = group_bytes * num_groups;
  }
  num_bytes = panel_bytes * num_panels();
}

int64_t PackedWeight::held_bytes() const { return num_bytes + scale_bytes(); }

void PackedWeight::fill_float(int64_t row0, int64_t rows, const void* values) {
  const int64_t size = element_bytes(kind);
  const auto* source = static_cast<const uint8_t*>(values);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = row0 + r;
    uint8_t* panel = data.get() + row / kPanel * panel_bytes + row % kPanel * size;
    for (int64_t i = 0; i < k; ++i)
      std::memcpy(panel + i * kPanel * size, source + (r * k + i) * size,
                  static_cast<size_t>(size));
  }
}

void PackedWeight::fill_channel(int64_t row0, int64_t rows, const int8_t* codes,
                                const float* row_scales) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = row0 + r;
    uint8_t* lane = data.get() + row / kPanel * panel_bytes + row % kPanel * 4;
    for (int64_t i = 0; i < k; ++i)
      lane[i / 4 * 64 + i % 4] = static_cast<uint8_t>(codes[r * k + i] + kCodeOffset);
    scales[static_cast<size_t>(row)] = row_scales[r];
  }
}

void PackedWeight::fill_grouped(int64_t row0, int64_t rows, const uint8_t* codes,
                                const void* group_scales, const void* group_minima) {
  const int64_t scale_bytes = half_scales ? 2 : 4;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = row0 + r, lane = row % kPanel;
    uint8_t* panel = data.get() + row / kPanel * panel_bytes;
    for (int64_t g = 0; g < num_groups; ++g) {
      uint8_t* block = panel + g * group_bytes;
      const int64_t first = g * group, count = k - first < group ? k - first : group;
      const uint8_t* row_codes = codes + r * k + first;
      if (kind == Kind::grouped8) {
        for (int64_t i = 0; i < count; ++i) block[i / 4 * 64 + lane * 4 + i % 4] = row_codes[i];
      } else {
        // Memory starts as 0; what pads a short last group does not matter, activations are 0 there.
        for (int64_t i = 0; i < count; ++i)
          block[i / 8 * 64 + lane * 4 + i % 4] |=
              static_cast<uint8_t>((row_codes[i] & 15) << (i % 8 < 4 ? 0 : 4));
      }
      const int64_t at = r * num_groups + g;
      uint8_t* scale = block + code_bytes() + lane * scale_bytes;
      std::memcpy(scale, static_cast<const uint8_t*>(group_scales) + at * scale_bytes,
                  static_cast<size_t>(scale_bytes));
      if (has_minimum)
        std::memcpy(scale + kPanel * scale_bytes,
                    static_cast<const uint8_t*>(group_minima) + at * scale_bytes,
                    static_cast<size_t>(scale_bytes));
    }
  }
}

}  // namespace firsthand
