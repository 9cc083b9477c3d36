#include "sampler.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>

#include "kernels.hpp"
#include "sampler_filters.hpp"
#include "sampler_math.hpp"

namespace firsthand::sampler {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The `count` best of the raw logits, best first, ties to the lower id. A masked token (−∞) is
// never among them.
std::vector<TokenLogprob> best_tokens(std::span<const float> row, const RowKernels& kernels,
                                      int64_t count) {
  std::vector<TokenLogprob> best;
  if (count == 0) return best;
  const int64_t size = std::ssize(row);
  std::vector<float> maxima(static_cast<size_t>((size + kGroup - 1) / kGroup));
  kernels.raw.group_maxima(row.data(), size, maxima.data());
  float worst = -std::numeric_limits<float>::infinity();
  const auto above = [](float value, const TokenLogprob& entry) { return value > entry.logprob; };
  for (int64_t group = 0; group < std::ssize(maxima); ++group) {
    if (!(maxima[group] > worst)) continue;
    for (int64_t i = group * kGroup; i < std::min(size, (group + 1) * kGroup); ++i) {
      if (!(row[i] > worst)) continue;
      if (std::ssize(best) == count) best.pop_back();
      best.insert(std::upper_bound(best.begin(), best.end(), row[i], above), {i, row[i]});
      if (std::ssize(best) == count) worst = best.back().logprob;
    }
  }
  return best;
}

void report_logprobs(std::span<const float> row, double max, const RowKernels& kernels,
                     int64_t count, Outcome& outcome) {
  const double log_sum = natural_log(kernels.sum_exp(row.data(), std::ssize(row), max));
  const auto logprob = [&](float x) {
    constexpr double kLowest = std::numeric_limits<float>::lowest();  // a token was not masked
    return static_cast<float>(std::max((double{x} - max) - log_sum, kLowest));
  };
  outcome.logprob = logprob(row[outcome.token_id]);
  outcome.top_logprobs = best_tokens(row, kernels, count);
  for (TokenLogprob& entry : outcome.top_logprobs) entry.logprob = logprob(entry.logprob);
}

std::string check_draw(const Draw& draw, int64_t vocab_size) {
  const auto outside = [&](const char* where, int64_t id) {
    return std::string(where) + " holds token " + std::to_string(id) +
           ", outside the model's vocabulary of " + std::to_string(vocab_size);
  };
  if (!draw.in_range) return "seed and position must be at least 0 and below 2**64";
  for (const Bias& bias : draw.settings->logit_bias) {
    if (bias.token_id < 0 || bias.token_id >= vocab_size) {
      return outside("logit_bias", bias.token_id);
    }
  }
  for (const int64_t id : draw.history) {
    if (id < 0 || id >= vocab_size) return outside("history", id);
  }
  if (!draw.mask.empty() && std::ssize(draw.mask) != mask_words(vocab_size)) {
    return "the mask has another length than the row";
  }
  if (draw.num_prompt_tokens < 0 || draw.num_prompt_tokens > std::ssize(draw.history)) {
    return "num_prompt_tokens is outside the history";
  }
  return {};
}

std::string check_peak(const Peak& peak) {
  if (peak.has_nan) return "logits hold NaN";
  if (peak.max == kInfinity) return "logits hold +infinity";
  if (peak.max == -kInfinity) return "every logit is -infinity";
  return {};
}

// The row, with −∞ for what the mask does not allow.
std::span<const float> masked(std::span<const float> row, std::span<const uint32_t> mask,
                              Scratch& s) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  s.masked.resize(row.size());
  for (int64_t word = 0; word < std::ssize(mask); ++word) {
    const int64_t first = word * kMaskBits;
    const int64_t count = std::min(std::ssize(row) - first, kMaskBits);
    float* const to = s.masked.data() + first;
    // Most words are of one kind, all allowed or none.
    if (std::popcount(mask[word]) > kMaskBits / 2) {
      std::copy_n(row.data() + first, count, to);
      for (uint32_t rest = ~mask[word]; rest != 0; rest &= rest - 1) {
        const int bit = std::countr_zero(rest);
        if (bit < count) to[bit] = kNever;
      }
    } else {
      std::fill_n(to, count, kNever);
      for (uint32_t rest = mask[word]; rest != 0; rest &= rest - 1) {
        const int bit = std::countr_zero(rest);
        if (bit < count) to[bit] = row[first + bit];
      }
    }
  }
  return s.masked;
}

bool adjusts(const Draw& draw) {
  return !draw.settings->logit_bias.empty() ||
         (draw.settings->penalises() && !draw.history.empty());
}

