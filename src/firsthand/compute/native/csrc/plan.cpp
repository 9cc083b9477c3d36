// Replaying a plan: each operator is one or two calls of a kernel, shared out to the threads.
#include "plan.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

namespace firsthand {

namespace {

constexpr int64_t kSlack = 64;  // floats that a vector access may touch beyond the last row
constexpr int64_t kPartFloats = int64_t{1} << 18;  // for attention in parts: see AttendParts

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

bool fits(const Vector& padded, int64_t length) {
  return static_cast<int64_t>(padded.size()) == round_up(length, 16);
}

int64_t padded_columns(const PackedWeight& w) {
  const int64_t unit = w.is_grouped() ? w.group : 16;
  return round_up(w.k, unit);
}

int64_t stride_of(const LinearOp& op) {
  int64_t stride = 0;
  for (const WeightRef& w : op.weights) stride = std::max(stride, padded_columns(*w));
  return round_up(stride, 16);
}

// Few rows wait for memory: one run of panels per thread, since every new beginning costs the
// prefetcher its lead. Many rows compute: small chunks, so that a slow thread delays little.
int64_t grain_of(int64_t items, int64_t rows, int threads) {
  const int64_t parts = int64_t{threads} * (rows <= 4 ? 1 : 8);
  return round_up((items + parts - 1) / parts, kPanelsTogether);
}

}  // namespace

Plan::Plan(int64_t max_tokens, int64_t max_logit_rows, int64_t vocab, int64_t num_positions,
           std::vector<double> frequencies, double attention_factor,
           std::shared_ptr<Threads> threads, const Kernels& kernels)
    : max_tokens_(max_tokens),
      max_logit_rows_(max_logit_rows),
      vocab_(vocab),
      num_positions_(num_positions),
      d_(static_cast<int>(2 * frequencies.size())),
      frequencies_(std::move(frequencies)),
      attention_factor_(attention_factor),
      threads_(std::move(threads)),
      kernels_(kernels) {
  require(max_tokens > 0 && max_logit_rows > 0 && vocab > 0 && num_positions > 0,
          "sizes must be above 0");
  require(d_ > 0 && d_ <= kMaxHead, "head size must be above 0 and at most 512");
}

int Plan::add_buffer(int64_t offset, int64_t width) {
  require(!finished_, "the plan is finished");
  require(offset >= 0 && width > 0, "bad buffer");
  scratch_floats_ = std::max(scratch_floats_, offset + max_tokens_ * width + kSlack);
  buffers_.push_back({offset, width});
  return static_cast<int>(buffers_.size()) - 1;
}

void Plan::check_widths(int64_t expected, std::initializer_list<int> buffers) const {
  for (int buffer : buffers) require(width(buffer) == expected, "a value has the wrong width");
}

void Plan::check(const LinearOp& op) const {
  require(!op.weights.empty() && op.weights.size() == op.biases.size(),
          "linear: one bias entry per weight");
  require(op.gain.empty() || fits(op.gain, width(op.x)), "linear: gain of the wrong length");
  for (size_t i = 0; i < op.weights.size(); ++i) {
    require(op.weights[i]->k == width(op.x), "linear: the weight's columns differ from the width");
    require(op.biases[i].empty() || fits(op.biases[i], op.weights[i]->n),
            "linear: bias of the wrong length");
  }
  const bool gated = op.gated != Activation::none;
  require(!gated || (op.weights.size() == 2 && op.weights[0]->n == op.weights[1]->n),
          "linear: gated takes two weights of one shape");
  if (op.logits) {
    require(op.outs.empty() && op.weights.size() == 1 && op.weights[0]->n == vocab_,
            "head: one weight with a row per token id");
    return;
  }
  require(op.outs.size() == (gated ? 1 : op.weights.size()), "linear: wrong number of results");
  for (size_t i = 0; i < op.outs.size(); ++i) check_widths(op.weights[i]->n, {op.outs[i]});
  if (op.residual >= 0) check_widths(width(op.outs[0]), {op.residual});
}

void Plan::reserve(const LinearOp& op) {
  const int64_t count = (op.logits ? max_logit_rows_ : max_tokens_) * stride_of(op);
  if (op.logits)  // any row of a step may be asked for: `hidden`
    prepared_floats_ = std::max(prepared_floats_, max_tokens_ * stride_of(op));
  if (!op.gain.empty()) prepared_floats_ = std::max(prepared_floats_, count);
  for (const WeightRef& w : op.weights) {
    int64_t& most = w->is_float()     ? prepared_floats_
                    : w->is_grouped() ? words_.num_codes
                                      : digits_.num_codes;
    most = std::max(most, count);
  }
}

void Plan::check(const StoreOp& op) const {
  require(op.layer >= 0, "store: no such layer");
  check_widths(width(op.k), {op.v});
  require(width(op.k) % d_ == 0, "store: the width is no multiple of the head size");
}

void Plan::check(const AttendOp& op) const {
  require(op.layer >= 0, "attend: no such layer");
  require(op.num_heads > 0 && op.num_kv_heads > 0 && op.num_heads % op.num_kv_heads == 0,
          "attend: heads must be a multiple of key/value heads");
  check_widths(int64_t{op.num_heads} * d_, {op.q, op.out});
}

void Plan::add_op(Op op) {
  require(!finished_, "the plan is finished");
  if (const auto* embed = std::get_if<EmbedOp>(&op)) {
    require(embed->table->n == vocab_, "embed: the table has no row per token id");
    check_widths(embed->table->k, {embed->out});
  } else if (const auto* norm = std::get_if<NormOp>(&op)) {
    require(fits(norm->gain, width(norm->x)), "norm: gain of the wrong length");
    check_widths(width(norm->x), {norm->out});
  } else if (const auto* linear = std::get_if<LinearOp>(&op)) {
    check(*linear);
    if (linear->logits) head_ = ops_.size();
    reserve(*linear);
  } else if (const auto* rope = std::get_if<RopeOp>(&op)) {
    check_widths(int64_t{rope->num_heads} * d_, {rope->x, rope->out});
  } else if (const auto* store = std::get_if<StoreOp>(&op)) {
    check(*store);
  } else if (const auto* attend = std::get_if<AttendOp>(&op)) {
    check(*attend);
    attend_floats_ =
        std::max(attend_floats_, attend_scratch(d_, attend->num_heads / attend->num_kv_heads));
  } else if (const auto* activation = std::get_if<ActivationOp>(&op)) {
    check_widths(width(activation->out), {activation->gate, activation->up});
  } else if (const auto* sum = std::get_if<AddOp>(&op)) {
    check_widths(width(sum->out), {sum->x, sum->y});
  }
  ops_.push_back(std::move(op));
}

void Plan::finish() {
  require(!finished_, "the plan is finished");
  finished_ = true;
  const auto size = [](int64_t count) { return static_cast<size_t>(count); };
  scratch_.assign(size(scratch_floats_), 0.0f);
  logits_.assign(size(max_logit_rows_ * vocab_ + kSlack), 0.0f);
  prepared_f_.assign(size(prepared_floats_ + kSlack), 0.0f);
  words_.assign(kSlack);
  digits_.assign(kSlack);
  wide_.assign(size(digits_.num_codes / 16 + kSlack), 0);
  tiles_.assign(size(max_tokens_), AttendTile{});
  attend_scratch_.assign(size(attend_floats_ * threads_->count()), 0.0f);
  attend_parts_.assign(size(attend_floats_ > 0 && threads_->count() > 1 ? kPartFloats : 0), 0.0f);
  cosine_.assign(size(max_tokens_ * (d_ / 2)), 0.0f);
  sine_.assign(size(max_tokens_ * (d_ / 2)), 0.0f);
  slots_.assign(size(max_tokens_), 0);
}

void Plan::bind_store(std::vector<Cache> layers, int64_t slots) {
  require(!layers.empty() && slots > 0 && slots % kTile == 0, "store: bad shape");
  for (const Op& op : ops_)
    if (const auto* attend = std::get_if<AttendOp>(&op))
      for (const Cache& layer : layers)
        require(attend->num_kv_heads == layer.g && layer.d == d_,
                "store: another number or size of key/value heads than the model has");
  layers_ = std::move(layers);
  num_slots_ = slots;
}

int64_t Plan::scratch_bytes() const {
  const size_t floats = scratch_.size() + logits_.size() + prepared_f_.size() +
                        attend_scratch_.size() + attend_parts_.size() + cosine_.size() +
                        sine_.size();
  return static_cast<int64_t>(4 * floats + words_.bytes() + digits_.bytes() + wide_.size() +
                              8 * slots_.size() + sizeof(AttendTile) * tiles_.size());
}

void Plan::check(const Batch& b) const {
  require(finished_, "the plan is not finished");
  require(!layers_.empty(), "no store is bound");
  require(b.num_tokens > 0 && b.num_tokens <= max_tokens_, "batch: too many tokens, or none");
  require(b.num_logit_rows >= 0 && b.num_logit_rows <= max_logit_rows_,
          "batch: too many logit rows");
  require(
      b.num_sequences > 0 && b.row_starts[0] == 0 && b.row_starts[b.num_sequences] == b.num_tokens,
      "batch: row_starts must run from 0 to the number of tokens");
  for (int64_t s = 0; s < b.num_sequences; ++s)
    require(b.row_starts[s] < b.row_starts[s + 1], "batch: row_starts must rise");
  for (int64_t r = 0; r < b.num_tokens; ++r) {
    require(b.token_ids[r] >= 0 && b.token_ids[r] < vocab_, "batch: token id out of range");
    require(b.positions[r] >= 0 && b.positions[r] < num_positions_, "batch: position out of range");
  }
  for (int64_t i = 0; i < b.num_logit_rows; ++i)
    require(b.logit_rows[i] >= 0 && b.logit_rows[i] < b.num_tokens,
            "batch: logit row out of range");
  require(b.block_size > 0 && b.block_size % kTile == 0,
          "batch: the block size must be a multiple of 16, above 0");
  for (int64_t s = 0; s < b.num_sequences; ++s) {
    const int64_t last = b.positions[b.row_starts[s + 1] - 1];
    const int64_t blocks = last / b.block_size + 1;
    require(blocks <= b.max_blocks, "batch: a sequence has too few blocks");
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t used = i + 1 < blocks ? b.block_size : last % b.block_size + 1;
      const int64_t start = b.block_starts[s * b.max_blocks + i];
      require(start >= 0 && start <= num_slots_ - used, "batch: a block lies outside the store");
      require(start % kTile == 0, "batch: a block must begin at a multiple of 16");
    }
    for (int64_t r = b.row_starts[s] + 1; r < b.row_starts[s + 1]; ++r)
      require(b.positions[r] == b.positions[r - 1] + 1, "batch: positions must be consecutive");
  }
}

