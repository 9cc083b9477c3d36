// A plan as it is put together: every operator checked, and the memory of a step laid out.
#include "plan.hpp"

#include <algorithm>
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

}  // namespace

int64_t stride_of(const std::vector<WeightRef>& weights) {
  int64_t stride = 0;
  for (const WeightRef& w : weights) stride = std::max(stride, padded_columns(*w));
  return round_up(stride, 16);
}

Plan::Plan(int64_t max_tokens, int64_t max_logit_rows, int64_t vocab, int64_t num_positions,
           std::vector<RotaryTable> tables, std::shared_ptr<Threads> threads,
           const Kernels& kernels)
    : max_tokens_(max_tokens),
      max_logit_rows_(max_logit_rows),
      vocab_(vocab),
      num_positions_(num_positions),
      d_(tables.empty() ? 0 : static_cast<int>(2 * tables[0].frequencies.size())),
      tables_(std::move(tables)),
      threads_(std::move(threads)),
      kernels_(kernels) {
  require(max_tokens > 0 && max_logit_rows > 0 && vocab > 0 && num_positions > 0,
          "sizes must be above 0");
  require(d_ > 0 && d_ <= kMaxHead, "head size must be above 0 and at most 512");
  for (const RotaryTable& table : tables_)
    require(static_cast<int>(2 * table.frequencies.size()) == d_, "rotary tables differ in size");
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

// Memory for the rows of a value in every form that these weights read.
void Plan::reserve(const std::vector<WeightRef>& weights, int64_t rows, bool as_floats) {
  const int64_t count = rows * stride_of(weights);
  if (as_floats) prepared_floats_ = std::max(prepared_floats_, count);
  for (const WeightRef& w : weights) {
    int64_t& most = w->is_float()     ? prepared_floats_
                    : w->is_grouped() ? words_.num_codes
                                      : digits_.num_codes;
    most = std::max(most, count);
  }
}

void Plan::check_table(int table) const {
  require(table >= 0 && table < static_cast<int>(tables_.size()), "no such rotary table");
}

void Plan::check(const StoreOp& op) const {
  require(op.layer >= 0, "store: no such layer");
  check_table(op.table);
  check_widths(width(op.k), {op.v});
  require(width(op.k) % d_ == 0, "store: the width is no multiple of the head size");
}

void Plan::check(const AttendOp& op) const {
  require(op.layer >= 0, "attend: no such layer");
  require(op.num_heads > 0 && op.num_kv_heads > 0 && op.num_heads % op.num_kv_heads == 0,
          "attend: heads must be a multiple of key/value heads");
  require(op.scale > 0.0f && op.cap >= 0.0f && op.window >= 0,
          "attend: scale must be above 0, cap and window not below");
  check_table(op.table);
  check_widths(int64_t{op.num_heads} * d_, {op.q, op.out});
}

void Plan::check(const RouteOp& op) const {
  const int64_t experts = width(op.logits);
  require(experts <= kMaxExperts, "route: at most 1024 experts");
  require(op.top_k > 0 && op.top_k <= experts, "route: top_k must be 1 to the number of experts");
  if (op.shared >= 0) check_widths(1, {op.shared});
  check_widths(experts + (op.shared >= 0 ? 1 : 0), {op.out});
}

void Plan::check(const ExpertsOp& op) const {
  require(op.kind != Activation::none, "experts: an activation is needed");
  require(static_cast<int64_t>(op.experts.size()) == width(op.weights),
          "experts: one for each weight");
  check_widths(width(op.x), {op.out});
  for (const Expert& expert : op.experts) {
    require(expert.gate_up.size() == 2 && expert.down.size() == 1,
            "experts: one gate, up and down each");
    const PackedWeight &gate = *expert.gate_up[0], &up = *expert.gate_up[1],
                       &down = *expert.down[0];
    require(gate.k == width(op.x) && up.k == gate.k && up.n == gate.n && down.k == gate.n &&
                down.n == gate.k,
            "experts: a weight has the wrong shape");
  }
}

void Plan::add_op(Op op) {
  require(!finished_, "the plan is finished");
  if (const auto* embed = std::get_if<EmbedOp>(&op)) {
    require(embed->table->n == vocab_, "embed: the table has no row per token id");
    check_widths(embed->table->k, {embed->out});
  } else if (const auto* norm = std::get_if<NormOp>(&op)) {
    require(norm->num_heads > 0 && width(norm->x) % norm->num_heads == 0 &&
                fits(norm->gain, width(norm->x) / norm->num_heads),
            "norm: gain of the wrong length");
    check_widths(width(norm->x), {norm->out});
  } else if (const auto* linear = std::get_if<LinearOp>(&op)) {
    check(*linear);
    if (linear->logits) head_ = ops_.size();
    // Of a head any row of a step may be asked for: `hidden`.
    reserve(linear->weights, linear->logits ? max_logit_rows_ : max_tokens_, !linear->gain.empty());
    if (linear->logits)
      prepared_floats_ = std::max(prepared_floats_, max_tokens_ * stride_of(linear->weights));
  } else if (const auto* rope = std::get_if<RopeOp>(&op)) {
    check_widths(int64_t{rope->num_heads} * d_, {rope->x, rope->out});
    check_table(rope->table);
  } else if (const auto* store = std::get_if<StoreOp>(&op)) {
    check(*store);
  } else if (const auto* attend = std::get_if<AttendOp>(&op)) {
    check(*attend);
    attend_floats_ =
        std::max(attend_floats_, attend_scratch(d_, attend->num_heads / attend->num_kv_heads));
  } else if (const auto* route = std::get_if<RouteOp>(&op)) {
    check(*route);
  } else if (const auto* experts = std::get_if<ExpertsOp>(&op)) {
    check(*experts);
    expert_width_ = std::max(expert_width_, width(experts->x));
    for (const Expert& expert : experts->experts) {
      reserve(expert.gate_up, max_tokens_, false);
      reserve(expert.down, max_tokens_, false);
      expert_hidden_width_ = std::max(expert_hidden_width_, expert.gate_up[0]->n);
    }
  } else if (const auto* activation = std::get_if<ActivationOp>(&op)) {
    check_widths(width(activation->out), {activation->gate, activation->up});
  } else if (const auto* sum = std::get_if<AddOp>(&op)) {
    check_widths(width(sum->out), {sum->x, sum->y});
  } else if (const auto* receive = std::get_if<ReceiveOp>(&op)) {
    require(received_width_ == 0, "receive: a plan has one");
    received_width_ = width(receive->out);
  } else if (const auto* send = std::get_if<SendOp>(&op)) {
    require(sent_width_ == 0, "send: a plan has one");
    sent_width_ = width(send->x);
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
  const int64_t turns = static_cast<int64_t>(tables_.size()) * max_tokens_ * (d_ / 2);
  cosine_.assign(size(turns), 0.0f);
  sine_.assign(size(turns), 0.0f);
  expert_rows_.assign(size(expert_width_ > 0 ? max_tokens_ : 0), 0);
  expert_hidden_.assign(size(max_tokens_ * expert_hidden_width_ + kSlack), 0.0f);
  expert_out_.assign(size(max_tokens_ * expert_width_ + kSlack), 0.0f);
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
                        sine_.size() + expert_rows_.size() + expert_hidden_.size() +
                        expert_out_.size() + low_rank_.size() + deltas_.size() +
                        adapter_of_.size() + adapter_rows_.size() + delta_rows_.size();
  return static_cast<int64_t>(4 * floats + words_.bytes() + digits_.bytes() + wide_.size() +
                              8 * slots_.size() + sizeof(AttendTile) * tiles_.size());
}

void Plan::check(const Batch& b) const {
  require(finished_, "the plan is not finished");
  require(!layers_.empty(), "no store is bound");
  require(b.num_tokens > 0 && b.num_tokens <= max_tokens_, "batch: too many tokens, or none");
  require((received_width_ > 0) == (b.received != nullptr), "batch: rows received, or missing");
  require((sent_width_ > 0) == (b.sent != nullptr), "batch: room for rows to send, or none");
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
    require(!b.adapters || (b.adapters[s] >= -1 && b.adapters[s] < num_adapters_),
            "batch: no such adapter");
    for (int64_t r = b.row_starts[s] + 1; r < b.row_starts[s + 1]; ++r)
      require(b.positions[r] == b.positions[r - 1] + 1, "batch: positions must be consecutive");
  }
}

}  // namespace firsthand
