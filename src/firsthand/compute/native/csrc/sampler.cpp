#include "sampler.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "sampler_math.hpp"

namespace firsthand::sampler {
namespace {

constexpr int64_t kLanes = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kUnitMass = 0x1p43;
static_assert(kUnitMass == static_cast<double>(uint64_t{1} << kMassBits));

template <class T>
Double2 load2(const T* x) {
  return Double2{double{x[0]}, double{x[1]}};
}

// The mass of a token whose logit is `logit`.
template <class Number, class Bits>
inline Bits mass_kernel(Number logit, double max, double temperature) {
  constexpr double kRound = 0x1p52;  // adding it rounds a mass to a whole number in the low bits
  const Number weight = exp_kernel<Number, Bits>((logit - max) / temperature);
  return std::bit_cast<Bits>(weight * kUnitMass + kRound) - std::bit_cast<uint64_t>(kRound);
}

template <class T>
struct Extremes {
  T max = -std::numeric_limits<T>::infinity();
  bool has_nan = false;
};

template <class T>
Extremes<T> extremes(std::span<const T> row) {
  Extremes<T> found;
  constexpr int64_t kStripe = 256;
  const int64_t size = std::ssize(row), whole = size - size % kStripe;
  const T* x = row.data();
  int32_t has_nan = 0;
  for (int64_t i = 0; i < size; ++i) has_nan |= x[i] != x[i];
  found.has_nan = has_nan != 0;

  T lanes[kStripe];  // many, so that compilers keep the inner loop and vectorise it
  std::fill_n(lanes, kStripe, found.max);
  for (int64_t i = 0; i < whole; i += kStripe) {
    for (int64_t j = 0; j < kStripe; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  for (int64_t i = whole; i < size; ++i) found.max = std::max(found.max, x[i]);
  for (const T lane : lanes) found.max = std::max(found.max, lane);
  return found;
}

// The lowest id whose logit is `max`; the row holds it.
template <class T>
int64_t first_id_of(std::span<const T> row, T max) {
  int64_t start = 0;
  for (; start + 64 <= std::ssize(row); start += 64) {
    int32_t found = 0;
    for (int64_t j = 0; j < 64; ++j) found |= row[start + j] == max;
    if (found) break;
  }
  while (row[start] != max) ++start;
  return start;
}

// log Σ exp(row − max): 16 lanes, then a fixed tree.
double log_sum_exp(std::span<const float> row, double max) {
  Double2 pairs[kLanes / 2] = {};
  const int64_t size = std::ssize(row), whole = size - size % kLanes;
  const float* x = row.data();
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t j = 0; j < kLanes; j += 2) {
      pairs[j / 2] += exp_kernel<Double2, Bits2>(load2(x + i + j) - max);
    }
  }
  auto lanes = std::bit_cast<std::array<double, kLanes>>(pairs);
  for (int64_t i = whole; i < size; ++i) lanes[i - whole] += exp_nonpositive(double{x[i]} - max);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return natural_log(lanes[0]);
}

// The `count` best of the raw logits, best first, ties to the lower id. A masked token (−∞) is
// never among them.
std::vector<TokenLogprob> best_tokens(std::span<const float> row, int64_t count) {
  std::vector<TokenLogprob> best;
  if (count == 0) return best;
  float worst = -std::numeric_limits<float>::infinity();
  const auto above = [](float value, const TokenLogprob& entry) { return value > entry.logprob; };
  for (int64_t i = 0; i < std::ssize(row); ++i) {
    if (!(row[i] > worst)) continue;
    if (std::ssize(best) == count) best.pop_back();
    best.insert(std::upper_bound(best.begin(), best.end(), row[i], above), {i, row[i]});
    if (std::ssize(best) == count) worst = best.back().logprob;
  }
  return best;
}

void report_logprobs(std::span<const float> row, double max, int64_t count, Outcome& outcome) {
  const double log_sum = log_sum_exp(row, max);
  const auto logprob = [&](float x) {
    constexpr double kLowest = std::numeric_limits<float>::lowest();  // a token was not masked
    return static_cast<float>(std::max((double{x} - max) - log_sum, kLowest));
  };
  outcome.logprob = logprob(row[outcome.token_id]);
  outcome.top_logprobs = best_tokens(row, count);
  for (TokenLogprob& entry : outcome.top_logprobs) entry.logprob = logprob(entry.logprob);
}

std::string check_ids(const Settings& settings, int64_t vocab_size) {
  const auto outside = [&](const char* where, int64_t id) {
    return std::string(where) + " holds token " + std::to_string(id) +
           ", outside the model's vocabulary of " + std::to_string(vocab_size);
  };
  for (const Bias& bias : settings.logit_bias) {
    if (bias.token_id < 0 || bias.token_id >= vocab_size) {
      return outside("logit_bias", bias.token_id);
    }
  }
  for (const int64_t id : settings.history) {
    if (id < 0 || id >= vocab_size) return outside("history", id);
  }
  if (settings.num_prompt_tokens < 0 || settings.num_prompt_tokens > std::ssize(settings.history)) {
    return "num_prompt_tokens is outside the history";
  }
  return {};
}

bool adjusts(const Settings& settings) {
  const bool penalises = settings.repetition_penalty != 1.0 || settings.presence_penalty != 0.0 ||
                         settings.frequency_penalty != 0.0;
  return !settings.logit_bias.empty() || (penalises && !settings.history.empty());
}

// Bias, repetition, frequency, presence, in this order and in float64. Ids were checked.
std::vector<double> adjusted(std::span<const float> row, const Settings& settings) {
  std::vector<double> logits(row.begin(), row.end());
  for (const Bias& bias : settings.logit_bias) logits[bias.token_id] += bias.value;
  struct Uses {
    bool anywhere;
    int32_t in_output;
  };
  std::vector<Uses> uses(row.size(), Uses{false, 0});
  for (int64_t i = 0; i < std::ssize(settings.history); ++i) {
    Uses& token = uses[settings.history[i]];
    token.anywhere = true;
    token.in_output += i >= settings.num_prompt_tokens;
  }
  for (size_t id = 0; id < row.size(); ++id) {
    if (!uses[id].anywhere) continue;
    double x = logits[id];
    x = x > 0 ? x / settings.repetition_penalty : x * settings.repetition_penalty;
    if (uses[id].in_output > 0) {
      x -= settings.frequency_penalty * uses[id].in_output;
      x -= settings.presence_penalty;
    }
    logits[id] = x;
  }
  return logits;
}

// What the filters work on: logits give the order, masses the probabilities.
template <class T>
struct Distribution {
  std::span<const T> logits;
  double max;
  double temperature;
  std::vector<uint64_t>& masses;
};

struct Candidate {
  double logit;
  int64_t token_id;
  uint64_t mass;

