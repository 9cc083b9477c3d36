// Kernels that take each element by itself: a soft cap.
//
// Owns: their formulas.
// May not know: rows, threads, the plan.
// Limit that they meet: memory of the caches.
// Read next: attention.hpp, experts.hpp.
#pragma once

#include "rows.hpp"

namespace firsthand::FIRSTHAND_ISA {

// tanh with a small relative error everywhere. Below 1 by Lambert's continued fraction, cut off at
// x⁶; above, where 1 − 2 / (e²ˣ + 1) loses nothing, by that.
inline F32 precise_tanh(F32 x) {
  const F32 near = max(set1(-1.0f), min(set1(1.0f), x)), z = mul(near, near);
  const F32 top = fma(fma(add(z, set1(378.0f)), z, set1(17325.0f)), z, set1(135135.0f));
  const F32 bottom =
      fma(fma(fma(set1(28.0f), z, set1(3150.0f)), z, set1(62370.0f)), z, set1(135135.0f));
  const F32 small = mul(near, div(top, bottom));
  const F32 size = abs(x);  // adds and takes away exactly one of the two
  return add(zero_where_less(size, 1.0f, tanh(x)), sub(small, zero_where_less(size, 1.0f, small)));
}

// cap · tanh(x / cap). arXiv 2408.00118, section 2.
inline F32 capped(F32 x, float cap) { return mul(set1(cap), precise_tanh(div(x, set1(cap)))); }

inline void soft_cap(float* x, float cap, int64_t begin, int64_t end) {
  for (int64_t i = begin * kLanes; i < end * kLanes; i += kLanes)
    store(x + i, capped(load(x + i), cap));
}

}  // namespace firsthand::FIRSTHAND_ISA
