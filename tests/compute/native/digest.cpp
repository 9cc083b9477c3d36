// Every kernel of one instruction set on made inputs, as one line of hexadecimal digits each.
//
// Owns: the inputs (from a fixed generator), and the order of the calls. Two instruction sets that
// keep the numerics contract print the same lines, on one machine or under emulation.
// May not know: Python. Read next: test_instruction_sets.py, which builds, runs and compares.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "threads.hpp"

using namespace firsthand;

namespace {

uint64_t state = 88172645463325252ull;

uint32_t bits() {  // xorshift64, arXiv 1402.6246
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return static_cast<uint32_t>(state >> 16);
}

float uniform() { return static_cast<float>(static_cast<int32_t>(bits())) * 0x1p-31f; }

std::vector<float> floats(int64_t count, float size = 1.0f) {
  std::vector<float> v(static_cast<size_t>(count) + 64);
  for (float& x : v) x = uniform() * size;
  return v;
}

template <class T>
void print(const std::string& name, const T* data, int64_t count) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  const auto* bytes = reinterpret_cast<const uint8_t*>(data);
  for (int64_t i = 0; i < count * static_cast<int64_t>(sizeof(T)); ++i)
    hash = (hash ^ bytes[i]) * 1099511628211ull;
  std::printf("%s %016llx\n", name.c_str(), static_cast<unsigned long long>(hash));
}

// A float16 of moderate size, from its bits.
uint16_t half() { return static_cast<uint16_t>((bits() & 0x83FF) | (10 + bits() % 6) << 10); }

PackedWeight made(Kind kind, int64_t n, int64_t k, int64_t group, bool halves, bool minimum,
                  int32_t zero) {
  PackedWeight w(kind, n, k, group, halves, minimum, zero);
  const int64_t count = n * k, scales = n * (w.num_groups > 0 ? w.num_groups : 1);
  if (w.is_float()) {
    std::vector<uint16_t> small(static_cast<size_t>(count));
    for (uint16_t& x : small)
      x = kind == Kind::bfloat16 ? static_cast<uint16_t>(0x3C00 + (bits() & 0x83FF)) : half();
    const std::vector<float> wide = floats(count);
    w.fill_float(0, n,
                 kind == Kind::float32 ? static_cast<const void*>(wide.data())
                                       : static_cast<const void*>(small.data()));
    return w;
  }
  std::vector<uint8_t> codes(static_cast<size_t>(count));
  for (uint8_t& c : codes) c = static_cast<uint8_t>(kind == Kind::grouped4 ? bits() & 15 : bits());
  std::vector<float> wide = floats(2 * scales, 0.1f);
  std::vector<uint16_t> small(static_cast<size_t>(2 * scales));
  for (uint16_t& x : small) x = half();
  if (kind == Kind::channel) {
    w.fill_channel(0, n, reinterpret_cast<const int8_t*>(codes.data()), wide.data());
    return w;
  }
  const void* s = halves ? static_cast<const void*>(small.data()) : wide.data();
  const void* m = halves ? static_cast<const void*>(small.data() + scales) : wide.data() + scales;
  w.fill_grouped(0, n, codes.data(), s, minimum ? m : nullptr);
  return w;
}

struct Rows {
  std::vector<int8_t> words, digits;
  std::vector<float> word_scale, digit_scale, f;
  std::vector<uint8_t> wide;
  std::vector<int32_t> word_sums, digit_sums;
  Prepared prepared;

  Rows(const Kernels& kernels, const std::vector<float>& x, int64_t rows, int64_t k,
       const float* gain)
      : words(static_cast<size_t>(2 * rows * stride(k) + 64)),
        digits(words.size()),
        word_scale(static_cast<size_t>(rows)),
        digit_scale(word_scale.size()),
        f(static_cast<size_t>(rows * stride(k) + 64)),
        wide(static_cast<size_t>(rows * stride(k) / 16 + 64)),
        word_sums(wide.size()),
        digit_sums(word_scale.size()) {
    prepared = {{words.data(), word_scale.data(), word_sums.data()},
                {digits.data(), digit_scale.data(), digit_sums.data()},
                wide.data(),
                f.data(),
                stride(k)};
    kernels.prepare({x.data(), k, nullptr, gain, 1e-5f, {true, true, true}, prepared}, 0, rows);
  }
  static int64_t stride(int64_t k) { return (k + 255) / 256 * 256; }
};

