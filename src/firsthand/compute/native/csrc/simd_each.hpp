// The first n of sixteen vectors, one after another: for sets that have no quicker way.
//
// Owns: what `sums_of` and `maxima_of` mean; lanes from n on may be anything.
// May not know: instructions.
// Read next: rows.hpp.
#pragma once

namespace firsthand::FIRSTHAND_ISA {

inline F32 sums_of(const F32 (&x)[16], int n) {
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = sum(x[i]);
  return load(lanes);
}
inline F32 maxima_of(const F32 (&x)[16], int n) {
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = max_of(x[i]);
  return load(lanes);
}

}  // namespace firsthand::FIRSTHAND_ISA
