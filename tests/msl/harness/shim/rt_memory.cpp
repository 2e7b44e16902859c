// Judges every load and store of a launch: races by happens-before, bounds,
// uninitialised reads, writes to inputs, outputs never written. The kernel is
// compiled with -fsanitize=thread; its callbacks are defined here, the
// sanitizer's own runtime is not linked.
#include <link.h>
#include <cstring>
#include "rt_state.h"

namespace {

constexpr msl_site kByAddress{"", 0, ""};

std::string bytes(bool is_write, unsigned n) {
  return std::string(is_write ? "write" : "read") + " of " + std::to_string(n) +
         " bytes";
}

void finding(const char* kind, const std::string& text, uint64_t pc) {
  add_finding(
      kind,
      text + " by " + thread_name(R.fibers[R.current]),
      pc,
      0,
      kByAddress);
}

// Records an access in its cell and reports the unordered earlier ones.
void touch(
    Cell& c,
    bool is_device,
    bool is_write,
    int kind,
    uint64_t pc,
    const char* name,
    uint64_t offset) {
  const Fiber& me = R.fibers[R.current];
  const Simdgroup& s = R.sgs[me.sg];
  const Access now{
      me.tid,
      is_device ? R.epoch_dev : R.epoch_tg,
      is_device ? s.epoch_dev : s.epoch_tg,
      kind,
      pc};
  // Atomics are no data race, but a load or a store has a meaning only in an
  // order with the additions.
  const bool commutes = kind == MSL_ADD || kind == MSL_LOAD;
  auto unordered = [&](const Access& a) {
    if (a.tid == kNobody || a.tid == me.tid || (kind == a.kind && commutes)) {
      return false;
    }
    if ((a.tid >> 10) != (me.tid >> 10)) {
      return is_device; // threadgroups are never ordered among each other
    }
    if (a.epoch != now.epoch) {
      return false;
    }
    const bool same_simdgroup = (a.tid & 1023) >> 5 == me.sg;
    return !(same_simdgroup && a.sg_epoch < now.sg_epoch);
  };
  auto race = [&](const char* what, const Access& a) {
    add_finding(
        is_device ? "race-device" : "race-threadgroup",
        std::string(what) + " on " + name + " at byte " +
            std::to_string(offset) + ": " + thread_name(a.tid) + " and " +
            thread_name(me.tid),
        pc,
        a.pc,
        kByAddress);
  };
  if (unordered(c.write)) {
    race(
        is_write ? "write after unordered write" : "read after unordered write",
        c.write);
  }
  if (is_write) {
    if (unordered(c.read1)) {
      race("write after unordered read", c.read1);
    } else if (unordered(c.read2)) {
      race("write after unordered read", c.read2);
    }
    c.write = now;
    return;
  }
  // Two readers suffice if the second is kept in another simdgroup than the
  // first: only one simdgroup's reads can be ordered by its own barrier.
  if (c.read1.tid != me.tid) {
    const bool current =
        c.read1.tid != kNobody && (is_device || c.read1.epoch == now.epoch);
    const bool stale =
        c.read2.tid == kNobody || (!is_device && c.read2.epoch != now.epoch);
    if (current && ((c.read1.tid >> 5) != (me.tid >> 5) || stale)) {
      c.read2 = c.read1;
    }
  }
  c.read1 = now;
}

const msl_tgvar* threadgroup_variable(const uint8_t* p, unsigned n) {
  for (uint32_t i = 0; i < R.launch->n_tgvars; ++i) {
    const msl_tgvar& t = R.launch->tgvars[i];
    const auto lo = (const uint8_t*)t.base;
    if (p >= lo && p + n <= lo + t.size) {
      return &t;
    }
  }
  return nullptr;
}

void threadgroup_access(
    const uint8_t* p,
    unsigned n,
    bool is_write,
    int kind,
    uint64_t pc) {
  const msl_tgvar* v = threadgroup_variable(p, n);
  if (!v) {
    const msl_tgvar* below = nullptr;
    for (uint32_t i = 0; i < R.launch->n_tgvars; ++i) {
      const msl_tgvar& t = R.launch->tgvars[i];
      if (p >= (const uint8_t*)t.base && (!below || t.base > below->base)) {
        below = &t;
      }
    }
    finding(
        "oob-threadgroup",
        bytes(is_write, n) + " outside threadgroup variable " +
            (below ? below->name : "?"),
        pc);
    abort_launch();
  }
  const auto offset = uint64_t(p - (const uint8_t*)v->base);
  for (unsigned i = 0; i < n; ++i) {
    Cell& c = R.tg_cells[size_t(p - R.tg_lo) + i];
    const bool written =
        c.write.tid != kNobody && c.write.epoch >= R.epoch_group_start;
    if (c.write.tid != kNobody && !written) {
      c = Cell(); // left over from an earlier threadgroup
    }
    if (!is_write && !written && i == 0) {
      finding(
          "uninit-threadgroup",
          std::string("read of uninitialised threadgroup memory ") + v->name +
              " at byte " + std::to_string(offset),
          pc);
    }
    touch(c, false, is_write, kind, pc, v->name, offset + i);
  }
}

void outside_access(const uint8_t* p, unsigned n, bool is_write, uint64_t pc) {
  if (p >= R.stacks && p < R.stacks + kMaxThreads * kStackBytes) {
    finding(
        "private-memory",
        bytes(is_write, n) + " in another thread's private memory",
        pc);
    abort_launch();
  }
  const msl_buffer* near = nullptr;
  int64_t best = INT64_MAX, at = 0;
  for (uint32_t i = 0; i < R.launch->n_bufs; ++i) {
    const msl_buffer& b = R.launch->bufs[i];
    const int64_t d = p - (const uint8_t*)b.base;
    const int64_t distance = d < 0 ? -d : d - int64_t(b.size);
    if (distance < best) {
      best = distance;
      near = &b;
      at = d;
    }
  }
  finding(
      "oob-device",
      bytes(is_write, n) + " outside buffer " + near->name + " (size " +
          std::to_string(near->size) + ", byte offset " + std::to_string(at) +
          ")",
      pc);
  abort_launch();
}

void access(
    const uint8_t* p,
    unsigned n,
    bool is_write,
    int kind,
    uint64_t pc) {
  if (!R.checking) {
    return;
  }
  const Fiber& me = R.fibers[R.current];
  if (p >= me.stack_lo && p + n <= me.stack_hi) {
    return;
  }
  const auto snapshots = (const uint8_t*)R.sgs.data();
  if (p >= snapshots && p < (const uint8_t*)(R.sgs.data() + R.sgs.size())) {
    return;
  }
  if (p >= R.tg_lo && p < R.tg_hi) {
    threadgroup_access(p, n, is_write, kind, pc);
    return;
  }
  for (uint32_t i = 0; i < R.launch->n_bufs; ++i) {
    msl_buffer& b = R.launch->bufs[i];
    const auto lo = (const uint8_t*)b.base;
    if (p < lo || p + n > lo + b.size) {
      continue;
    }
    b.used = b.used > uint64_t(p + n - lo) ? b.used : uint64_t(p + n - lo);
    if (!(b.flags & MSL_BUF_OUT)) {
      if (is_write) {
        finding("write-to-input", std::string("write to input ") + b.name, pc);
      }
      return;
    }
    const auto offset = uint64_t(p - lo);
    for (uint64_t e = offset / b.elem; e <= (offset + n - 1) / b.elem; ++e) {
      Cell& c = R.device_cells[i][e];
      if (!is_write && c.write.tid == kNobody && !(b.flags & MSL_BUF_INIT)) {
        finding(
            "uninit-device",
            std::string("read of unwritten output ") + b.name,
            pc);
      }
      touch(c, true, is_write, kind, pc, b.name, e * b.elem);
    }
    return;
  }
  for (const Region& r : R.constants) {
    if (p >= r.lo && p + n <= r.hi && !is_write) {
      return;
    }
  }
  outside_access(p, n, is_write, pc);
}

// The kernel object's read-only segments: its constant tables.
int add_constants(dl_phdr_info* info, size_t, void* data) {
  const auto entry = (const uint8_t*)data;
  bool is_kernel = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& ph = info->dlpi_phdr[i];
    const auto lo = (const uint8_t*)info->dlpi_addr + ph.p_vaddr;
    is_kernel |= ph.p_type == PT_LOAD && entry >= lo && entry < lo + ph.p_memsz;
  }
  for (int i = 0; is_kernel && i < info->dlpi_phnum; ++i) {
    const auto& ph = info->dlpi_phdr[i];
    const auto lo = (const uint8_t*)info->dlpi_addr + ph.p_vaddr;
    if (ph.p_type == PT_LOAD && !(ph.p_flags & PF_W)) {
      R.constants.push_back({lo, lo + ph.p_memsz});
    }
  }
  return is_kernel;
}

} // namespace

