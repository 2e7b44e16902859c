// Runs the fibers of a threadgroup: rendezvous of simdgroups and barriers,
// divergence, deadlock, schedules.
#include <cstdio>
#include <cstring>
#include <utility>
#include "rt_state.h"

Runtime R;

namespace {

void make_lanes_ready(uint32_t base, uint32_t mask) {
  for (uint32_t l = 0; l < 32; ++l) {
    if (mask >> l & 1) {
      make_ready(base + l);
    }
  }
}

void finish_simd(Simdgroup& s, uint32_t base, uint32_t mask) {
  const uint32_t b = s.generation++ & 1;
  memcpy(s.buf[b], s.stage, sizeof s.stage);
  s.mask[b] = mask;
  s.at_simd &= ~mask;
  for (uint32_t l = 0; l < 32; ++l) {
    if (mask >> l & 1) {
      R.fibers[base + l].snap = b;
    }
  }
}

void finish_simd_barrier(Simdgroup& s, uint32_t base) {
  unsigned flags = 0;
  for (uint32_t l = 0; l < 32; ++l) {
    if (s.at_bar >> l & 1) {
      flags |= R.fibers[base + l].bar_flags;
    }
  }
  s.epoch_tg += (flags & MSL_MEM_THREADGROUP) != 0;
  s.epoch_dev += (flags & MSL_MEM_DEVICE) != 0;
  s.at_bar = 0;
}

std::string where(const msl_site& s) {
  return std::string(s.op) + " at line " + std::to_string(s.line);
}

// All threads that have not returned wait at a threadgroup barrier.
void resolve_barrier() {
  const Fiber *first = nullptr, *other = nullptr, *returned = nullptr;
  unsigned flags = 0;
  for (uint32_t i = 0; i < R.n; ++i) {
    const Fiber& f = R.fibers[i];
    if (f.state == State::done) {
      returned = returned ? returned : &f;
      continue;
    }
    flags |= f.bar_flags;
    first = first ? first : &f;
    other = other || f.site.line == first->site.line ? other : &f;
  }
  if (returned) {
    add_finding(
        "barrier-after-exit",
        thread_name(*returned) + " returned, others wait at " +
            where(first->site),
        0,
        0,
        first->site);
  }
  if (other) {
    add_finding(
        "divergent-barrier",
        thread_name(*first) + " waits in " + where(first->site) + ", " +
            thread_name(*other) + " in " + where(other->site),
        0,
        0,
        first->site);
  }
  R.epoch_tg += (flags & MSL_MEM_THREADGROUP) != 0;
  R.epoch_dev += (flags & MSL_MEM_DEVICE) != 0;
  R.n_at_barrier = 0;
  for (uint32_t i = 0; i < R.n; ++i) {
    if (R.fibers[i].state == State::at_barrier) {
      make_ready(i);
    }
  }
}

// No fiber is ready: release a barrier, or report what everybody waits for.
void resolve() {
  if (R.n_at_barrier + R.n_done == R.n) {
    resolve_barrier();
    return;
  }
  for (uint32_t g = 0; g < R.sgs.size(); ++g) {
    const Simdgroup& s = R.sgs[g];
    if (!s.at_simd) {
      continue;
    }
    const uint32_t live = s.exist & ~s.done, base = g * 32;
    const uint32_t here = uint32_t(__builtin_ctz(s.at_simd));
    const msl_site site = R.fibers[base + here].site;
    uint32_t same = 0;
    for (uint32_t l = 0; l < 32; ++l) {
      if ((s.at_simd >> l & 1) && R.fibers[base + l].site.line == site.line) {
        same |= 1u << l;
      }
    }
    const uint32_t rest = live & ~same;
    const uint32_t other = rest ? uint32_t(__builtin_ctz(rest)) : here;
    char text[300];
    snprintf(
        text,
        sizeof text,
        "only lanes %08x of %08x reach %s; lane %u is in %s",
        same,
        live,
        where(site).c_str(),
        other,
        where(R.fibers[base + other].site).c_str());
    add_finding("divergent-simd-op", text, 0, 0, site);
    abort_launch();
  }
  uint32_t i = 0;
  while (R.fibers[i].state == State::done) {
    ++i;
  }
  add_finding(
      "deadlock",
      thread_name(R.fibers[i]) + " waits in " + where(R.fibers[i].site),
      0,
      0,
      R.fibers[i].site);
  abort_launch();
}

} // namespace

static uint64_t next_random() {
  R.rng ^= R.rng << 13;
  R.rng ^= R.rng >> 7;
  R.rng ^= R.rng << 17;
  return R.rng;
}

void make_ready(uint32_t i) {
  R.fibers[i].state = State::ready;
  R.ready.push_back(i);
}

int pop_ready() {
  if (R.ready_head >= R.ready.size()) {
    R.ready.clear();
    R.ready_head = 0;
    return -1;
  }
  if (R.launch->schedule == 1) {
    const int last = int(R.ready.back());
    R.ready.pop_back();
    return last;
  }
  if (R.launch->schedule == 2) {
    const size_t k =
        R.ready_head + next_random() % (R.ready.size() - R.ready_head);
    std::swap(R.ready[k], R.ready[R.ready_head]);
  }
  return int(R.ready[R.ready_head++]);
}