// Bias, repetition, frequency, presence, in this order and in float64. Ids were checked.
std::span<const double> adjusted(std::span<const float> row, const Draw& draw, Scratch& s) {
  const Settings& settings = *draw.settings;
  s.adjusted.assign(row.begin(), row.end());
  for (const Bias& bias : settings.logit_bias) s.adjusted[bias.token_id] += bias.value;
  s.uses.resize(row.size());
  for (int64_t i = 0; i < std::ssize(draw.history); ++i) {
    int32_t& uses = s.uses[draw.history[i]];
    uses = std::max(uses, 1) + (i >= draw.num_prompt_tokens);
  }
  for (const int64_t id : draw.history) {
    if (s.uses[id] == 0) continue;  // done
    double& x = s.adjusted[id];
    x = x > 0 ? x / settings.repetition_penalty : x * settings.repetition_penalty;
    if (s.uses[id] > 1) {
      x -= settings.frequency_penalty * (s.uses[id] - 1);
      x -= settings.presence_penalty;
    }
    s.uses[id] = 0;
  }
  return s.adjusted;
}

// Which of `masses` the target falls into, and how far into it.
struct Place {
  int64_t index;
  uint64_t rest;
};

Place place_of(std::span<const uint64_t> masses, uint64_t target) {
  int64_t index = 0;
  while (masses[index] <= target) target -= masses[index++];
  return {index, target};
}

// bits / 2⁶⁴ of the sum: 0 … sum − 1, each as likely.
uint64_t target_of(uint64_t sum, uint64_t bits) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(bits) * sum >> 64);
}

// From a whole row: first the block, then the token.
template <class T>
int64_t drawn_from_all(const Row<T>& row, uint64_t bits, Scratch& s) {
  const int64_t size = std::ssize(row.logits);
  s.sums.resize(static_cast<size_t>((size + kBlock - 1) / kBlock));
  const uint64_t total = row.loops.block_masses(row.logits.data(), size, row.scale, s.sums.data());
  const Place block = place_of(s.sums, target_of(total, bits));
  const int64_t first = block.index * kBlock;
  uint64_t masses[kBlock];
  row.loops.masses(row.logits.data() + first, std::min(kBlock, size - first), row.scale, masses);
  return first + place_of(masses, block.rest).index;
}

template <class T>
int64_t chosen(std::span<const T> logits, const RowLoops<T>& loops, const Peak& peak,
               const RowKernels& kernels, const Draw& draw, Scratch& s) {
  const Settings& settings = *draw.settings;
  if (settings.temperature < kGreedyBelow) return peak.first;
  const Row<T> row{logits, {peak.max, settings.temperature}, loops};
  const uint64_t bits = random_bits(draw.seed, draw.position);
  if (!filter(row, kernels.adjusted, settings, s)) return drawn_from_all(row, bits, s);
  return s.ids[drawn(s.masses, bits)];
}

// The final logits of a row: use(logits, loops, peak), unless there is an error. `raw` is set.
template <class Use>
std::string with_final_logits(std::span<const float> row, const Draw& draw,
                              const RowKernels& kernels, Scratch& s, Peak& raw, Use use) {
  std::string error = check_draw(draw, std::ssize(row));
  if (!error.empty()) return error;
  raw = kernels.raw.peak(row.data(), std::ssize(row));
  error = check_peak(raw);
  if (!error.empty()) return error;
  std::span<const float> allowed = row;
  Peak best = raw;
  if (!draw.mask.empty()) {
    allowed = masked(row, draw.mask, s);
    best = kernels.raw.peak(allowed.data(), std::ssize(allowed));
    if (best.max == -kInfinity) return "the mask leaves no token";
  }
  if (!adjusts(draw)) {
    use(allowed, kernels.raw, best);
    return error;
  }
  const std::span<const double> logits = adjusted(allowed, draw, s);
  const Peak peak = kernels.adjusted.peak(logits.data(), std::ssize(logits));
  error = check_peak(peak);
  if (!error.empty()) return "after penalties: " + error;
  use(logits, kernels.adjusted, peak);
  return error;
}

// Kept out of line, so that no arithmetic moves out of its caller's DefaultFloatMode.
[[gnu::noinline]] void sample_row_in_mode(std::span<const float> row, const Draw& draw,
                                          const RowKernels& kernels, Scratch& s, Outcome& outcome) {
  Peak raw{};
  outcome.error = with_final_logits(
      row, draw, kernels, s, raw, [&](auto logits, const auto& loops, const Peak& peak) {
        outcome.token_id = chosen(logits, loops, peak, kernels, draw, s);
      });
  if (!outcome.error.empty() || draw.settings->num_logprobs < 0) return;
  report_logprobs(row, raw.max, kernels, draw.settings->num_logprobs, outcome);
}