// The store slot of each row, and the rotation of its position.
void Plan::locate(const Batch& b) {
  for (int64_t s = 0; s < b.num_sequences; ++s)
    for (int64_t r = b.row_starts[s]; r < b.row_starts[s + 1]; ++r) {
      const int64_t position = b.positions[r];
      slots_[static_cast<size_t>(r)] =
          b.block_starts[s * b.max_blocks + position / b.block_size] + position % b.block_size;
    }
  const RotationCall call{b.positions,    frequencies_.data(), attention_factor_,
                          cosine_.data(), sine_.data(),        d_};
  threads_->run(b.num_tokens, 16,
                [&](int64_t i, int64_t k, int) { kernels_.rotation(call, i, k); });
}

// Rows of each sequence in tiles, from the last one, which has the longest context, to the first.
void Plan::tile(const Batch& b, int64_t heads) {
  const int64_t most = std::max<int64_t>(1, kTileQueries / heads);
  num_tiles_ = 0;
  for (int64_t s = b.num_sequences - 1; s >= 0; --s)
    for (int64_t end = b.row_starts[s + 1]; end > b.row_starts[s];) {
      const int64_t rows = std::min<int64_t>(most, end - b.row_starts[s]);
      end -= rows;
      tiles_[static_cast<size_t>(num_tiles_++)] = {end, static_cast<int32_t>(s),
                                                   static_cast<int32_t>(rows)};
    }
}

