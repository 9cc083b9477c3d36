// A recorded model as a list of operators, replayed over a batch without Python.
//
// Owns: the operators, the scratch memory (laid out once, by whoever recorded them), the order of
// execution, and how each operator is split into items for the threads.
// May not know: Python, models, who recorded the operators or which were fused.
// Read next: plan.cpp (what is checked), plan_run.cpp (the replay), kernels.hpp (what it calls).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "kernels.hpp"
#include "shards.hpp"
#include "threads.hpp"

namespace firsthand {

using WeightRef = std::shared_ptr<PackedWeight>;
using Vector = std::vector<float>;  // a gain or a bias, padded to 16; empty: none

// Memory whose vectors do not lie across two cache lines.
template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kLine); }
  bool operator==(const LineAllocator&) const = default;
};
template <class T>
using Lines = std::vector<T, LineAllocator<T>>;

// What an adapter adds to a linear operator's result: x · aᵀ · bᵀ, its scale already in b.
struct LowRank {
  WeightRef a, b;  // (rank, k) and (n, rank), float32; null: nothing
};
using Adapters = std::vector<std::vector<LowRank>>;  // of each, one per weight; or none at all
// One of them: of which operator, of which of its weights, a and b.
using AdapterPart = std::tuple<int64_t, int64_t, WeightRef, WeightRef>;

// Buffers are named by their index; −1 is none.
struct EmbedOp {
  WeightRef table;
  float scale;
  int out;
};
// Rows that another plan computed, and rows for another one: where a model is cut.
struct ReceiveOp {
  int out;
};
struct SendOp {
  int x;
};
struct NormOp {
  int x;
  int num_heads;  // each with the same gain
  Vector gain;
  float eps;
  int out;
};
struct LinearOp {
  int x;
  std::vector<WeightRef> weights;
  std::vector<Vector> biases;
  std::vector<int> outs;  // one per weight; gated: one for both
  int residual;
  Vector gain;  // a fused norm, else empty
  float eps;
  Activation gated;  // not none: weights are gate and up
  bool logits;       // only the rows whose logits are wanted, into the logits
  float cap;         // of the logits; 0: none
  Adapters adapters = {};
};
// `table` is which of the rotary frequencies.
struct RopeOp {
  int x;
  int num_heads;
  int table;
  int out;
};
struct StoreOp {
  int layer;
  int k;
  int v;
  bool rotate;
  int table;
};
struct AttendOp {
  int layer;
  int q;
  int out;
  int num_heads;
  int num_kv_heads;
  float scale;
  float cap;
  int64_t window;
  bool rotate;
  int table;
};
struct RouteOp {
  int logits;
  int shared;  // −1: no shared expert
  int out;
  int top_k;
  bool renormalise;
};
struct Expert {
  std::vector<WeightRef> gate_up, down;  // two, and one
  Adapters gate_up_adapters = {}, down_adapters = {};
};
struct ExpertsOp {
  int x;
  int weights;
  int out;
  std::vector<Expert> experts;
  Activation kind;
};
struct ActivationOp {
  int gate;
  int up;
  int out;
  Activation kind;
};
struct AddOp {
  int x;
  int y;
  int out;
};
using Op = std::variant<EmbedOp, NormOp, LinearOp, RopeOp, StoreOp, AttendOp, RouteOp, ExpertsOp,
                        ActivationOp, AddOp, ReceiveOp, SendOp>;

// How fast each of d / 2 pairs turns, and what cos and sin are multiplied by.
struct RotaryTable {
  std::vector<double> frequencies;
  double factor;
};

// What is computed in one run; arrays as in compute/batch.py.
struct Batch {
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* row_starts;
  const int64_t* block_starts;
  const int32_t* logit_rows;
  const int32_t* adapters;  // of each sequence, by number; −1: none. Null: none has one
  int64_t num_tokens, num_sequences, max_blocks, block_size, num_logit_rows;
  const float* received = nullptr;  // (num_tokens, received_width) of a plan that receives
  float* sent = nullptr;            // (num_tokens, sent_width) of one that sends
};

