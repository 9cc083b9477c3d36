// Replaying a plan: each operator is one or two calls of a kernel, shared out to the threads.
#include <algorithm>
#include <chrono>

#include "plan.hpp"

namespace firsthand {

namespace {

// Few rows wait for memory: one run of panels per thread, since every new beginning costs the
// prefetcher its lead. Many rows compute: small chunks, so that a slow thread delays little.
int64_t grain_of(int64_t items, int64_t rows, int threads) {
  const int64_t parts = int64_t{threads} * (rows <= 4 ? 1 : 8);
  const int64_t grain = (items + parts - 1) / parts;
  return (grain + kPanelsTogether - 1) / kPanelsTogether * kPanelsTogether;
}

}  // namespace

// The store slot and the adapter of each row, and the rotation of its position.
void Plan::locate(const Batch& b) {
  for (int64_t s = 0; s < b.num_sequences; ++s)
    for (int64_t r = b.row_starts[s]; r < b.row_starts[s + 1]; ++r) {
      const int64_t position = b.positions[r];
      slots_[static_cast<size_t>(r)] =
          b.block_starts[s * b.max_blocks + position / b.block_size] + position % b.block_size;
    }
  adapted_ = b.adapters != nullptr;
  for (int64_t s = 0; adapted_ && s < b.num_sequences; ++s)
    std::fill(adapter_of_.begin() + b.row_starts[s], adapter_of_.begin() + b.row_starts[s + 1],
              b.adapters[s]);
  for (size_t t = 0; t < tables_.size(); ++t) {
    const int64_t at = static_cast<int64_t>(t) * max_tokens_ * (d_ / 2);
    const RotationCall call{b.positions,       tables_[t].frequencies.data(),
                            tables_[t].factor, cosine_.data() + at,
                            sine_.data() + at, d_};
    threads_->run(b.num_tokens, 16,
                  [&](int64_t i, int64_t k, int) { kernels_.rotation(call, i, k); });
  }
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
  threads_->run(b.num_tokens, 8, [&](int64_t i, int64_t j, int) {
    kernels_.embed(call, i, j);
    if (s.scale != 1.0f) {
      const int64_t k = s.table->k;
      for (int64_t r = i; r < j; ++r)
        for (int64_t c = 0; c < k; ++c) call.out[r * k + c] *= s.scale;
    }
  });
}

void Plan::run_op(const NormOp& s, const Batch& b) {
  const NormCall call{at(s.x), s.gain.data(), at(s.out), width(s.x) / s.num_heads, s.eps};
  threads_->run(b.num_tokens * s.num_heads, 8,
                [&](int64_t i, int64_t j, int) { kernels_.norm(call, i, j); });
}

// How operators over these weights read the rows of a value.
PrepareCall Plan::reading(const float* x, int64_t k, const std::vector<WeightRef>& weights) {
  const auto any = [&](auto wanted) {
    return std::any_of(weights.begin(), weights.end(),
                       [&](const WeightRef& w) { return wanted(*w); });
  };
  return {x,
          k,
          nullptr,
          nullptr,
          0.0f,
          {any([](const PackedWeight& w) { return w.is_grouped(); }),
           any([](const PackedWeight& w) { return w.kind == Kind::channel; }),
           any([](const PackedWeight& w) { return w.is_float(); })},
          {words_.view(), digits_.view(), wide_.data(), prepared_f_.data(), stride_of(weights)}};
}

PrepareCall Plan::reading(const LinearOp& s, const int32_t* row_of) {
  PrepareCall call = reading(at(s.x), width(s.x), s.weights);
  call.row_of = row_of;
  call.gain = s.gain.empty() ? nullptr : s.gain.data();
  call.eps = s.eps;
  return call;
}

Prepared Plan::prepare(const PrepareCall& call, int64_t rows) {
  threads_->run(rows, 4, [&](int64_t i, int64_t j, int) { kernels_.prepare(call, i, j); });
  return call.out;
}

// The panels of one weight, shared out.
void Plan::multiply(const LinearCall& call) {
  const int64_t panels = call.weight->num_panels();
  threads_->run(panels, grain_of(panels, call.rows, threads_->count()),
                [&](int64_t i, int64_t j, int) { kernels_.linear(call, i, j); });
}

void Plan::run_op(const LinearOp& s, const Batch& b) {
  const int64_t rows = s.logits ? b.num_logit_rows : b.num_tokens;
  if (rows == 0) return;
  const int32_t* row_of = s.logits ? b.logit_rows : nullptr;
  const PrepareCall x = reading(s, row_of);
  adapt(s.weights, s.adapters, x, row_of, rows);
  const Prepared prepared = prepare(x, rows);

  // The panels of all weights are one row of items, so that q, k and v cost one call of the threads.
  const bool gated = s.gated != Activation::none;
  const size_t num_results = gated ? 1 : s.weights.size();
  int64_t panels = 0;
  for (size_t i = 0; i < num_results; ++i) panels += s.weights[i]->num_panels();
  const auto bias = [&](size_t i) { return s.biases[i].empty() ? nullptr : s.biases[i].data(); };
  const auto added = [&](size_t i) { return delta(s.weights, s.adapters, i, rows); };
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
                                  rows,
                                  added(i),
                                  gated ? added(1) : Delta{}};
            kernels_.linear(call, std::max(begin, first) - first, std::min(end, last) - first);
          }
          first = last;
        }
      });
  if (s.cap > 0.0f)
    threads_->run((rows * vocab_ + 15) / 16, 1024, [&](int64_t i, int64_t j, int) {
      kernels_.soft_cap(logits_.data(), s.cap, i, j);
    });
}

