// Who computes a row, and what that is worth: the router's choice, and the sum of the experts.
//
// Owns: their formulas, and that ties go to the lower index. What an expert computes is linear.hpp's.
// May not know: threads, the plan.
// Limit that they meet: they touch each element once; memory of the caches, not arithmetic.
// Read next: kernel_table.cpp.
#pragma once

#include "elementwise.hpp"

namespace firsthand::FIRSTHAND_ISA {

// p = softmax(logits); the k largest stay, divided by their sum if asked; all others are 0. The sum
// of all runs over 16 lanes and the tree, that of the chosen by index.
inline void route_row(const RouteCall& c, const float* logits, float* out) {
  float p[kMaxExperts + kLanes];
  const int e = c.num_experts;
  F32 peaks = set1(logits[0]);
  each_lanes(e, [&](int64_t i, int n) {
    float lanes[kLanes];
    for (int j = 0; j < kLanes; ++j) lanes[j] = logits[i + (j < n ? j : 0)];
    peaks = max(peaks, load(lanes));
  });
  const float peak = max_of(peaks);
  F32 sums = zero();
  each_lanes(e, [&](int64_t i, int n) {
    const F32 x = exp(sub(load_n(logits + i, n), set1(peak)));
    store(p + i, x);
    sums = add(sums, load_n(p + i, n));
  });
  const F32 total = set1(sum(sums));
  each_lanes(e, [&](int64_t i, int n) { store_n(p + i, div(load(p + i), total), n); });
  bool chosen[kMaxExperts] = {};
  for (int k = 0; k < c.top_k; ++k) {
    int best = -1;
    for (int i = 0; i < e; ++i)
      if (!chosen[i] && (best < 0 || p[i] > p[best])) best = i;
    chosen[best] = true;
  }
  float of_chosen = 0.0f;
  for (int i = 0; i < e; ++i) of_chosen += chosen[i] ? p[i] : 0.0f;
  for (int i = 0; i < e; ++i) out[i] = !chosen[i] ? 0.0f : c.renormalise ? p[i] / of_chosen : p[i];
}

inline void route(const RouteCall& c, int64_t begin, int64_t end) {
  const int width = c.num_experts + (c.shared ? 1 : 0);
  for (int64_t r = begin; r < end; ++r) {
    route_row(c, c.logits + r * c.num_experts, c.out + r * width);
    if (c.shared) {  // 1 / (1 + e⁻ˣ)
      float lanes[kLanes];
      store(lanes, div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), set1(c.shared[r]))))));
      c.out[r * width + c.num_experts] = lanes[0];
    }
  }
}

inline void add_expert(const AddExpertCall& c, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = c.rows[i];
    const F32 weight = set1(c.weights[row * c.num_weights]);
    float* to = c.out + row * c.width;
    each_lanes(c.width, [&](int64_t j, int n) {
      store_n(to + j, fma(weight, load_n(c.x + i * c.width + j, n), load_n(to + j, n)), n);
    });
  }
}

}  // namespace firsthand::FIRSTHAND_ISA
