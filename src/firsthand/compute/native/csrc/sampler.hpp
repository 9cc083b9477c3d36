// Rows of logits become tokens.
//
// Owns: every step from logits to a token, and the random number of a draw. A row's result depends
// on its own arguments alone, to the last bit: not on other rows, threads, or the instruction set.
// May not know: Python, the plan, where logits come from.
// Read next: engine/sampler.py, which states the steps; engine/sampler_reference.py, the same
// steps in a dozen lines each; sampler.cpp; sampler_kernels.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sampler_kernels.hpp"
#include "threads.hpp"

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

// What a request asks for; the same for each of its rows.
struct Settings {
  double temperature;
  int64_t top_k;  // 0: off
  double top_p;   // 1: off
  double min_p;   // 0: off
  double repetition_penalty;
  double presence_penalty;
  double frequency_penalty;
  std::vector<Bias> logit_bias;
  int64_t num_logprobs;  // −1: none, not even the token's own

  bool penalises() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
};

struct Draw {
  const Settings* settings;
  std::vector<int64_t> history;  // prompt, then output; looked at by penalties only
  int64_t num_prompt_tokens = 0;
  uint64_t seed = 0;
  uint64_t position = 0;
  bool in_range = true;  // false: seed or position does not fit into 64 bits
  // A bit per token, the lowest of a word first: those that may be drawn. Empty: all of them.
  std::span<const uint32_t> mask{};
};

constexpr int64_t kMaskBits = 32;

// Words of the mask of a row.
constexpr int64_t mask_words(int64_t vocab_size) {
  return (vocab_size + kMaskBits - 1) / kMaskBits;
}

struct Outcome {
  int64_t token_id = -1;
  float logprob = 0.0f;                    // set when num_logprobs ≥ 0
  std::vector<TokenLogprob> top_logprobs;  // best first
  std::string error;                       // not empty: no token
};

struct Candidate {
  double logit;
  int32_t token_id;
  uint64_t mass;

  bool operator<(const Candidate& other) const {  // ranks before
    return logit > other.logit || (logit == other.logit && token_id < other.token_id);
  }
};

// The memory of one thread. It grows to what a row needs, and tells nothing about the next row.
struct Scratch {
  std::vector<int32_t> ids;      // of the tokens that are left, rising
  std::vector<double> logits;    // theirs
  std::vector<uint64_t> masses;  // theirs
  std::vector<Candidate> candidates;
  std::vector<uint64_t> sums;    // of the blocks of a whole row
  std::vector<float> masked;     // a row of which a mask allows a part
  std::vector<double> adjusted;  // a row after penalties
  std::vector<int32_t> uses;     // by token id: 1 + its count in the output; 0 between rows
};

// One outcome per row of logits (draws, V). Bad logits, or ids outside the row, give an error in
// the row's outcome. Without threads, on the calling one. `memory` gets one entry per thread: kept
// from call to call, its pages need not come anew. 1 ≤ V ≤ kMaxVocab.
std::vector<Outcome> sample_rows(const float* logits, int64_t vocab_size,
                                 std::span<const Draw> draws, const RowKernels& kernels,
                                 Threads* threads, std::vector<Scratch>& memory);

// The log-probability of a token by the raw logits, as float64; −infinity for a masked token. On
// bad logits, or an id outside the row, `error` is set. 1 ≤ V ≤ kMaxVocab.
double token_logprob(std::span<const float> logits, int64_t token_id, const RowKernels& kernels,
                     std::string& error);

// The masses (V,) from which a row's token is drawn; 0 for every token that a filter dropped.
// Empty, with `error` set, where sample_rows would give that error. Temperature ≥ kGreedyBelow.
std::vector<uint64_t> row_masses(std::span<const float> logits, const Draw& draw,
                                 const RowKernels& kernels, std::string& error);

// The inverse of the cumulative masses, in the order of ids, at bits / 2⁶⁴ of their sum, which is
// at least 1.
int64_t drawn(std::span<const uint64_t> masses, uint64_t bits);

}  // namespace firsthand::sampler