void linear(const Kernels& kernels) {
  const struct {
    const char* name;
    Kind kind;
    int64_t group;
    bool halves, minimum;
    int32_t zero;
  } formats[] = {{"float32", Kind::float32, 0, false, false, 0},
                 {"float16", Kind::float16, 0, false, false, 0},
                 {"bfloat16", Kind::bfloat16, 0, false, false, 0},
                 {"channel", Kind::channel, 0, false, false, 0},
                 {"q4_0", Kind::grouped4, 32, true, false, 8},
                 {"q4_1", Kind::grouped4, 32, true, true, 0},
                 {"q2_k", Kind::grouped4, 16, false, true, 0},
                 {"q8_0", Kind::grouped8, 32, true, false, 0},
                 {"q6_k", Kind::grouped8, 16, false, false, 0},
                 {"g128", Kind::grouped8, 128, false, true, 0}};
  for (const auto& format : formats)
    for (const int64_t k : {1, 31, 96, 600})
      for (const int64_t rows : {1, 2, 3, 5, 8, 13}) {
        const int64_t n = 37;
        const PackedWeight w =
            made(format.kind, n, k, format.group, format.halves, format.minimum, format.zero);
        const std::vector<float> x = floats(rows * k, 3.0f), gain = floats(k), bias = floats(n),
                                 residual = floats(rows * n);
        const Rows prepared(kernels, x, rows, k, rows % 2 == 0 ? gain.data() : nullptr);
        std::vector<float> out(static_cast<size_t>(rows * n) + 64);
        LinearCall call{&w,         nullptr,          bias.data(),       nullptr, residual.data(),
                        out.data(), Activation::none, prepared.prepared, rows};
        kernels.linear(call, 0, w.num_panels());
        const std::string name =
            std::string(format.name) + " " + std::to_string(rows) + "x" + std::to_string(k);
        print("linear " + name, out.data(), rows * n);
        call.up = &w;
        call.activation = rows % 2 == 0 ? Activation::silu : Activation::gelu_tanh;
        kernels.linear(call, 0, w.num_panels());
        print("gated " + name, out.data(), rows * n);
        print("words " + name, prepared.word_sums.data(), rows * prepared.prepared.stride / 16);
        print("digits " + name, prepared.digit_sums.data(), rows);
        std::vector<int32_t> ids(static_cast<size_t>(n));
        for (int32_t i = 0; i < n; ++i) ids[static_cast<size_t>(i)] = i;
        std::vector<float> table(static_cast<size_t>(n * k) + 64);
        kernels.embed({&w, ids.data(), table.data()}, 0, n);
        print("embed " + name, table.data(), n * k);
      }
}