void map_memory() {
  R.constants.clear();
  dl_iterate_phdr(add_constants, (void*)R.launch->entry);
  R.tg_lo = R.tg_hi = nullptr;
  for (uint32_t i = 0; i < R.launch->n_tgvars; ++i) {
    const auto lo = (uint8_t*)R.launch->tgvars[i].base;
    const auto hi = lo + R.launch->tgvars[i].size;
    R.tg_lo = R.tg_lo && R.tg_lo < lo ? R.tg_lo : lo;
    R.tg_hi = R.tg_hi > hi ? R.tg_hi : hi;
  }
  if (R.tg_hi) {
    R.tg_hi += 4096; // an overrun of the last array is its own
  }
  R.tg_cells.assign(size_t(R.tg_hi - R.tg_lo), Cell());
  R.device_cells.assign(R.launch->n_bufs, {});
  for (uint32_t i = 0; i < R.launch->n_bufs; ++i) {
    const msl_buffer& b = R.launch->bufs[i];
    if (b.flags & MSL_BUF_OUT) {
      R.device_cells[i].resize(b.size / b.elem);
    }
  }
}

void check_outputs() {
  for (uint32_t i = 0; i < R.launch->n_bufs; ++i) {
    const msl_buffer& b = R.launch->bufs[i];
    if (!(b.flags & MSL_BUF_OUT) || (b.flags & MSL_BUF_INIT)) {
      continue;
    }
    uint64_t n_missing = 0, first = 0;
    for (uint64_t e = 0; e < R.device_cells[i].size(); ++e) {
      if (R.device_cells[i][e].write.tid == kNobody && n_missing++ == 0) {
        first = e;
      }
    }
    if (n_missing) {
      add_finding(
          "unwritten-output",
          std::string("output ") + b.name + ": " + std::to_string(n_missing) +
              " of " + std::to_string(R.device_cells[i].size()) +
              " elements never written, first " + std::to_string(first),
          0,
          0,
          kByAddress);
    }
  }
}

