// Lays out a launch: stacks, thread ids, one threadgroup after another.
#include <sys/mman.h>
#include <algorithm>
#include <cstring>
#include "rt_state.h"

#if defined(__x86_64__)
asm(R"(
.text
.globl msl_ctx_swap
.type msl_ctx_swap,@function
msl_ctx_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size msl_ctx_swap,.-msl_ctx_swap
)");
constexpr int kFrameWords = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.globl msl_ctx_swap
msl_ctx_swap:
  stp x19,x20,[sp,#-160]!
  stp x21,x22,[sp,#16]
  stp x23,x24,[sp,#32]
  stp x25,x26,[sp,#48]
  stp x27,x28,[sp,#64]
  stp x29,x30,[sp,#80]
  stp d8,d9,[sp,#96]
  stp d10,d11,[sp,#112]
  stp d12,d13,[sp,#128]
  stp d14,d15,[sp,#144]
  mov x9,sp
  str x9,[x0]
  mov sp,x1
  ldp x21,x22,[sp,#16]
  ldp x23,x24,[sp,#32]
  ldp x25,x26,[sp,#48]
  ldp x27,x28,[sp,#64]
  ldp x29,x30,[sp,#80]
  ldp d8,d9,[sp,#96]
  ldp d10,d11,[sp,#112]
  ldp d12,d13,[sp,#128]
  ldp d14,d15,[sp,#144]
  ldp x19,x20,[sp],#160
  ret
)");
#endif

namespace {

void prepare_fiber(Fiber& f) {
  void** sp = (void**)((uintptr_t)f.stack_hi & ~(uintptr_t)63);
#if defined(__x86_64__)
  *--sp = nullptr; // a null return address
  *--sp = (void*)fiber_main;
  for (int i = 0; i < kFrameWords; ++i) {
    *--sp = nullptr;
  }
#else
  sp -= 20;
  memset(sp, 0, 160);
  sp[11] = (void*)fiber_main;
#endif
  f.sp = sp;
}

void make_stacks() {
  R.stacks = (uint8_t*)mmap(
      nullptr,
      kMaxThreads * kStackBytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  R.fibers.resize(kMaxThreads);
  for (uint32_t i = 0; i < kMaxThreads; ++i) {
    R.fibers[i].stack_lo = R.stacks + i * kStackBytes;
    R.fibers[i].stack_hi = R.fibers[i].stack_lo + kStackBytes;
    mprotect(R.fibers[i].stack_lo, 4096, PROT_NONE);
  }
}

void set_ids(Fiber& f, uint32_t i, msl_u3 at, msl_u3 groups, msl_u3 size) {
  const uint32_t *g = R.launch->grid, *t = R.launch->group;
  msl_ids& d = f.ids;
  const msl_u3 p{i % size.x, i / size.x % size.y, i / (size.x * size.y)};
  d.thread_position_in_threadgroup = p;
  d.threadgroup_position_in_grid = at;
  d.thread_position_in_grid = {
      at.x * t[0] + p.x,
      at.y * t[1] + p.y,
      at.z * t[2] + p.z};
  d.threadgroups_per_grid = groups;
  d.threads_per_grid = d.grid_size =
      R.launch->cuda_grid
          ? msl_u3{groups.x * t[0], groups.y * t[1], groups.z * t[2]}
          : msl_u3{g[0], g[1], g[2]};
  d.grid_origin = {0, 0, 0};
  d.threads_per_threadgroup = size;
  d.dispatch_threads_per_threadgroup = {t[0], t[1], t[2]};
  d.thread_index_in_threadgroup = i;
  d.thread_index_in_simdgroup = f.lane = i & 31;
  d.simdgroup_index_in_threadgroup = f.sg = i >> 5;
  d.simdgroups_per_threadgroup = uint32_t(R.sgs.size());
  d.dispatch_simdgroups_per_threadgroup = (t[0] * t[1] * t[2] + 31) / 32;
  d.threads_per_simdgroup = d.thread_execution_width = 32;
  d.thread_index_in_quadgroup = i & 3;
  d.quadgroup_index_in_threadgroup = i >> 2;
  d.quadgroups_per_threadgroup = (R.n + 3) / 4;
  d.dispatch_quadgroups_per_threadgroup = (t[0] * t[1] * t[2] + 3) / 4;
}

void run_group(msl_u3 at, msl_u3 groups) {
  const uint32_t *g = R.launch->grid, *t = R.launch->group;
  msl_u3 size{t[0], t[1], t[2]};
  if (!R.launch->cuda_grid) { // Metal launches short threadgroups at the edges
    size.x = std::min(size.x, g[0] - at.x * t[0]);
    size.y = std::min(size.y, g[1] - at.y * t[1]);
    size.z = std::min(size.z, g[2] - at.z * t[2]);
  }
  R.n = size.x * size.y * size.z;
  R.n_done = R.n_at_barrier = 0;
  R.ready.clear();
  R.ready_head = 0;
  R.sgs.assign((R.n + 31) / 32, Simdgroup());
  R.epoch_tg++;
  R.epoch_dev++;
  R.epoch_group_start = R.epoch_tg;
  for (uint32_t i = 0; i < R.launch->n_tgvars; ++i) {
    memset(R.launch->tgvars[i].base, 0xff, R.launch->tgvars[i].size);
  }
  for (uint32_t i = 0; i < R.n; ++i) {
    Fiber& f = R.fibers[i];
    set_ids(f, i, at, groups, size);
    f.tid = (R.group_serial << 10) | i;
    f.site = {"", 0, ""};
    R.sgs[f.sg].exist |= 1u << f.lane;
    prepare_fiber(f);
    make_ready(i);
  }
  R.group_serial++;
  R.current = -1;
  R.checking = true;
  switch_to(pop_ready());
  R.checking = false;
  R.current = -1;
}

} // namespace

extern "C" {

int msl_run(const msl_launch* launch, msl_finding* out, int max_out) {
  if (!R.stacks) {
    make_stacks();
  }
  R.launch = launch;
  R.out = out;
  R.max_out = max_out;
  R.n_out = 0;
  R.aborted = false;
  R.group_serial = 0;
  R.rng = launch->seed * 2654435761u + 88172645463325252ull;
  R.args.clear();
  for (uint32_t i = 0; i < launch->n_bufs; ++i) {
    R.args.push_back(launch->bufs[i].base);
  }
  map_memory();
  const uint32_t *g = launch->grid, *t = launch->group;
  const msl_u3 groups{
      (g[0] + t[0] - 1) / t[0],
      (g[1] + t[1] - 1) / t[1],
      (g[2] + t[2] - 1) / t[2]};
  for (uint32_t z = 0; z < groups.z; ++z) {
    for (uint32_t y = 0; y < groups.y; ++y) {
      for (uint32_t x = 0; x < groups.x && !R.aborted; ++x) {
        run_group({x, y, z}, groups);
      }
    }
  }
  if (!R.aborted) {
    check_outputs();
  }
  return R.n_out;
}
}