void Plan::run_op(const RopeOp& s, const Batch& b) {
  const RopeCall call{at(s.x), at(s.out), s.num_heads, rotation(s.table)};
  threads_->run(b.num_tokens, 8, [&](int64_t i, int64_t j, int) { kernels_.rope(call, i, j); });
}

void Plan::run_op(const StoreOp& s, const Batch& b) {
  const StoreCall call{at(s.k),  at(s.v),           slots_.data(),
                       s.rotate, rotation(s.table), cache(s.layer)};
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
  const AttendCall call{at(s.q),           at(s.out),     b.positions,  tiles_.data(),
                        b.block_starts,    b.max_blocks,  b.block_size, s.num_heads,
                        s.scale,           s.cap,         s.window,     s.rotate,
                        rotation(s.table), cache(s.layer)};
  const int64_t scratch = attend_scratch(d_, s.num_heads / s.num_kv_heads);
  // A short context is done before a second thread has woken.
  const int64_t items = num_tiles_ * s.num_kv_heads;
  int64_t longest = 0, earliest = b.positions[0];  // positions that some row sees
  for (int64_t i = 0; i < b.num_sequences; ++i) {
    longest = std::max<int64_t>(longest, b.positions[b.row_starts[i + 1] - 1] + int64_t{1});
    earliest = std::min<int64_t>(earliest, b.positions[b.row_starts[i]]);
  }
  earliest = s.window > 0 ? std::max<int64_t>(0, earliest + 1 - s.window) : 0;
  const int64_t begin = earliest / kChunk, end = (longest + kChunk - 1) / kChunk;
  if (const int64_t at_once = parts_at_once(s, b, end - begin); at_once > 0) {
    for (int64_t chunk = begin; chunk < end; chunk += at_once) {
      const AttendParts parts{attend_parts_.data(), chunk, at_once, chunk == begin,
                              chunk + at_once >= end};
      threads_->run(items * at_once, 1, [&](int64_t i, int64_t j, int thread) {
        kernels_.attend_part(call, parts, i, j, attend_scratch_.data() + thread * scratch);
      });
      threads_->run(items, items,
                    [&](int64_t i, int64_t j, int) { kernels_.attend_merge(call, parts, i, j); });
    }
    return;
  }
  const bool is_short = b.num_tokens == 1 && b.positions[0] < 2 * kChunk;
  threads_->run(items, is_short ? items : 1, [&](int64_t i, int64_t j, int thread) {
    kernels_.attend(call, i, j, attend_scratch_.data() + thread * scratch);
  });
}

