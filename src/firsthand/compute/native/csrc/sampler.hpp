// A row of logits becomes a token.
//
// Owns: every step from logits to a token, and the random number of a draw. One thread, one row;
// the result depends on the arguments alone, to the last bit.
// May not know: Python, the plan, other rows, where logits come from.
// Read next: engine/sampler.py, which states the steps; engine/sampler_reference.py, the same
// steps in a dozen lines each; sampler.cpp; sampler_math.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace firsthand::sampler {

// Below this temperature a row is greedy: no quotient of logits can then overflow.
constexpr double kGreedyBelow = 1e-5;

// A probability is held as a whole number, its mass: the best token's is 2⁴³. Sums of masses are
// exact, so no order of summation, no lane and no thread can change a draw.
constexpr int kMassBits = 43;
constexpr int64_t kMaxVocab = int64_t{1} << 20;  // then a whole row's mass is at most 2⁶³

struct Bias {
  int64_t token_id;
  double value;
};

struct TokenLogprob {
  int64_t token_id;
  float logprob;
};

struct Settings {
  double temperature;
  int64_t top_k;  // 0: off
  double top_p;   // 1: off
  double min_p;   // 0: off
  double repetition_penalty;
  double presence_penalty;
  double frequency_penalty;
  std::span<const Bias> logit_bias;
  std::span<const int64_t> history;  // prompt, then output
  int64_t num_prompt_tokens;
};

struct Outcome {
  int64_t token_id = -1;
  float logprob = 0.0f;                    // set when num_logprobs ≥ 0
  std::vector<TokenLogprob> top_logprobs;  // best first
  std::string error;                       // not empty: no token
};

// The token, and on num_logprobs ≥ 0 its logprob and those of the num_logprobs best, from the raw
// logits. Bad logits, or ids outside the row, give an error in the outcome. 1 ≤ V ≤ kMaxVocab.
Outcome sample_row(std::span<const float> logits, const Settings& settings, uint64_t seed,
                   uint64_t position, int64_t num_logprobs);

// The log-probability of a token by the raw logits, as float64; −infinity for a masked token. On
// bad logits, or an id outside the row, `error` is set. 1 ≤ V ≤ kMaxVocab.
double token_logprob(std::span<const float> logits, int64_t token_id, std::string& error);

// The masses (V,) from which a row's token is drawn; 0 for every token that a filter dropped.
// Empty, with `error` set, where sample_row would give that error. Temperature ≥ kGreedyBelow.
std::vector<uint64_t> row_masses(std::span<const float> logits, const Settings& settings,
                                 std::string& error);

// The inverse of the cumulative masses, in the order of ids, at bits / 2⁶⁴ of their sum, which is
// at least 1.
int64_t drawn(std::span<const uint64_t> masses, uint64_t bits);

}  // namespace firsthand::sampler