extern "C" {

#define PC (uint64_t) __builtin_return_address(0)

void msl_atomic_access(const void* p, unsigned n, int kind) {
  access((const uint8_t*)p, n, kind != MSL_LOAD, kind, PC);
}

#define MSL_HOOKS(n)                                    \
  void __tsan_read##n(void* p) {                        \
    access((const uint8_t*)p, n, false, MSL_PLAIN, PC); \
  }                                                     \
  void __tsan_write##n(void* p) {                       \
    access((const uint8_t*)p, n, true, MSL_PLAIN, PC);  \
  }                                                     \
  void __tsan_read_write##n(void* p) {                  \
    access((const uint8_t*)p, n, false, MSL_PLAIN, PC); \
    access((const uint8_t*)p, n, true, MSL_PLAIN, PC);  \
  }                                                     \
  void __tsan_unaligned_read##n(void* p) {              \
    access((const uint8_t*)p, n, false, MSL_PLAIN, PC); \
  }                                                     \
  void __tsan_unaligned_write##n(void* p) {             \
    access((const uint8_t*)p, n, true, MSL_PLAIN, PC);  \
  }                                                     \
  void __tsan_unaligned_read_write##n(void* p) {        \
    access((const uint8_t*)p, n, false, MSL_PLAIN, PC); \
    access((const uint8_t*)p, n, true, MSL_PLAIN, PC);  \
  }
MSL_HOOKS(1)
MSL_HOOKS(2)
MSL_HOOKS(4)
MSL_HOOKS(8)
MSL_HOOKS(16)
#undef MSL_HOOKS

static void access_range(const void* p, size_t n, bool is_write, uint64_t pc) {
  for (size_t i = 0; i < n; i += 4) {
    const auto part = unsigned(n - i < 4 ? n - i : 4);
    access((const uint8_t*)p + i, part, is_write, MSL_PLAIN, pc);
  }
}
void __tsan_read_range(void* p, unsigned long n) {
  access_range(p, n, false, PC);
}
void __tsan_write_range(void* p, unsigned long n) {
  access_range(p, n, true, PC);
}
void* __tsan_memcpy(void* d, const void* s, unsigned long n) {
  access_range(s, n, false, PC);
  access_range(d, n, true, PC);
  return memcpy(d, s, n);
}
void* __tsan_memset(void* d, int c, unsigned long n) {
  access_range(d, n, true, PC);
  return memset(d, c, n);
}
void* __tsan_memmove(void* d, const void* s, unsigned long n) {
  access_range(s, n, false, PC);
  access_range(d, n, true, PC);
  return memmove(d, s, n);
}
void __tsan_func_entry(void*) {
}
void __tsan_func_exit() {
}
void __tsan_init() {
}
}
