// Reading ahead and giving back. See shards.hpp.
#include "shards.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <system_error>

namespace firsthand {

namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;

#ifdef MADV_POPULATE_READ
constexpr int kPopulate = MADV_POPULATE_READ;
#else
constexpr int kPopulate = 22;  // a Linux before 5.14 refuses it
#endif

// Of the whole pages around the range.
void advise(const uint8_t* map, int64_t offset, int64_t num_bytes, int advice) {
  static const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t start = offset / page * page;
  madvise(const_cast<uint8_t*>(map) + start, static_cast<size_t>(offset + num_bytes - start),
          advice);
}

void check(const FileRange& range, int64_t size) {
  if (range.offset < 0 || range.num_bytes < 1 || range.offset > size ||
      range.num_bytes > size - range.offset)
    throw std::invalid_argument("shard: a range outside the file");
}

}  // namespace

Shards::Shards(const uint8_t* map, int64_t size, int file, std::vector<Shard> shards)
    : map_(map), size_(size), file_(-1), shards_(std::move(shards)) {
  int64_t last = -1;
  for (const Shard& shard : shards_) {
    if (shard.first <= last || shard.last < shard.first)
      throw std::invalid_argument("shard: operators out of order");
    last = shard.last;
    for (const FileRange& range : shard.ahead) check(range, size);
    for (const FileRange& range : shard.behind) check(range, size);
  }
  file_ = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (file_ < 0) throw std::invalid_argument("shard: no such file");
  drop({0, size_});
  try {
    reader_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {
    close(file_);
    throw std::invalid_argument("shard: no thread to read with");
  }
}

Shards::~Shards() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  reader_.join();
  close(file_);
}

void Shards::before(int64_t op) {
  if (at_ == shards_.size() || shards_[at_].first > op) {
    // A step begins again, or only the head does.
    const auto here = std::find_if(shards_.begin(), shards_.end(),
                                   [&](const Shard& shard) { return shard.last >= op; });
    at_ = static_cast<size_t>(here - shards_.begin());
  }
  if (at_ == shards_.size() || shards_[at_].first != op || shards_[at_].ahead.empty()) return;
  const int shard = static_cast<int>(at_);
  if (asked_ != shard) ask(shard);
  wait_for(shard);
  const int next = next_of(shard);
  if (next != shard) ask(next);
}

void Shards::after(int64_t op) {
  if (at_ == shards_.size() || shards_[at_].last != op) return;
  for (const FileRange& range : shards_[at_].behind) drop(range);
  ++at_;
}

int Shards::next_of(int shard) const {
  const int count = static_cast<int>(shards_.size());
  do shard = (shard + 1) % count;
  while (shards_[static_cast<size_t>(shard)].ahead.empty());
  return shard;
}

void Shards::ask(int shard) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    wanted_ = shard;
  }
  changed_.notify_all();
  asked_ = shard;
  for (const FileRange& range : shards_[static_cast<size_t>(shard)].ahead)
    read_bytes_ += range.num_bytes;
}

void Shards::wait_for(int shard) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return ready_ == shard; });
  }
  wait_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void Shards::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || wanted_ >= 0; });
    if (stopping_) return;
    const int shard = wanted_;
    wanted_ = ready_ = -1;
    lock.unlock();
    read(shards_[static_cast<size_t>(shard)]);
    lock.lock();
    ready_ = shard;
    changed_.notify_all();
  }
}

// First all of it is asked of the disk, then each part is waited for and put into the map. What
// cannot be read here is read, or refused by the system, where it is used.
void Shards::read(const Shard& shard) {
  for (const FileRange& range : shard.ahead)
    advise(map_, range.offset, range.num_bytes, MADV_WILLNEED);
#ifdef __linux__
  for (const FileRange& range : shard.ahead)
    for (int64_t done = 0; done < range.num_bytes; done += kChunkBytes)
      advise(map_, range.offset + done, std::min(kChunkBytes, range.num_bytes - done), kPopulate);
#endif
}

// Out of this process, and out of the system's cache of files where no other process has it.
void Shards::drop(const FileRange& range) const {
  advise(map_, range.offset, range.num_bytes, MADV_DONTNEED);
#ifdef POSIX_FADV_DONTNEED
  posix_fadvise(file_, range.offset, range.num_bytes, POSIX_FADV_DONTNEED);
#endif
}

}  // namespace firsthand