void Plan::run_op(const EmbedOp& s, const Batch& b) {
  const EmbedCall call{s.table.get(), b.token_ids, at(s.out)};
  threads_->run(b.num_tokens, 8, [&](int64_t i, int64_t j, int) { kernels_.embed(call, i, j); });
}

void Plan::run_op(const NormOp& s, const Batch& b) {
  const NormCall call{at(s.x), s.gain.data(), at(s.out), width(s.x), s.eps};
  threads_->run(b.num_tokens, 8, [&](int64_t i, int64_t j, int) { kernels_.norm(call, i, j); });
}

// The rows of an operator's input in the form that its product takes: normed, rounded.
Prepared Plan::prepare(const LinearOp& s, const int32_t* row_of, int64_t rows, Forms wanted) {
  const Prepared prepared{words_.view(), digits_.view(), wide_.data(), prepared_f_.data(),
                          stride_of(s)};
  const PrepareCall call{at(s.x), width(s.x), row_of,  s.gain.empty() ? nullptr : s.gain.data(),
                         s.eps,   wanted,     prepared};
  threads_->run(rows, 4, [&](int64_t i, int64_t j, int) { kernels_.prepare(call, i, j); });
  return prepared;
}

void Plan::run_op(const LinearOp& s, const Batch& b) {
  const int64_t rows = s.logits ? b.num_logit_rows : b.num_tokens;
  if (rows == 0) return;
  const auto any = [&](auto wanted) {
    return std::any_of(s.weights.begin(), s.weights.end(),
                       [&](const WeightRef& w) { return wanted(*w); });
  };
  const Prepared prepared =
      prepare(s, s.logits ? b.logit_rows : nullptr, rows,
              {any([](const PackedWeight& w) { return w.is_grouped(); }),
               any([](const PackedWeight& w) { return w.kind == Kind::channel; }),
               any([](const PackedWeight& w) { return w.is_float(); })});

  // The panels of all weights are one row of items, so that q, k and v cost one call of the threads.
  const bool gated = s.gated != Activation::none;
  const size_t num_results = gated ? 1 : s.weights.size();
  int64_t panels = 0;
  for (size_t i = 0; i < num_results; ++i) panels += s.weights[i]->num_panels();
  const auto bias = [&](size_t i) { return s.biases[i].empty() ? nullptr : s.biases[i].data(); };
  threads_->run(
      panels, grain_of(panels, rows, threads_->count()), [&](int64_t begin, int64_t end, int) {
        int64_t first = 0;  // panel of the row of items where weight i begins
        for (size_t i = 0; i < num_results; ++i) {
          const int64_t last = first + s.weights[i]->num_panels();
          if (begin < last && end > first) {
            const LinearCall call{s.weights[i].get(),
                                  gated ? s.weights[1].get() : nullptr,
                                  bias(i),
                                  gated ? bias(1) : nullptr,
                                  s.residual < 0 ? nullptr : at(s.residual),
                                  s.logits ? logits_.data() : at(s.outs[i]),
                                  s.gated,
                                  prepared,
                                  rows};
            kernels_.linear(call, std::max(begin, first) - first, std::min(end, last) - first);
          }
          first = last;
        }
      });
}