// Columns of a row that all of these weights can read, padded.
int64_t stride_of(const std::vector<WeightRef>& weights);

class Plan {
 public:
  // Positions 0 … num_positions − 1 can occur.
  Plan(int64_t max_tokens, int64_t max_logit_rows, int64_t vocab, int64_t num_positions,
       std::vector<RotaryTable> tables, std::shared_ptr<Threads> threads, const Kernels& kernels);

  int add_buffer(int64_t offset, int64_t width);
  void add_op(Op op);  // throws std::invalid_argument when sizes do not fit
  void receive(int out) { add_op(ReceiveOp{out}); }
  void send(int x) { add_op(SendOp{x}); }
  void finish();  // allocates the scratch; `run` allocates nothing (but for the times)
  void bind_store(std::vector<Cache> layers, int64_t slots);
  // From now on weights come and go with their shards; not between a run and its `logits`.
  void swap(std::unique_ptr<Shards> shards) { shards_ = std::move(shards); }
  const Shards* shards() const { return shards_.get(); }

  // After `finish`, between two runs: one adapter more, whose number is returned. Allocates what its
  // rows need; throws std::invalid_argument, and changes nothing, when a shape does not fit.
  int add_adapter(const std::vector<AdapterPart>& parts);

  // Returns the logits (num_logit_rows, vocab), valid until the next run. `times` gets one entry
  // of milliseconds per operator when it is not null. Throws std::invalid_argument before anything
  // is computed when an index of the batch is out of range. One thread at a time.
  const float* run(const Batch& batch, std::vector<double>* times);

  // Of other rows of the last run, until the next: their logits (count, vocab), valid until the next
  // call; and what the head reads of them, into `out` (count, hidden_width). Throw as `run` does.
  const float* logits(const int32_t* rows, int64_t count);
  void hidden(const int32_t* rows, int64_t count, float* out);
  int64_t hidden_width() const { return width(head().x); }
  // Of the rows that a run is given, and of those that it gives; 0: none.
  int64_t received_width() const { return received_width_; }
  int64_t sent_width() const { return sent_width_; }

  int64_t scratch_bytes() const;
  int64_t vocab() const { return vocab_; }
  const char* isa() const { return kernels_.name; }
  int threads() const { return threads_->count(); }

 private:
  struct Buffer {
    int64_t offset, width;
  };

  float* at(int buffer) { return scratch_.data() + buffers_[static_cast<size_t>(buffer)].offset; }
  int64_t width(int buffer) const { return buffers_.at(static_cast<size_t>(buffer)).width; }
  Rotation rotation(int table) const {
    const int64_t at = table * max_tokens_ * (d_ / 2);
    return {cosine_.data() + at, sine_.data() + at, d_};
  }
  const Cache& cache(int layer) const { return layers_.at(static_cast<size_t>(layer)); }
  const LinearOp& head() const;
  int64_t parts_at_once(const AttendOp&, const Batch&, int64_t chunks) const;
  void check(const LinearOp&) const;
  struct Place {  // what an adapter's part changes: one of weights that read the same rows
    const std::vector<WeightRef>* weights;
    Adapters* adapters;
    size_t which;
    int64_t max_rows;
  };
  Place place_of(const AdapterPart&);
  void reserve(const std::vector<WeightRef>& weights, int64_t rows, bool as_floats);
  void check(const StoreOp&) const;
  void check(const AttendOp&) const;
  void check(const RouteOp&) const;
  void check(const ExpertsOp&) const;
  void check_table(int table) const;
  void check_widths(int64_t width, std::initializer_list<int> buffers) const;
  void check(const Batch& batch) const;
  void check_rows(const int32_t* rows, int64_t count, int64_t most) const;
  void locate(const Batch& batch);
  void replay(size_t first, const Batch& batch, std::vector<double>* times);
  PrepareCall reading(const float* x, int64_t k, const std::vector<WeightRef>& weights);
  PrepareCall reading(const LinearOp& op, const int32_t* row_of);
  Prepared prepare(const PrepareCall& call, int64_t rows);
  void multiply(const LinearCall& call);
  void adapt(const std::vector<WeightRef>& weights, const Adapters& adapters, PrepareCall x,
             const int32_t* owners, int64_t rows);
  Delta delta(const std::vector<WeightRef>& weights, const Adapters& adapters, size_t which,
              int64_t rows) const;
  void tile(const Batch& batch, int64_t heads);