void switch_to(int next) {
  const int previous = R.current;
  if (next == previous) {
    return;
  }
  R.current = next;
  msl_ctx_swap(
      previous < 0 ? &R.main_sp : &R.fibers[previous].sp,
      next < 0 ? R.main_sp : R.fibers[next].sp);
}

static void run_another() {
  int next;
  while ((next = pop_ready()) < 0) {
    resolve();
  }
  switch_to(next);
}

void fiber_main() {
  for (;;) {
    void* args[64];
    const msl_ids ids = R.fibers[R.current].ids;
    memcpy(args, R.args.data(), R.args.size() * sizeof(void*));
    R.launch->entry(args, &ids);
    Fiber& f = R.fibers[R.current];
    f.state = State::done;
    f.site = {"", 0, "end of kernel"};
    Simdgroup& s = R.sgs[f.sg];
    s.done |= 1u << f.lane;
    if (++R.n_done == R.n) {
      switch_to(-1);
      continue;
    }
    const uint32_t live = s.exist & ~s.done;
    if (live && s.at_bar == live) { // the others were waiting for this lane
      finish_simd_barrier(s, f.sg * 32);
      make_lanes_ready(f.sg * 32, live);
    }
    run_another();
  }
}

void add_finding(
    const char* kind,
    const std::string& text,
    uint64_t pc1,
    uint64_t pc2,
    msl_site site) {
  for (int i = 0; i < R.n_out; ++i) {
    msl_finding& o = R.out[i];
    if (!strcmp(o.kind, kind) && o.pc1 == pc1 && o.pc2 == pc2 &&
        o.line == site.line) {
      o.count++;
      return;
    }
  }
  if (R.n_out >= R.max_out) {
    return;
  }
  msl_finding& o = R.out[R.n_out++];
  o = {};
  snprintf(o.kind, sizeof o.kind, "%s", kind);
  snprintf(o.text, sizeof o.text, "%s", text.c_str());
  snprintf(o.file, sizeof o.file, "%s", site.file);
  o.pc1 = pc1;
  o.pc2 = pc2;
  o.line = site.line;
  o.count = 1;
}

std::string thread_name(const Fiber& f) {
  return thread_name(f.tid);
}

std::string thread_name(uint32_t tid) {
  return "thread " + std::to_string(tid & 1023) + " of threadgroup " +
         std::to_string(tid >> 10);
}

void abort_launch() {
  R.aborted = true;
  R.checking = false;
  void* dropped;
  msl_ctx_swap(&dropped, R.main_sp);
  __builtin_unreachable();
}

extern "C" {

uint32_t msl_lane() {
  return R.fibers[R.current].lane;
}

uint32_t msl_simd_exchange(
    const void* in,
    unsigned size,
    msl_site site,
    const uint8_t (**snap)[16]) {
  Fiber& f = R.fibers[R.current];
  Simdgroup& s = R.sgs[f.sg];
  const uint32_t live = s.exist & ~s.done, base = f.sg * 32;
  memcpy(s.stage[f.lane], in, size);
  f.site = site;
  f.state = State::at_simd;
  s.at_simd |= 1u << f.lane;
  bool complete = s.at_simd == live;
  for (uint32_t l = 0; l < 32 && complete; ++l) {
    complete = !(live >> l & 1) || R.fibers[base + l].site.line == site.line;
  }
  if (complete) {
    if (s.done) {
      add_finding(
          "simd-op-after-exit",
          "some lanes have already returned",
          0,
          0,
          site);
    }
    finish_simd(s, base, live);
    make_lanes_ready(base, live & ~(1u << f.lane));
    f.state = State::ready;
  } else {
    run_another();
  }
  const uint32_t b = R.fibers[R.current].snap;
  *snap = s.buf[b];
  return s.mask[b];
}

void msl_barrier(int scope_is_threadgroup, unsigned flags, msl_site site) {
  Fiber& f = R.fibers[R.current];
  f.site = site;
  f.bar_flags = flags;
  if (scope_is_threadgroup) {
    f.state = State::at_barrier;
    R.n_at_barrier++;
    run_another();
    return;
  }
  Simdgroup& s = R.sgs[f.sg];
  const uint32_t live = s.exist & ~s.done;
  f.state = State::at_simd_barrier;
  s.at_bar |= 1u << f.lane;
  if (s.at_bar != live) {
    run_another();
    return;
  }
  finish_simd_barrier(s, f.sg * 32);
  make_lanes_ready(f.sg * 32, live & ~(1u << f.lane));
  f.state = State::ready;
}

void msl_report(const char* kind, msl_site site, const char* text) {
  add_finding(
      kind,
      std::string(text) + " by " + thread_name(R.fibers[R.current]),
      0,
      0,
      site);
}
}