void attention(const Kernels& kernels) {
  using Kinds = std::initializer_list<std::pair<CacheKind, const char*>>;
  const Kinds kinds = {{CacheKind::float32, "float32"},
                       {CacheKind::float16, "float16"},
                       {CacheKind::int8, "int8"},
                       {CacheKind::int16, "int16"}};
  for (const int32_t d : {2, 24, 64, 80})
    for (const auto& [kind, name] : kinds) {
      // Both layouts are to give the same lines, from the same inputs.
      const uint64_t same = state;
      for (const bool tiles : {true, false}) {
        state = same;
        const int32_t g = 2, h = 6, rows = 37, start = 90;
        const int64_t block = 16, slots = 27 * block, context = start + rows;
        std::vector<float> keys(static_cast<size_t>(slots * g * d) + 64, 0.25f), values = keys;
        std::vector<float> key_scales(static_cast<size_t>(slots * g)), value_scales = key_scales;
        std::vector<double> frequencies;
        for (int i = 0; i < d / 2; ++i) frequencies.push_back(std::exp2(-i));
        std::vector<int32_t> positions;
        std::vector<int64_t> place, starts;
        for (int64_t b = 0; b * block < context; ++b) starts.push_back((b * 5 % 27) * block);
        for (int64_t p = 0; p < context; ++p) {
          positions.push_back(static_cast<int32_t>(p));
          place.push_back(starts[static_cast<size_t>(p / block)] + p % block);
        }
        std::vector<float> cosine(static_cast<size_t>(context * d / 2) + 64), sine = cosine;
        kernels.rotation(
            {positions.data(), frequencies.data(), 1.25, cosine.data(), sine.data(), d}, 0,
            context);
        print("rotation " + std::to_string(d), cosine.data(), context * d / 2);
        const std::vector<float> k = floats(context * g * d), v = floats(context * g * d),
                                 q = floats(rows * h * d, 4.0f);
        const Cache cache{
            keys.data(), values.data(), key_scales.data(), value_scales.data(), kind, tiles, g, d};
        kernels.store(
            {k.data(), v.data(), place.data(), true, {cosine.data(), sine.data(), d}, cache}, 0,
            context);
        std::vector<float> out(q.size()), scratch(static_cast<size_t>(attend_scratch(d, h / g)));
        std::vector<AttendTile> row_tiles;
        // Of many rows, and of one: the two ways in which a chunk is read.
        for (int32_t r = 0; r < rows - 4; r += 11)
          row_tiles.push_back({r, 0, std::min(11, rows - 4 - r)});
        for (int32_t r = rows - 4; r < rows; ++r) row_tiles.push_back({r, 0, 1});
        const int64_t skip = static_cast<int64_t>(start) * d / 2;
        const struct {
          float cap;
          int64_t window;
        } rules[] = {{0, 0}, {2.5f, 0}, {0, 70}, {1.5f, 5}};
        for (const auto& rule : rules) {
          const AttendCall call{q.data(),
                                out.data(),
                                positions.data() + start,
                                row_tiles.data(),
                                starts.data(),
                                static_cast<int64_t>(starts.size()),
                                block,
                                h,
                                0.3f,
                                rule.cap,
                                rule.window,
                                true,
                                {cosine.data() + skip, sine.data() + skip, d},
                                cache};
          const int64_t items = static_cast<int64_t>(row_tiles.size()) * g;
          const std::string line =
              "attend " + std::to_string(d) + " " + name + " window " + std::to_string(rule.window);
          kernels.attend(call, 0, items, scratch.data());
          print(line, out.data(), rows * h * d);
          // The same in parts, one chunk a round.
          AttendParts parts{nullptr, 0, 1, true, false};
          std::vector<float> memory(
              static_cast<size_t>(rows * h * parts.query_floats(attend_stride(d))));
          parts.memory = memory.data();
          out.assign(out.size(), 0.0f);
          for (; parts.first_chunk * kChunk < context; ++parts.first_chunk) {
            parts.is_first = parts.first_chunk == 0;
            parts.is_last = (parts.first_chunk + 1) * kChunk >= context;
            kernels.attend_part(call, parts, 0, items, scratch.data());
            kernels.attend_merge(call, parts, 0, items);
          }
          print(line, out.data(), rows * h * d);
        }
      }
    }
}

void experts(const Kernels& kernels) {
  for (const int32_t count : {1, 4, 19, 64}) {
    const std::vector<float> logits = floats(7 * count, 6.0f), shared = floats(7, 3.0f);
    std::vector<float> weights(static_cast<size_t>(7 * (count + 1)) + 64);
    for (const bool extra : {false, true}) {
      const RouteCall call{logits.data(),   extra ? shared.data() : nullptr,
                           weights.data(),  count,
                           (count + 2) / 3, extra};
      kernels.route(call, 0, 7);
      print("route " + std::to_string(count), weights.data(), 7 * (count + (extra ? 1 : 0)));
    }
    const std::vector<int32_t> taken{1, 2, 5};
    const std::vector<float> x = floats(3 * 37);
    std::vector<float> out = floats(7 * 37);
    kernels.add_expert({x.data(), taken.data(), weights.data(), out.data(), count, 37}, 0, 3);
    print("expert " + std::to_string(count), out.data(), 7 * 37);
  }
}

void rows(const Kernels& kernels) {
  for (const int64_t k : {1, 15, 16, 100, 576}) {
    const std::vector<float> x = floats(5 * k, 20.0f), gain = floats(k), y = floats(5 * k);
    std::vector<float> out(x.size() + 64);
    kernels.norm({x.data(), gain.data(), out.data(), k, 1e-5f}, 0, 5);
    print("norm " + std::to_string(k), out.data(), 5 * k);
    const int64_t lanes = (5 * k + 15) / 16;
    for (const Activation kind : {Activation::silu, Activation::gelu_tanh}) {
      kernels.activation({x.data(), y.data(), out.data(), kind}, 0, lanes);
      print("activation " + std::to_string(k), out.data(), 5 * k);
    }
    std::vector<float> capped = x;
    kernels.soft_cap(capped.data(), 7.5f, 0, lanes);
    print("cap " + std::to_string(k), capped.data(), 5 * k);
    kernels.add(x.data(), y.data(), out.data(), 0, lanes);
    print("add " + std::to_string(k), out.data(), 5 * k);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const FlushDenormals flush;
  const Kernels& kernels = choose_kernels(count > 1 ? arguments[1] : "");
  std::fprintf(stderr, "%s\n", kernels.name);
  linear(kernels);
  attention(kernels);
  experts(kernels);
  rows(kernels);
}