  bool operator<(const Candidate& other) const {  // ranks before
    return logit > other.logit || (logit == other.logit && token_id < other.token_id);
  }
};

// mass = round(2⁴³ · exp((logit − max) / temperature)).
template <class T>
void fill_masses(const Distribution<T>& d) {
  const T* logits = d.logits.data();
  uint64_t* masses = d.masses.data();
  const double max = d.max, temperature = d.temperature;
  const int64_t size = std::ssize(d.logits), whole = size - size % 2;
  for (int64_t i = 0; i < whole; i += 2) {
    const Bits2 pair = mass_kernel<Double2, Bits2>(load2(logits + i), max, temperature);
    masses[i] = pair[0];
    masses[i + 1] = pair[1];
  }
  if (whole < size) {
    masses[whole] = mass_kernel<double, uint64_t>(logits[whole], max, temperature);
  }
}

uint64_t sum(std::span<const uint64_t> masses) {
  uint64_t total = 0;
  for (const uint64_t mass : masses) total += mass;
  return total;
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

// Keep the shortest beginning in rank order (logit falling, then id rising) whose weights reach
// `needed`; the others get mass 0. All weights together reach it. Buckets of 1/16 in the exponent
// (a mass is 0 from about 30.5 on) find the few tokens among which the cut must be.
template <class T, class Weight>
void keep_beginning(const Distribution<T>& d, uint64_t needed, Weight weight) {
  constexpr int64_t kBuckets = 512;
  const double scale = 16.0 / d.temperature;
  const auto bucket_of = [&](int64_t i) {
    return static_cast<int64_t>(std::min((d.max - double{d.logits[i]}) * scale, kBuckets - 1.0));
  };
  const int64_t size = std::ssize(d.logits);
  uint64_t buckets[kBuckets] = {};
  for (int64_t i = 0; i < size; ++i) {
    if (d.masses[i] > 0) buckets[bucket_of(i)] += weight(d.masses[i]);
  }
  int64_t bucket = 0;
  for (; buckets[bucket] < needed; ++bucket) needed -= buckets[bucket];

  std::vector<Candidate> candidates;
  for (int64_t i = 0; i < size; ++i) {
    if (d.masses[i] > 0 && bucket_of(i) == bucket) {
      candidates.push_back({double{d.logits[i]}, i, d.masses[i]});
    }
  }
  const Candidate last = last_needed(candidates, needed, weight);
  for (int64_t i = 0; i < size; ++i) {
    const double logit = double{d.logits[i]};
    const bool dropped = (logit < last.logit) | ((logit == last.logit) & (i > last.token_id));
    d.masses[i] = dropped ? 0 : d.masses[i];
  }
}

template <class T>
void keep_top_k(const Distribution<T>& d, int64_t top_k) {
  const auto count = [](uint64_t mass) { return uint64_t{mass > 0}; };
  uint64_t available = 0;
  for (const uint64_t mass : d.masses) available += count(mass);
  if (static_cast<uint64_t>(top_k) < available) {
    keep_beginning(d, static_cast<uint64_t>(top_k), count);
  }
}

template <class T>
void keep_top_p(const Distribution<T>& d, double top_p) {
  const uint64_t total = sum(d.masses);
  const auto share = static_cast<uint64_t>(std::ceil(top_p * static_cast<double>(total)));
  keep_beginning(d, std::clamp(share, uint64_t{1}, total), [](uint64_t mass) { return mass; });
}

// The best token's mass is 2⁴³, whatever was dropped before.
void keep_min_p(std::vector<uint64_t>& masses, double min_p) {
  const auto least = static_cast<uint64_t>(std::ceil(min_p * kUnitMass));
  for (uint64_t& mass : masses) mass = mass < least ? 0 : mass;
}

template <class T>
std::vector<uint64_t> filtered_masses(std::span<const T> logits, T max, const Settings& settings) {
  std::vector<uint64_t> masses(logits.size());
  const Distribution<T> d{logits, double{max}, settings.temperature, masses};
  fill_masses(d);
  if (settings.top_k > 0) keep_top_k(d, settings.top_k);
  if (settings.top_p < 1.0) keep_top_p(d, settings.top_p);
  if (settings.min_p > 0.0) keep_min_p(masses, settings.min_p);
  return masses;
}

std::string check_logits(bool has_nan, double max) {
  if (has_nan) return "logits hold NaN";
  if (max == kInfinity) return "logits hold +infinity";
  if (max == -kInfinity) return "every logit is -infinity";
  return {};
}

// Everything that depends on whether the logits are the raw ones or adjusted ones.
template <class T, class Use>
std::string with_checked_max(std::span<const T> logits, Use use) {
  const Extremes<T> found = extremes(logits);
  std::string error = check_logits(found.has_nan, found.max);
  if (error.empty()) use(logits, found.max);
  return error;
}

template <class Use>
std::string with_final_logits(std::span<const float> row, const Settings& settings, Use use) {
  std::string error = check_ids(settings, std::ssize(row));
  if (!error.empty()) return error;
  if (!adjusts(settings)) return with_checked_max(row, use);
  error = with_checked_max(row, [](auto, auto) {});
  if (!error.empty()) return error;
  const std::vector<double> logits = adjusted(row, settings);
  error = with_checked_max(std::span<const double>(logits), use);
  return error.empty() ? error : "after penalties: " + error;
}

// Kept out of line, so that no arithmetic moves out of its caller's DefaultFloatMode.
[[gnu::noinline]] void sample_row_in_mode(std::span<const float> row, const Settings& settings,
                                          uint64_t bits, int64_t num_logprobs, Outcome& outcome) {
  outcome.error = with_final_logits(row, settings, [&](auto logits, auto max) {
    outcome.token_id = settings.temperature < kGreedyBelow
                           ? first_id_of(logits, max)
                           : drawn(filtered_masses(logits, max, settings), bits);
  });
  if (!outcome.error.empty() || num_logprobs < 0) return;
  report_logprobs(row, double{extremes(row).max}, num_logprobs, outcome);
}

[[gnu::noinline]] void row_masses_in_mode(std::span<const float> row, const Settings& settings,
                                          std::vector<uint64_t>& masses, std::string& error) {
  error = with_final_logits(row, settings, [&](auto logits, auto max) {
    masses = filtered_masses(logits, max, settings);
  });
}

[[gnu::noinline]] void token_logprob_in_mode(std::span<const float> row, int64_t token_id,
                                             double& logprob, std::string& error) {
  error = with_checked_max(row, [&](auto logits, auto max) {
    logprob = (double{logits[token_id]} - double{max}) - log_sum_exp(logits, double{max});
  });
}

}  // namespace

int64_t drawn(std::span<const uint64_t> masses, uint64_t bits) {
  const auto product = static_cast<unsigned __int128>(bits) * sum(masses);
  const auto target = static_cast<uint64_t>(product >> 64);  // 0 … sum − 1, each as likely
  constexpr size_t kBlock = 256;
  uint64_t passed = 0;
  size_t id = 0;
  for (; id + kBlock <= masses.size(); id += kBlock) {
    const uint64_t block = sum(masses.subspan(id, kBlock));
    if (passed + block > target) break;
    passed += block;
  }
  while (passed + masses[id] <= target) passed += masses[id++];
  return static_cast<int64_t>(id);
}

Outcome sample_row(std::span<const float> logits, const Settings& settings, uint64_t seed,
                   uint64_t position, int64_t num_logprobs) {
  const DefaultFloatMode mode;
  Outcome outcome;
  sample_row_in_mode(logits, settings, random_bits(seed, position), num_logprobs, outcome);
  return outcome;
}

double token_logprob(std::span<const float> logits, int64_t token_id, std::string& error) {
  const DefaultFloatMode mode;
  double logprob = 0.0;
  if (token_id < 0 || token_id >= std::ssize(logits)) {
    error = "token " + std::to_string(token_id) + " is outside the row";
  } else {
    token_logprob_in_mode(logits, token_id, logprob, error);
  }
  return logprob;
}

std::vector<uint64_t> row_masses(std::span<const float> logits, const Settings& settings,
                                 std::string& error) {
  const DefaultFloatMode mode;
  std::vector<uint64_t> masses;
  row_masses_in_mode(logits, settings, masses, error);
  return masses;
}

}  // namespace firsthand::sampler
