// State of the running launch, shared by its layout (rt_launch.cpp), the
// scheduler (rt_schedule.cpp) and the memory checker (rt_memory.cpp). One
// launch at a time in a process.
#pragma once
#include <string>
#include <vector>
#include "msl_rt.h"

constexpr size_t kStackBytes = 64 * 1024;
constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kNobody = ~0u;

enum class State : uint8_t {
  ready,
  at_simd,
  at_simd_barrier,
  at_barrier,
  done
};

// One Metal thread: a stackful fiber.
struct Fiber {
  void* sp;
  uint8_t *stack_lo, *stack_hi;
  State state;
  uint32_t lane, sg;
  msl_site site;
  unsigned bar_flags;
  uint32_t snap; // which snapshot buffer this lane last received
  uint32_t tid;  // threadgroup number * 1024 + index in it
  msl_ids ids;
};

struct Simdgroup {
  uint32_t exist = 0, done = 0, at_simd = 0, at_bar = 0;
  uint32_t generation = 0;
  uint32_t epoch_tg = 0, epoch_dev = 0; // bumped by simdgroup_barrier
  uint32_t mask[2] = {0, 0};
  alignas(64) uint8_t stage[32][16];
  alignas(64) uint8_t buf[2][32][16];
};

struct Access {
  uint32_t tid = kNobody, epoch = 0, sg_epoch = 0;
  int kind = MSL_PLAIN;
  uint64_t pc = 0;
};

// Shadow of one element (device) or byte (threadgroup): the last write and
// two reads of different threads since.
struct Cell {
  Access write, read1, read2;
};

struct Region {
  const uint8_t *lo, *hi;
};

struct Runtime {
  const msl_launch* launch = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Simdgroup> sgs;
  uint8_t* stacks = nullptr;
  std::vector<uint32_t> ready;
  size_t ready_head = 0;
  uint32_t n = 0, n_done = 0, n_at_barrier = 0;
  int current = -1;
  void* main_sp = nullptr;
  bool aborted = false, checking = false;
  uint32_t group_serial = 0;
  uint32_t epoch_tg = 1, epoch_dev = 1, epoch_group_start = 1;
  std::vector<std::vector<Cell>> device_cells; // one vector a buffer
  std::vector<Cell> tg_cells;
  uint8_t *tg_lo = nullptr, *tg_hi = nullptr;
  std::vector<Region> constants;
  std::vector<void*> args;
  msl_finding* out = nullptr;
  int max_out = 0, n_out = 0;
  uint64_t rng = 1;
};
extern Runtime R;

// pcs are code addresses that Python turns into lines; 0 where file, line say
// it.
void add_finding(
    const char* kind,
    const std::string& text,
    uint64_t pc1,
    uint64_t pc2,
    msl_site site);
std::string thread_name(const Fiber& f);
std::string thread_name(uint32_t tid);
[[noreturn]] void abort_launch();

void fiber_main(); // what every fiber runs, again and again
void make_ready(uint32_t i);
int pop_ready();          // -1: none
void switch_to(int next); // -1: back to the launch
extern "C" void msl_ctx_swap(void** save_sp, void* load_sp);

void map_memory();    // before the first threadgroup of a launch
void check_outputs(); // after the last one