  void run_op(const EmbedOp&, const Batch&);
  void run_op(const NormOp&, const Batch&);
  void run_op(const LinearOp&, const Batch&);
  void run_op(const RopeOp&, const Batch&);
  void run_op(const StoreOp&, const Batch&);
  void run_op(const AttendOp&, const Batch&);
  void run_op(const RouteOp&, const Batch&);
  void run_op(const ExpertsOp&, const Batch&);
  void run_op(const ActivationOp&, const Batch&);
  void run_op(const AddOp&, const Batch&);
  void run_op(const ReceiveOp&, const Batch&);
  void run_op(const SendOp&, const Batch&);

  int64_t max_tokens_, max_logit_rows_, vocab_, num_positions_;
  int d_;
  std::vector<RotaryTable> tables_;
  std::shared_ptr<Threads> threads_;
  const Kernels& kernels_;

  std::vector<Buffer> buffers_;
  std::vector<Op> ops_;
  int64_t scratch_floats_ = 0, prepared_floats_ = 0;
  int64_t received_width_ = 0, sent_width_ = 0;
  size_t head_ = 0;          // which operator; 0: none yet, for the first one is no head
  int64_t last_tokens_ = 0;  // rows of the last run; 0: there is none whose values are whole
  bool finished_ = false;

  Lines<float> scratch_, logits_, prepared_f_, cosine_, sine_;
  struct
      Rows {  // the memory of Rounded; a row has 16 codes or more, so one of these for 16 is enough
    int64_t num_codes = 0;
    Lines<int8_t> q;
    std::vector<float> scale;
    std::vector<int32_t> sums;
    void assign(size_t slack) {
      const size_t count = static_cast<size_t>(num_codes);
      q.assign(2 * count + slack, 0);
      scale.assign(count / 16, 0.0f);
      sums.assign(count / 16 + slack, 0);
    }
    size_t bytes() const { return q.size() + 4 * (scale.size() + sums.size()); }
    Rounded view() { return {q.data(), scale.data(), sums.data()}; }
  };
  Rows words_, digits_;
  std::vector<uint8_t> wide_;
  std::vector<int64_t> slots_;
  std::vector<AttendTile> tiles_;
  Lines<float> attend_scratch_, attend_parts_;
  int64_t attend_floats_ = 0, num_tiles_ = 0;
  // Of the expert that is being computed: whose rows, its hidden values, its results.
  std::vector<int32_t> expert_rows_;
  std::vector<float> expert_hidden_, expert_out_;
  int64_t expert_hidden_width_ = 0, expert_width_ = 0;

  // Adapters: of each row of the last run, its own (−1: none); and for the operator that is being
  // computed: the rows of one of them, where each row's values are, for each weight, the hidden
  // values, and what is added.
  int num_adapters_ = 0;
  bool adapted_ = false;  // whether any row has one
  std::vector<int32_t> adapter_of_, adapter_rows_, delta_rows_;
  Lines<float> low_rank_, deltas_;

  std::vector<Cache> layers_;
  int64_t num_slots_ = 0;
  std::unique_ptr<Shards> shards_;  // null: all weights stay
};

}  // namespace firsthand
