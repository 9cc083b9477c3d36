// The timing of bare loops: the best window counts, since whatever else the machine does can only
// make a limit look lower than it is.
#include "limits.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels.hpp"

namespace firsthand {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kReadUnit = 512;  // every table's read takes whole units
constexpr int64_t kChunksEach = 4;  // of a window, per thread
constexpr double kChunkSeconds = 1e-3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t passes_of_a_chunk(const LimitLoop& loop, std::atomic<uint64_t>& sink) {
  for (int64_t passes = 1024;; passes *= 2) {
    const Clock::time_point start = Clock::now();
    sink += loop.run(passes);
    if (seconds_since(start) >= kChunkSeconds) return passes;
  }
}

using Buffer = std::unique_ptr<uint8_t[], void (*)(void*)>;

// Written by the threads that will read it; in huge pages where the system has them, as the
// largest weights are.
Buffer filled(int64_t num_bytes, Threads& threads) {
  const size_t size = (static_cast<size_t>(num_bytes) + kHugePage - 1) / kHugePage * kHugePage;
  Buffer buffer(static_cast<uint8_t*>(std::aligned_alloc(kHugePage, size)), std::free);
  if (!buffer) throw std::bad_alloc();
#if defined(__linux__)
  madvise(buffer.get(), size, MADV_HUGEPAGE);
#endif
  const int64_t units = static_cast<int64_t>(size / kHugePage);
  threads.run(units, 1, [&](int64_t begin, int64_t end, int) {
    const size_t unit = kHugePage;
    std::memset(buffer.get() + static_cast<size_t>(begin) * unit, 1,
                static_cast<size_t>(end - begin) * unit);
  });
  return buffer;
}

}  // namespace

std::vector<const LimitLoops*> runnable_limit_loops() {
#if defined(__x86_64__)
  const LimitLoops* const all[] = {&avx512::limit_loops, &avx2::limit_loops,
                                   &portable::limit_loops};
#elif defined(__aarch64__)
  const LimitLoops* const all[] = {&neon::limit_loops, &portable::limit_loops};
#else
  const LimitLoops* const all[] = {&portable::limit_loops};
#endif
  std::vector<const LimitLoops*> runnable;
  for (const LimitLoops* loops : all) {
    try {
      choose_kernels(loops->isa);
      runnable.push_back(loops);
    } catch (const std::invalid_argument&) {  // not on this machine
    }
  }
  return runnable;
}

double loop_rate(const LimitLoop& loop, Threads& threads, double ms) {
  std::atomic<uint64_t> sink{0};
  const int64_t passes = passes_of_a_chunk(loop, sink);
  const int64_t chunks = kChunksEach * threads.count();
  const double work = static_cast<double>(loop.work_per_pass * passes * chunks);
  double best = 0.0;
  const Clock::time_point began = Clock::now();
  do {
    const Clock::time_point start = Clock::now();
    threads.run(chunks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t chunk = begin; chunk < end; ++chunk) sink += loop.run(passes);
    });
    best = std::max(best, work / seconds_since(start));
  } while (seconds_since(began) * 1e3 < ms);
  return best / 1e9;
}

double read_rate(int64_t num_bytes, Threads& threads, double ms) {
  std::atomic<uint64_t> sink{0};
  const int64_t units = std::max<int64_t>(1, num_bytes / kReadUnit);
  const Buffer buffer = filled(units * kReadUnit, threads);
  const int64_t share = (units + threads.count() - 1) / threads.count();
  const int64_t chunks[] = {share, int64_t{256} << 10 >> 9, int64_t{1} << 20 >> 9};
  const LimitLoops& widest = *runnable_limit_loops().front();
  double best = 0.0;
  for (const int64_t chunk : chunks) {
    for (const auto read : {widest.read, widest.read_ahead}) {
      const Clock::time_point began = Clock::now();
      do {
        const Clock::time_point start = Clock::now();
        threads.run(units, chunk, [&](int64_t begin, int64_t end, int) {
          sink += read(buffer.get() + begin * kReadUnit, (end - begin) * kReadUnit);
        });
        best = std::max(best, static_cast<double>(units * kReadUnit) / seconds_since(start));
      } while (seconds_since(began) * 1e3 < ms);
    }
  }
  return best / 1e9;
}

}  // namespace firsthand