void Plan::run_op(const RopeOp& s, const Batch& b) {
  const RopeCall call{at(s.x), at(s.out), s.num_heads, rotation()};
  threads_->run(b.num_tokens, 8, [&](int64_t i, int64_t j, int) { kernels_.rope(call, i, j); });
}

void Plan::run_op(const StoreOp& s, const Batch& b) {
  const StoreCall call{at(s.k), at(s.v), slots_.data(), s.rotate, rotation(), cache(s.layer)};
  threads_->run(b.num_tokens, 8, [&](int64_t i, int64_t j, int) { kernels_.store(call, i, j); });
}

// How many chunks of each tile to compute apart, in one round; 0: each tile is one item. Worth it
// where the tiles alone cannot keep the threads busy, and a context has several chunks.
int64_t Plan::parts_at_once(const AttendOp& s, const Batch& b, int64_t chunks) const {
  const int64_t part = b.num_tokens * s.num_heads * (attend_stride(d_) + 2);
  const int64_t room = static_cast<int64_t>(attend_parts_.size()) / part - 1;
  const bool is_busy = num_tiles_ * s.num_kv_heads >= int64_t{4} * threads_->count();
  return is_busy || chunks < 3 || room < 2 ? 0 : std::min(chunks, room);
}

void Plan::run_op(const AttendOp& s, const Batch& b) {
  tile(b, s.num_heads / s.num_kv_heads);
  const AttendCall call{at(s.q),       at(s.out),      b.positions,
                        tiles_.data(), b.block_starts, b.max_blocks,
                        b.block_size,  s.num_heads,    1.0f / std::sqrt(static_cast<float>(d_)),
                        s.rotate,      rotation(),     cache(s.layer)};
  const int64_t scratch = attend_scratch(d_, s.num_heads / s.num_kv_heads);
  // A short context is done before a second thread has woken.
  const int64_t items = num_tiles_ * s.num_kv_heads;
  int64_t longest = 0;
  for (int64_t i = 0; i < b.num_sequences; ++i)
    longest = std::max<int64_t>(longest, b.positions[b.row_starts[i + 1] - 1] + int64_t{1});
  const int64_t chunks = (longest + kChunk - 1) / kChunk;
  if (const int64_t at_once = parts_at_once(s, b, chunks); at_once > 0) {
    AttendParts parts{attend_parts_.data(), 0, at_once};
    for (; parts.first_chunk < chunks; parts.first_chunk += at_once) {
      threads_->run(items * at_once, 1, [&](int64_t i, int64_t j, int thread) {
        kernels_.attend_part(call, parts, i, j, attend_scratch_.data() + thread * scratch);
      });
      const bool last = parts.first_chunk + at_once >= chunks;
      threads_->run(items, items, [&](int64_t i, int64_t j, int) {
        kernels_.attend_merge(call, parts, last, i, j);
      });
    }
    return;
  }
  const bool is_short = b.num_tokens == 1 && b.positions[0] < 2 * kChunk;
  threads_->run(items, is_short ? items : 1, [&](int64_t i, int64_t j, int thread) {
    kernels_.attend(call, i, j, attend_scratch_.data() + thread * scratch);
  });
}

void Plan::run_op(const ActivationOp& s, const Batch& b) {
  const ActivationCall call{at(s.gate), at(s.up), at(s.out), s.kind};
  const int64_t lanes = (b.num_tokens * width(s.out) + 15) / 16;
  threads_->run(lanes, 256, [&](int64_t i, int64_t j, int) { kernels_.activation(call, i, j); });
}

void Plan::run_op(const AddOp& s, const Batch& b) {
  const int64_t lanes = (b.num_tokens * width(s.out) + 15) / 16;
  threads_->run(lanes, 256, [&](int64_t i, int64_t j, int) {
    kernels_.add(at(s.x), at(s.y), at(s.out), i, j);
  });
}

const float* Plan::run(const Batch& batch, std::vector<double>* times) {
  last_tokens_ = 0;
  check(batch);
  const FlushDenormals flush;
  locate(batch);
  using Clock = std::chrono::steady_clock;
  for (const Op& op : ops_) {
    const Clock::time_point start = times ? Clock::now() : Clock::time_point();
    std::visit([&](const auto& one) { run_op(one, batch); }, op);
    if (times)
      times->push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  last_tokens_ = batch.num_tokens;
  return logits_.data();
}

}  // namespace firsthand
