// A small plan of every operator, replayed without Python: for the sanitizers, and to count what a
// step allocates.
//
// Owns: the plan, its batches, and the counting of every allocation of the program. Each line that
// it prints is one claim with its number; a wrong bit ends it with an error.
// May not know: models. Read next: test_replay.py, which builds it, plainly and sanitized.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "plan.hpp"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {
std::atomic<int64_t> num_allocations{0};
}
// operator new ends here too.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void* malloc(size_t size) { return ++num_allocations, __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return ++num_allocations, __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return ++num_allocations, __libc_realloc(old, size); }
void* aligned_alloc(size_t alignment, size_t size) {
  return ++num_allocations, __libc_memalign(alignment, size);
}
}
#else
namespace {
std::atomic<int64_t> num_allocations{0};  // a sanitizer has its own malloc: nothing is counted
}
#endif

using namespace firsthand;

namespace {

constexpr int kVocab = 50, kWidth = 40, kHeads = 4, kKvHeads = 2, kHead = 8, kFfn = 72;
constexpr int kTokens = 187, kPositions = 160, kBlock = 16, kSlots = 2 * kPositions;

uint64_t state = 88172645463325252ull;

uint32_t bits() {  // xorshift64, arXiv 1402.6246
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return static_cast<uint32_t>(state >> 16);
}

WeightRef weight(Kind kind, int64_t n, int64_t k) {
  const bool grouped = kind == Kind::grouped8 || kind == Kind::grouped4;
  const int64_t groups = (k + 31) / 32, count = n * k;
  auto w = std::make_shared<PackedWeight>(kind, n, k, grouped ? 32 : 0, grouped, grouped, 0);
  std::vector<float> wide(static_cast<size_t>(count));
  for (float& x : wide) x = static_cast<float>(static_cast<int32_t>(bits())) * 0x1p-34f;
  std::vector<uint16_t> small(static_cast<size_t>(count));
  for (uint16_t& x : small) x = static_cast<uint16_t>(0x2C00 + (bits() & 0x83FF));
  std::vector<uint8_t> codes(static_cast<size_t>(count));
  for (uint8_t& c : codes) c = static_cast<uint8_t>(kind == Kind::grouped4 ? bits() & 15 : bits());
  if (kind == Kind::float32) w->fill_float(0, n, wide.data());
  else if (kind == Kind::float16 || kind == Kind::bfloat16) w->fill_float(0, n, small.data());
  else if (kind == Kind::channel)
    w->fill_channel(0, n, reinterpret_cast<const int8_t*>(codes.data()), wide.data());
  else w->fill_grouped(0, n, codes.data(), small.data(), small.data() + n * groups);
  return w;
}

struct Model {
  std::vector<WeightRef> weights;
  explicit Model(Kind kind) {
    const int64_t shapes[][2] = {{kVocab, kWidth},
                                 {kHeads * kHead, kWidth},
                                 {kKvHeads * kHead, kWidth},
                                 {kKvHeads * kHead, kWidth},
                                 {kWidth, kHeads * kHead},
                                 {kFfn, kWidth},
                                 {kFfn, kWidth},
                                 {kWidth, kFfn},
                                 {3, kWidth},
                                 {1, kWidth}};
    for (const auto& [n, k] : shapes) weights.push_back(weight(kind, n, k));
  }
};

Vector ones(int64_t length) { return Vector(static_cast<size_t>((length + 15) / 16 * 16), 1.0f); }

// Two layers of slots of 4 bytes an element, enough for every kind.
struct Store {
  std::vector<std::vector<float>> memory;
  Store() : memory(8, std::vector<float>(kSlots * kKvHeads * kHead + 64)) {}
  void bind(Plan& plan, CacheKind kind, bool tiles) {
    std::vector<Cache> layers;
    for (size_t i = 0; i < memory.size(); i += 4)
      layers.push_back({memory[i].data(), memory[i + 1].data(), memory[i + 2].data(),
                        memory[i + 3].data(), kind, tiles, kKvHeads, kHead});
    plan.bind_store(std::move(layers), kSlots);
  }
};

// Layer 0 has every operator by itself, layer 1 the fused ones.
std::unique_ptr<Plan> record(const Model& m, std::shared_ptr<Threads> threads, const char* isa) {
  auto plan = std::make_unique<Plan>(
      kTokens, kTokens, kVocab, kPositions,
      std::vector<RotaryTable>{{{1.0, 0.5, 0.1, 0.01}, 1.0}, {{0.9, 0.4, 0.2, 0.03}, 1.5}},
      std::move(threads), choose_kernels(isa));
  int64_t offset = 0;
  const auto buffer = [&](int64_t width) {
    const int made = plan->add_buffer(offset, width);
    offset += kTokens * width + 64;
    return made;
  };
  const auto& w = m.weights;
  const int x = buffer(kWidth), h = buffer(kWidth), q = buffer(kHeads * kHead);
  const int k = buffer(kKvHeads * kHead), v = buffer(kKvHeads * kHead);
  const int mixed = buffer(kHeads * kHead), gate = buffer(kFfn), up = buffer(kFfn);
  const int routed = buffer(3), shared = buffer(1), weights = buffer(4);
  const Activation none = Activation::none;
  plan->add_op(EmbedOp{w[0], 1.5f, x});
  plan->add_op(NormOp{x, 1, ones(kWidth), 1e-5f, h});
  plan->add_op(LinearOp{h, {w[1]}, {ones(kHeads * kHead)}, {q}, -1, {}, 0, none, false, 0});
  plan->add_op(LinearOp{h, {w[2]}, {{}}, {k}, -1, {}, 0, none, false, 0});
  plan->add_op(LinearOp{h, {w[3]}, {{}}, {v}, -1, {}, 0, none, false, 0});
  plan->add_op(NormOp{q, kHeads, ones(kHead), 1e-5f, q});
  plan->add_op(RopeOp{q, kHeads, 0, q});
  plan->add_op(RopeOp{k, kKvHeads, 0, k});
  plan->add_op(StoreOp{0, k, v, false, 0});
  plan->add_op(AttendOp{0, q, mixed, kHeads, kKvHeads, 0.35f, 0, 0, false, 0});
  plan->add_op(LinearOp{mixed, {w[4]}, {{}}, {h}, -1, {}, 0, none, false, 0});
  plan->add_op(AddOp{x, h, x});
  plan->add_op(LinearOp{x, {w[5]}, {{}}, {gate}, -1, ones(kWidth), 1e-5f, none, false, 0});
  plan->add_op(LinearOp{x, {w[6]}, {{}}, {up}, -1, ones(kWidth), 1e-5f, none, false, 0});
  plan->add_op(ActivationOp{gate, up, gate, Activation::silu});
  plan->add_op(LinearOp{gate, {w[7]}, {{}}, {x}, x, {}, 0, none, false, 0});
  plan->add_op(LinearOp{
      x, {w[1], w[2], w[3]}, {{}, {}, {}}, {q, k, v}, -1, ones(kWidth), 1e-5f, none, false, 0});
  plan->add_op(StoreOp{1, k, v, true, 1});
  plan->add_op(AttendOp{1, q, mixed, kHeads, kKvHeads, 0.3f, 5.0f, 70, true, 1});
  plan->add_op(LinearOp{mixed, {w[4]}, {{}}, {x}, x, {}, 0, none, false, 0});
  plan->add_op(LinearOp{
      x, {w[5], w[6]}, {{}, {}}, {gate}, -1, ones(kWidth), 1e-5f, Activation::gelu_tanh, false, 0});
  plan->add_op(LinearOp{gate, {w[7]}, {{}}, {x}, x, {}, 0, none, false, 0});
  // Three experts, of which two are one and the same, and a shared one.
  const Expert one{{w[5], w[6]}, {w[7]}};
  plan->add_op(LinearOp{x, {w[8], w[9]}, {{}, {}}, {routed, shared}, -1, {}, 0, none, false, 0});
  plan->add_op(RouteOp{routed, shared, weights, 2, true});
  plan->add_op(ExpertsOp{x, weights, h, {one, one, {{w[6], w[5]}, {w[7]}}, one}, Activation::silu});
  plan->add_op(AddOp{x, h, x});
  plan->add_op(LinearOp{x, {w[0]}, {{}}, {}, -1, ones(kWidth), 1e-5f, none, true, 2.0f});
  plan->finish();
  return plan;
}

// Two sequences whose blocks lie mixed in the store, or one row of the second.
struct Work {
  std::vector<int32_t> ids, positions, row_starts{0}, logit_rows;
  std::vector<int64_t> block_starts;
  Batch batch{};

