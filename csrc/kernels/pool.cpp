#include "kernels/pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "kernels/tickets.h"

namespace qwenmtp::kernels {

namespace {

// A worker looks for work this often before it sleeps: some tens of
// microseconds, longer than the gap between two kernels of one forward.
constexpr int kSpins = 1000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/** One job at a time. */
class Pool {
 public:
  ~Pool() {
    stop();
  }

  int threads() const {
    return wanted_.load(std::memory_order_relaxed);
  }

  void set_threads(int count) {
    wanted_.store(std::max(count, 1), std::memory_order_relaxed);
  }

  void run(int parts, void (*part)(void*, int), void* context) {
    std::unique_lock lock(job_mutex_, std::try_to_lock);
    const int wanted = threads();
    if (!lock.owns_lock() || parts <= 1 || wanted <= 1) {
      for (int i = 0; i < parts; ++i) {
        part(context, i);
      }
      return;
    }
    if (static_cast<int>(workers_.size()) != wanted - 1) {
      stop();
      start(wanted - 1);
    }
    part_ = part;
    context_ = context;
    const uint32_t job = tickets_.begin(parts);
    wake_.store(job, std::memory_order_release);
    wake_.notify_all();
    work(job);
    for (int spins = 0; !tickets_.all_done(); ++spins) {
      spins < kSpins ? relax() : std::this_thread::yield();
    }
  }

 private:
  void work(uint32_t job) {
    for (int i = tickets_.take(job); i >= 0; i = tickets_.take(job)) {
      part_(context_, i);
      tickets_.done();
    }
  }

  void loop(uint32_t seen) {
    while (true) {
      int spins = 0;
      uint32_t now = wake_.load(std::memory_order_acquire);
      while (now == seen) {
        if (++spins < kSpins) {
          relax();
        } else {
          wake_.wait(seen, std::memory_order_acquire);
        }
        now = wake_.load(std::memory_order_acquire);
      }
      if (stopping_.load(std::memory_order_acquire)) {
        return;
      }
      seen = now;
      work(now);
    }
  }

  void start(int count) {
    stopping_.store(false, std::memory_order_release);
    const uint32_t seen = wake_.load(std::memory_order_relaxed);
    for (int i = 0; i < count; ++i) {
      workers_.emplace_back([this, seen] { loop(seen); });
    }
  }

  void stop() {
    stopping_.store(true, std::memory_order_release);
    wake_.store(tickets_.begin(0), std::memory_order_release);
    wake_.notify_all();
    for (std::thread& worker : workers_) {
      worker.join();
    }
    workers_.clear();
  }

  std::mutex job_mutex_;
  std::atomic<int> wanted_{
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()))};
  std::vector<std::thread> workers_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> wake_{0};
  Tickets tickets_;
  // Written between jobs, read behind a ticket.
  void (*part_)(void*, int) = nullptr;
  void* context_ = nullptr;
};

Pool& pool() {
  static Pool instance;
  return instance;
}

struct AlignedFree {
  void operator()(std::byte* p) const {
    ::operator delete[](p, std::align_val_t{64});
  }
};

struct Block {
  explicit Block(size_t size)
      : data(static_cast<std::byte*>(
            ::operator new[](size, std::align_val_t{64}))),
        size(size) {
  }
  std::unique_ptr<std::byte, AlignedFree> data;
  size_t size;
};

/** A stack of blocks, each at least twice the one before. */
struct Arena {
  std::vector<Block> blocks;
  size_t block = 0;
  size_t used = 0;
};

thread_local Arena arena;

} // namespace

void set_threads(int count) {
  pool().set_threads(count);
}

int threads() {
  return pool().threads();
}

void run_parts(int parts, void (*part)(void*, int), void* context) {
  pool().run(parts, part, context);
}

Scratch::Scratch() : block_(arena.block), used_(arena.used) {
}

Scratch::~Scratch() {
  arena.block = block_;
  arena.used = used_;
}

void* Scratch::bytes(size_t count) {
  constexpr size_t kFirstBlock = size_t{1} << 20;
  count = (count + 63) & ~size_t{63};
  while (arena.block < arena.blocks.size() &&
         arena.used + count > arena.blocks[arena.block].size) {
    ++arena.block;
    arena.used = 0;
  }
  if (arena.block == arena.blocks.size()) {
    size_t last =
        arena.blocks.empty() ? kFirstBlock / 2 : arena.blocks.back().size;
    arena.blocks.emplace_back(std::max(2 * last, count));
    arena.used = 0;
  }
  std::byte* p = arena.blocks[arena.block].data.get() + arena.used;
  arena.used += count;
  return p;
}

} // namespace qwenmtp::kernels