template <class T>
void fill_row_masses(std::span<const T> logits, const RowLoops<T>& loops, const Peak& peak,
                     const RowKernels& kernels, const Settings& settings,
                     std::vector<uint64_t>& masses) {
  Scratch s;
  const Row<T> row{logits, {peak.max, settings.temperature}, loops};
  masses.assign(logits.size(), 0);
  if (filter(row, kernels.adjusted, settings, s)) {
    for (size_t i = 0; i < s.ids.size(); ++i) masses[s.ids[i]] = s.masses[i];
  } else {
    loops.masses(logits.data(), std::ssize(logits), row.scale, masses.data());
  }
}

[[gnu::noinline]] void row_masses_in_mode(std::span<const float> row, const Draw& draw,
                                          const RowKernels& kernels, std::vector<uint64_t>& masses,
                                          std::string& error) {
  Scratch s;
  Peak raw{};
  error = with_final_logits(row, draw, kernels, s, raw,
                            [&](auto logits, const auto& loops, const Peak& peak) {
                              fill_row_masses(logits, loops, peak, kernels, *draw.settings, masses);
                            });
}

[[gnu::noinline]] void token_logprob_in_mode(std::span<const float> row, int64_t token_id,
                                             const RowKernels& kernels, double& logprob,
                                             std::string& error) {
  const Peak peak = kernels.raw.peak(row.data(), std::ssize(row));
  error = check_peak(peak);
  if (!error.empty()) return;
  const double log_sum = natural_log(kernels.sum_exp(row.data(), std::ssize(row), peak.max));
  logprob = (double{row[token_id]} - peak.max) - log_sum;
}

// A row that does not find the memory it needs ends alone, with an error.
void sample_one(std::span<const float> row, const Draw& draw, const RowKernels& kernels, Scratch& s,
                Outcome& outcome) noexcept {
  const DefaultFloatMode mode;
  try {
    sample_row_in_mode(row, draw, kernels, s, outcome);
  } catch (const std::bad_alloc&) {
    outcome = Outcome{};
    outcome.error = "out of memory";
    s = Scratch{};
  }
}

}  // namespace

const RowKernels& choose_row_kernels(const char* forced) {
  const RowKernels* tables[] = {
      &portable::row_kernels,
#if defined(__x86_64__)
      &avx2::row_kernels,
      &avx512::row_kernels,
#elif defined(__aarch64__)
      &neon::row_kernels,
#endif
  };
  const char* name = choose_kernels(forced).name;
  for (const RowKernels* table : tables) {
    if (std::strcmp(table->name, name) == 0) return *table;
  }
  throw std::invalid_argument(std::string("the sampler has no instruction set ") + name);
}

int64_t drawn(std::span<const uint64_t> masses, uint64_t bits) {
  return place_of(masses, target_of(sum(masses), bits)).index;
}

std::vector<Outcome> sample_rows(const float* logits, int64_t vocab_size,
                                 std::span<const Draw> draws, const RowKernels& kernels,
                                 Threads* threads, std::vector<Scratch>& memory) {
  std::vector<Outcome> outcomes(draws.size());
  memory.resize(std::max(memory.size(),
                         threads == nullptr ? size_t{1} : static_cast<size_t>(threads->count())));
  const auto size = static_cast<size_t>(vocab_size);
  const auto run = [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const std::span<const float> row(logits + i * vocab_size, size);
      sample_one(row, draws[i], kernels, memory[thread], outcomes[i]);
    }
  };
  if (threads == nullptr) {
    run(0, std::ssize(draws), 0);
  } else {
    threads->run(std::ssize(draws), 1, run);
  }
  return outcomes;
}

double token_logprob(std::span<const float> logits, int64_t token_id, const RowKernels& kernels,
                     std::string& error) {
  const DefaultFloatMode mode;
  double logprob = 0.0;
  if (token_id < 0 || token_id >= std::ssize(logits)) {
    error = "token " + std::to_string(token_id) + " is outside the row";
  } else {
    token_logprob_in_mode(logits, token_id, kernels, logprob, error);
  }
  return logprob;
}

std::vector<uint64_t> row_masses(std::span<const float> logits, const Draw& draw,
                                 const RowKernels& kernels, std::string& error) {
  const DefaultFloatMode mode;
  std::vector<uint64_t> masses;
  row_masses_in_mode(logits, draw, kernels, masses, error);
  return masses;
}

}  // namespace firsthand::sampler