void Plan::run_op(const RouteOp& s, const Batch& b) {
  const RouteCall call{at(s.logits), s.shared < 0 ? nullptr : at(s.shared),
                       at(s.out),    static_cast<int32_t>(width(s.logits)),
                       s.top_k,      s.renormalise};
  threads_->run(b.num_tokens, 8, [&](int64_t i, int64_t j, int) { kernels_.route(call, i, j); });
}

// One expert after another, each over the rows that chose it; so a row's sum is by index, whoever
// else is in the step.
void Plan::run_op(const ExpertsOp& s, const Batch& b) {
  const int64_t m = width(s.x), count = width(s.weights);
  float* out = at(s.out);
  std::fill(out, out + b.num_tokens * m, 0.0f);
  for (int64_t e = 0; e < count; ++e) {
    const float* weights = at(s.weights) + e;
    int64_t rows = 0;
    for (int64_t r = 0; r < b.num_tokens; ++r)
      if (weights[r * count] != 0.0f)
        expert_rows_[static_cast<size_t>(rows++)] = static_cast<int32_t>(r);
    if (rows == 0) continue;
    const Expert& expert = s.experts[static_cast<size_t>(e)];
    const PackedWeight &gate = *expert.gate_up[0], &up = *expert.gate_up[1],
                       &down = *expert.down[0];
    PrepareCall chosen = reading(at(s.x), m, expert.gate_up);
    chosen.row_of = expert_rows_.data();
    adapt(expert.gate_up, expert.gate_up_adapters, chosen, expert_rows_.data(), rows);
    const Prepared x = prepare(chosen, rows);
    multiply({&gate, &up, nullptr, nullptr, nullptr, expert_hidden_.data(), s.kind, x, rows,
              delta(expert.gate_up, expert.gate_up_adapters, 0, rows),
              delta(expert.gate_up, expert.gate_up_adapters, 1, rows)});
    const PrepareCall between = reading(expert_hidden_.data(), gate.n, expert.down);
    adapt(expert.down, expert.down_adapters, between, expert_rows_.data(), rows);
    const Prepared hidden = prepare(between, rows);
    multiply({&down, nullptr, nullptr, nullptr, nullptr, expert_out_.data(), Activation::none,
              hidden, rows, delta(expert.down, expert.down_adapters, 0, rows)});
    const AddExpertCall add{expert_out_.data(), expert_rows_.data(), weights, out, count, m};
    threads_->run(rows, 8, [&](int64_t j, int64_t k, int) { kernels_.add_expert(add, j, k); });
  }
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

void Plan::run_op(const ReceiveOp& s, const Batch& b) {
  std::copy_n(b.received, b.num_tokens * width(s.out), at(s.out));
}

void Plan::run_op(const SendOp& s, const Batch& b) {
  std::copy_n(at(s.x), b.num_tokens * width(s.x), b.sent);
}

void Plan::replay(size_t first, const Batch& batch, std::vector<double>* times) {
  using Clock = std::chrono::steady_clock;
  for (size_t i = first; i < ops_.size(); ++i) {
    const Clock::time_point start = times ? Clock::now() : Clock::time_point();
    if (shards_) shards_->before(static_cast<int64_t>(i));
    std::visit([&](const auto& one) { run_op(one, batch); }, ops_[i]);
    if (shards_) shards_->after(static_cast<int64_t>(i));
    if (times)
      times->push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
}

const float* Plan::run(const Batch& batch, std::vector<double>* times) {
  last_tokens_ = 0;
  check(batch);
  const FlushDenormals flush;
  locate(batch);
  replay(0, batch, times);
  last_tokens_ = batch.num_tokens;
  return logits_.data();
}

}  // namespace firsthand