  void add(int sequence, int start, int count) {
    for (int i = start; i < start + count; ++i) {
      ids.push_back((7 * i + sequence) % kVocab);
      positions.push_back(i);
    }
    row_starts.push_back(static_cast<int32_t>(ids.size()));
    for (int b = 0; b < kPositions / kBlock; ++b)
      block_starts.push_back((2 * b + sequence) * kBlock);
    logit_rows.push_back(row_starts.back() - 1);
    batch = {ids.data(),
             positions.data(),
             row_starts.data(),
             block_starts.data(),
             logit_rows.data(),
             nullptr,
             static_cast<int64_t>(ids.size()),
             static_cast<int64_t>(row_starts.size()) - 1,
             kPositions / kBlock,
             kBlock,
             static_cast<int64_t>(logit_rows.size())};
  }
};

Work many_rows() {
  Work work;
  work.add(0, 0, 37);
  work.add(1, 0, 150);
  return work;
}

Work one_row() {
  Work work;
  work.add(1, 150, 1);
  return work;
}

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

std::vector<float> run(Plan& plan, const Batch& batch) {
  const float* logits = plan.run(batch, nullptr);
  return std::vector<float>(logits, logits + batch.num_logit_rows * kVocab);
}

// What steps allocate once they have run twice, for each number of threads and of rows.
void count_allocations(const char* isa) {
  const Model model(Kind::grouped4);
  for (const int threads : {1, 2}) {
    const auto plan = record(model, std::make_shared<Threads>(threads), isa);
    Store store;
    store.bind(*plan, CacheKind::int8, true);
    Work many = many_rows(), one = one_row();
    for (int i = 0; i < 2; ++i) {
      plan->run(many.batch, nullptr);
      plan->run(one.batch, nullptr);
    }
    const int64_t before = num_allocations;
    plan->run(many.batch, nullptr);
    const int64_t between = num_allocations;
    for (int i = 0; i < 5; ++i) plan->run(one.batch, nullptr);
    const int64_t after = num_allocations;
    std::printf("%d threads, many rows: %lld allocations\n", threads,
                static_cast<long long>(between - before));
    std::printf("%d threads, one row: %lld allocations\n", threads,
                static_cast<long long>(after - between));
  }
}

// The same bits on every number of threads, in both layouts of the cache, one after another and
// beside another plan.
void compare_threads(Kind kind, CacheKind cache, const char* isa) {
  const Model model(kind);
  std::vector<float> wanted[2];
  const auto check = [&](int threads, bool tiles) {
    const auto plan = record(model, std::make_shared<Threads>(threads), isa);
    Store store;
    store.bind(*plan, cache, tiles);
    Work work[] = {many_rows(), one_row()};
    for (int i = 0; i < 2; ++i) {
      const std::vector<float> got = run(*plan, work[i].batch);
      if (wanted[i].empty()) wanted[i] = got;
      require(got.size() == wanted[i].size() &&
                  std::memcmp(got.data(), wanted[i].data(), got.size() * sizeof(float)) == 0,
              "other bits on " + std::to_string(threads) + " threads");
    }
  };
  for (const int threads : {1, 2, 3})
    for (const bool tiles : {true, false}) check(threads, tiles);
  std::thread beside([&] { check(2, true); });
  check(3, true);
  beside.join();
}

// Every item once, for calls of every length that come one after another without a pause.
void count_items() {
  for (const int count : {1, 2, 4}) {
    Threads threads(count);
    std::vector<int32_t> done(300);
    for (int64_t call = 0; call < 3000; ++call) {
      const int64_t items = call % 300, grain = 1 + call % 7;
      threads.run(items, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) ++done[static_cast<size_t>(i)];
      });
    }
    for (size_t i = 0; i < done.size(); ++i)
      require(done[i] == 10 * (299 - static_cast<int32_t>(i)), "an item was lost, or done twice");
  }
}

}  // namespace

int main(int count, char** arguments) {
  const char* isa = count > 1 ? arguments[1] : "";
  const int64_t before = num_allocations;
  const std::vector<float> seen(100);
  std::printf("a vector: %lld allocations\n", static_cast<long long>(num_allocations - before));
  count_allocations(isa);
  count_items();
  int turn = 0;
  for (const Kind kind : {Kind::float32, Kind::float16, Kind::bfloat16, Kind::channel,
                          Kind::grouped8, Kind::grouped4})
    compare_threads(kind, static_cast<CacheKind>(turn++ % 3), isa);
}
