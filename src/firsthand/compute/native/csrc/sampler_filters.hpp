// Which tokens of a row stay: top_k, top_p, min_p, over the few that can.
//
// Owns: the filters' exact cuts. A filter keeps a beginning of the row in rank order (logit
// falling, then id rising), so a first look at logits alone finds a superset of what it keeps, and
// the work on masses is done on that.
// May not know: penalties, draws, logprobs.
// Read next: sampler.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "sampler.hpp"
#include "sampler_math.hpp"

namespace firsthand::sampler {

constexpr double kUnitMass = 0x1p43;
static_assert(kUnitMass == static_cast<double>(uint64_t{1} << kMassBits));
// (max − logit) / temperature beyond which every mass is 0: ln 2⁴⁴ is 30.5.
constexpr double kMassless = 31.0;

template <class T>
struct Row {
  std::span<const T> logits;
  Scale scale;
  const RowLoops<T>& loops;
};

inline uint64_t sum(std::span<const uint64_t> masses) {
  return std::accumulate(masses.begin(), masses.end(), uint64_t{0});
}

// Of the tokens in `s`, those for which keep(index) holds.
template <class Keep>
void retain(Scratch& s, Keep keep) {
  size_t count = 0;
  for (size_t i = 0; i < s.ids.size(); ++i) {
    s.ids[count] = s.ids[i];
    s.logits[count] = s.logits[i];
    s.masses[count] = s.masses[i];
    count += keep(i);
  }
  s.ids.resize(count);
  s.logits.resize(count);
  s.masses.resize(count);
}

// The tokens whose logit is at least `least` and whose mass is not 0. `loops` are for float64.
template <class T>
void gather(const Row<T>& row, const RowLoops<double>& loops, T least, Scratch& s) {
  s.ids.resize(row.logits.size());
  const int64_t count =
      row.loops.collect(row.logits.data(), std::ssize(row.logits), least, s.ids.data());
  s.ids.resize(static_cast<size_t>(count));
  s.logits.resize(s.ids.size());
  s.masses.resize(s.ids.size());
  for (size_t i = 0; i < s.ids.size(); ++i) s.logits[i] = double{row.logits[s.ids[i]]};
  loops.masses(s.logits.data(), std::ssize(s.logits), row.scale, s.masses.data());
  retain(s, [&](size_t i) { return s.masses[i] > 0; });
}

// The lowest logit within `distance` · temperature of the best. Rounding is monotone, so no token
// at that distance is lost.
template <class T>
T within(const Row<T>& row, double distance) {
  return static_cast<T>(row.scale.max - distance * row.scale.temperature);
}

// The last candidate of the shortest beginning, in rank order, whose weights reach `needed`. Each
// turn halves the range by selection, so the time is linear, however the weights are spread.
template <class Weight>
Candidate last_needed(std::vector<Candidate>& candidates, uint64_t needed, Weight weight) {
  auto first = candidates.begin(), end = candidates.end();
  while (end - first > 1) {
    const auto middle = first + (end - first) / 2;
    std::nth_element(first, middle, end);
    uint64_t reached = 0;
    for (auto it = first; it != middle; ++it) reached += weight(it->mass);
    if (reached >= needed) {
      end = middle;
    } else {
      needed -= reached;
      first = middle;
    }
  }
  return *first;
}

// Keep the shortest beginning whose weights reach `needed`; all together reach it.
template <class Weight>
void keep_beginning(Scratch& s, uint64_t needed, Weight weight) {
  s.candidates.clear();
  for (size_t i = 0; i < s.ids.size(); ++i) {
    s.candidates.push_back({s.logits[i], s.ids[i], s.masses[i]});
  }
  const Candidate last = last_needed(s.candidates, needed, weight);
  retain(s, [&](size_t i) {
    return s.logits[i] > last.logit || (s.logits[i] == last.logit && s.ids[i] <= last.token_id);
  });
}

inline uint64_t share_of(double top_p, uint64_t total) {
  const auto share = static_cast<uint64_t>(std::ceil(top_p * static_cast<double>(total)));
  return std::clamp(share, uint64_t{1}, total);
}

inline uint64_t mass_itself(uint64_t mass) { return mass; }

// The k best. The k-th highest of the groups' maxima is a bound: k tokens at least reach it.
template <class T>
void keep_top_k(const Row<T>& row, const RowLoops<double>& loops, int64_t top_k, Scratch& s) {
  const int64_t size = std::ssize(row.logits), groups = (size + kGroup - 1) / kGroup;
  T least = within(row, kMassless);
  if (top_k <= groups) {
    std::vector<T> maxima(static_cast<size_t>(groups));
    row.loops.group_maxima(row.logits.data(), size, maxima.data());
    const auto kth = maxima.begin() + (top_k - 1);
    std::nth_element(maxima.begin(), kth, maxima.end(), std::greater<T>());
    least = std::max(least, *kth);
  }
  gather(row, loops, least, s);
  if (top_k < std::ssize(s.ids)) {
    keep_beginning(s, static_cast<uint64_t>(top_k), [](uint64_t) { return uint64_t{1}; });
  }
}

// Of a whole row. The likeliest tokens reach top_p soon: look no further than needed.
template <class T>
void keep_top_p(const Row<T>& row, const RowLoops<double>& loops, double top_p, Scratch& s) {
  const int64_t size = std::ssize(row.logits);
  s.sums.resize(static_cast<size_t>((size + kBlock - 1) / kBlock));
  const uint64_t total = row.loops.block_masses(row.logits.data(), size, row.scale, s.sums.data());
  const uint64_t needed = share_of(top_p, total);
  for (double distance = 2.0 - natural_log(1.0 - top_p);; distance += 3.0) {
    gather(row, loops, within(row, std::min(distance, kMassless)), s);
    if (sum(s.masses) >= needed || distance >= kMassless) break;
  }
  keep_beginning(s, needed, mass_itself);
}

// The best token's mass is 2⁴³, whatever was dropped before.
inline void keep_min_p(double min_p, Scratch& s) {
  const auto least = static_cast<uint64_t>(std::ceil(min_p * kUnitMass));
  retain(s, [&](size_t i) { return s.masses[i] >= least; });
}

// The tokens that stay, in the order of their ids. False when no filter is on: all do.
template <class T>
bool filter(const Row<T>& row, const RowLoops<double>& loops, const Settings& settings,
            Scratch& s) {
  const bool few = settings.top_k > 0 && settings.top_k < std::ssize(row.logits);
  if (few) {
    keep_top_k(row, loops, settings.top_k, s);
    if (settings.top_p < 1.0) {
      keep_beginning(s, share_of(settings.top_p, sum(s.masses)), mass_itself);
    }
  } else if (settings.top_p < 1.0) {
    keep_top_p(row, loops, settings.top_p, s);
  } else if (settings.min_p > 0.0) {
    // A hundredth of slack is far beyond the error of exp and log.
    const double distance = 0.01 - natural_log(std::max(settings.min_p, 0x1p-44));
    gather(row, loops, within(row, std::min(distance, kMassless)), s);
  } else {
    return false;
  }
  if (settings.min_p > 0.0) keep_min_p(settings.min_p, s);
  return true;
}

}  // namespace firsthand::sampler
