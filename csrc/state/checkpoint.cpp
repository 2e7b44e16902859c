#include "state/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "base/crc32.h"
#include "base/error.h"

namespace qwenmtp::state {
namespace {

constexpr size_t kMaxThreads = 4;
constexpr uint64_t kBytesPerThread = 16 << 20; // below, a thread costs more

std::atomic<uint64_t> allocated_bytes{0};

/** errno of a failed call as outcome busy. */
[[noreturn]] void unavailable(const std::string& what, int error) {
  bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  const char* reason = error == ENOENT ? "absent" : full ? "no_space" : "io";
  throw CheckpointError(
      "busy",
      reason,
      "[checkpoint] " + what + ": " + std::strerror(error));
}

[[noreturn]] void corrupt(const char* reason, const std::string& fact) {
  throw CheckpointError("corrupt", reason, "[checkpoint.read] " + fact);
}

void stop_if(const std::atomic<bool>* cancel) {
  if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
    throw CheckpointError("cancelled", "cancelled", "[checkpoint] cancelled");
  }
}

/** Bytes [at, at + n) of a tensor, run by run. */
template <typename Byte, typename F>
void each_run(const Runs<Byte>& runs, uint64_t at, uint64_t n, F f) {
  while (n > 0) {
    uint64_t inside = at % runs.run_bytes;
    uint64_t part = std::min(n, runs.run_bytes - inside);
    f(std::span<Byte>(
        runs.data + at / runs.run_bytes * runs.stride_bytes + inside,
        part));
    at += part;
    n -= part;
  }
}

template <typename Byte>
uint32_t crc_of(const Runs<Byte>& runs, uint64_t at, uint64_t n) {
  uint32_t crc = 0;
  each_run(runs, at, n, [&](std::span<const std::byte> part) {
    crc = base::crc32(crc, part);
  });
  return crc;
}

template <typename Byte>
Digest hash_of(const Runs<Byte>& runs, uint64_t n) {
  base::Sha256 hash;
  each_run(runs, 0, n, [&](std::span<const std::byte> part) {
    hash.update(part);
  });
  return hash.finish();
}

struct Piece {
  size_t tensor;
  uint64_t at; // in the tensor
  uint32_t n_bytes;
  uint32_t crc_idx;
};

/** Calls f(piece) for every piece of every tensor on up to four threads, the
 *  caller's among them, with a look at cancel before each. The first exception
 *  stops all and is thrown here. */
template <typename F>
void each_piece(
    std::span<const Extent> extents,
    const std::atomic<bool>* cancel,
    F f) {
  std::vector<Piece> pieces;
  uint64_t n_total = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& e = extents[i];
    for (uint32_t k = 0; k < e.n_crcs; ++k) {
      uint64_t at = k * kPiece;
      auto n = static_cast<uint32_t>(std::min(kPiece, e.n_bytes - at));
      pieces.push_back({i, at, n, e.first_crc + k});
    }
    n_total += e.n_bytes;
  }
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex error_lock;
  auto work = [&] {
    try {
      for (size_t i; (i = next.fetch_add(1)) < pieces.size();) {
        stop_if(cancel);
        f(pieces[i]);
      }
    } catch (...) {
      std::lock_guard lock(error_lock);
      if (!error) {
        error = std::current_exception();
      }
      next = pieces.size();
    }
  };
  size_t n_threads = std::clamp<size_t>(
      n_total / kBytesPerThread,
      1,
      std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMaxThreads));
  std::vector<std::thread> others;
  for (size_t t = 1; t < n_threads; ++t) {
    others.emplace_back(work);
  }
  work();
  for (auto& thread : others) {
    thread.join();
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

} // namespace

uint64_t checkpoint_allocated_bytes() {
  return allocated_bytes;
}

uint64_t checkpoint_bytes(
    const Geometry& geometry,
    const StateShape& shape,
    uint64_t meta_bytes) {
  return checkpoint_layout(schema(geometry, shape), shape, meta_bytes)
      .file_bytes;
}

uint64_t write_checkpoint(
    int dir_fd,
    const std::string& name,
    const CheckpointHead& head,
    const Geometry& geometry,
    std::span<const Source> sources,
    const WriteOptions& options) {
  auto step = [&](const char* what) {
    if (options.after) {
      options.after(what);
    }
    stop_if(options.cancel);
  };
  auto layout = checkpoint_layout(
      schema(geometry, head.shape),
      head.shape,
      head.meta.size());
  if (sources.size() != layout.extents.size()) {
    throw InvalidArgument(
        "[checkpoint.write] " + std::to_string(sources.size()) +
        " tensors, expected " + std::to_string(layout.extents.size()));
  }
  std::vector<uint32_t> crcs(layout.n_crcs);
  std::vector<Digest> hashes;
  // Refuses an unlawful head before a file exists.
  encode_header(head, layout, geometry.vocab, crcs, hashes);
  try {
    base::Publication file(dir_fd, name);
    step("created");
    file.reserve(layout.file_bytes);
    step("reserved");
    each_piece(layout.extents, options.cancel, [&](const Piece& piece) {
      const Source& source = sources[piece.tensor];
      crcs[piece.crc_idx] = crc_of(source, piece.at, piece.n_bytes);
      uint64_t offset = layout.extents[piece.tensor].offset + piece.at;
      each_run(
          source,
          piece.at,
          piece.n_bytes,
          [&](std::span<const std::byte> part) {
            file.write_at(part, offset);
            offset += part.size();
          });
      step("piece");
    });
    if (options.tensor_hashes) {
      for (size_t i = 0; i < sources.size(); ++i) {
        hashes.push_back(hash_of(sources[i], layout.extents[i].n_bytes));
      }
    }
    file.write_at(encode_header(head, layout, geometry.vocab, crcs, hashes), 0);
    step("header");
    file.commit(options.durability, options.after);
  } catch (const IoError& e) {
    unavailable(e.what(), e.error_number);
  }
  return layout.file_bytes;
}

CheckpointFile::CheckpointFile(int dir_fd, const std::string& name) {
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
#if defined(O_NOATIME)
  // The access time belongs to the store; only the owner may keep it.
  fd_ = ::openat(dir_fd, name.c_str(), kFlags | O_NOATIME);
  if (fd_ < 0 && errno == EPERM) {
    fd_ = ::openat(dir_fd, name.c_str(), kFlags);
  }
#else
  fd_ = ::openat(dir_fd, name.c_str(), kFlags);
#endif
  if (fd_ < 0) {
    if (errno == ELOOP) {
      throw CheckpointError(
          "unsafe_path",
          "symlink",
          "[checkpoint.open] a symbolic link");
    }
    unavailable("open", errno);
  }
  const char* unsafe = nullptr;
  if (::fstat(fd_, &stat_) != 0) {
    int error = errno;
    ::close(fd_);
    unavailable("fstat", error);
  } else if (!S_ISREG(stat_.st_mode)) {
    unsafe = "not_regular";
  } else if (stat_.st_uid != ::geteuid()) {
    unsafe = "foreign_owner";
  } else if (stat_.st_nlink != 1) {
    unsafe = "linked";
  } else if ((stat_.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    unsafe = "writable_by_others";
  }
  if (unsafe != nullptr) {
    ::close(fd_);
    throw CheckpointError(
        "unsafe_path",
        unsafe,
        std::string("[checkpoint.open] file is ") + unsafe +
            ", expected a private regular file with one link");
  }
#if defined(__APPLE__)
  ::fcntl(fd_, F_NOCACHE, 1); // leave the page cache to the n-gram table
#endif
}

CheckpointFile::~CheckpointFile() {
  ::close(fd_);
}

void CheckpointFile::read_at(std::span<std::byte> out, uint64_t offset) const {
  while (!out.empty()) {
    ssize_t n =
        ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      unavailable("read", errno);
    }
    if (n == 0) {
      corrupt("short_read", "file ends before its size");
    }
    out = out.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

Prologue CheckpointFile::prologue(const Expectation& expect) const {
  std::array<std::byte, kPrologueBytes> data;
  std::span<std::byte> head(data);
  // The magic alone decides about files of other formats.
  head = head.first(std::min<uint64_t>(n_bytes(), 8));
  read_at(head, 0);
  if (head.size() == 8 && std::memcmp(head.data(), "QWMTKV02", 8) == 0) {
    head = std::span(data).first(std::min<uint64_t>(n_bytes(), data.size()));
    read_at(head.subspan(8), 8);
  }
  return parse_prologue(head, n_bytes(), expect);
}

Header CheckpointFile::header(const Expectation& expect) const {
  Prologue p = prologue(expect);
  std::vector<std::byte> data(p.header_bytes);
  read_at(data, 0);
  return parse_header(data, p, expect);
}

void CheckpointFile::check_padding(const Header& header, size_t i) const {
  uint64_t end = header.extents[i].offset + header.extents[i].n_bytes;
  uint64_t next = i + 1 < header.extents.size() ? header.extents[i + 1].offset
                                                : header.file_bytes;
  std::array<std::byte, kPage> data;
  auto padding = std::span(data).first(next - end);
  read_at(padding, end);
  if (!std::ranges::all_of(padding, [](std::byte b) {
        return b == std::byte{0};
      })) {
    corrupt("padding", "padding behind tensor " + std::to_string(i));
  }
}

void CheckpointFile::check_unchanged() const {
  struct stat now;
  if (::fstat(fd_, &now) != 0) {
    unavailable("fstat", errno);
  }
#if defined(__APPLE__)
  auto mtime = [](const struct stat& s) { return s.st_mtimespec; };
#else
  auto mtime = [](const struct stat& s) { return s.st_mtim; };
#endif
  if (now.st_size != stat_.st_size || now.st_ino != stat_.st_ino ||
      mtime(now).tv_sec != mtime(stat_).tv_sec ||
      mtime(now).tv_nsec != mtime(stat_).tv_nsec) {
    corrupt("changed", "file changed while it was read");
  }
}

void CheckpointFile::read(
    const Header& header,
    const std::function<Destination(size_t)>& place,
    const std::atomic<bool>* cancel) const {
  std::vector<Destination> to;
  try {
    for (size_t i = 0; i < header.extents.size(); ++i) {
      allocated_bytes += header.extents[i].n_bytes;
      to.push_back(place(i));
    }
  } catch (const std::bad_alloc&) {
    unavailable("allocate", ENOMEM);
  }
  each_piece(header.extents, cancel, [&](const Piece& piece) {
    const Extent& extent = header.extents[piece.tensor];
    const Destination& runs = to[piece.tensor];
    uint64_t offset = extent.offset + piece.at;
    each_run(runs, piece.at, piece.n_bytes, [&](std::span<std::byte> part) {
      read_at(part, offset);
      offset += part.size();
    });
    if (crc_of(runs, piece.at, piece.n_bytes) != header.crcs[piece.crc_idx]) {
      corrupt("payload_crc", "CRC of tensor " + std::to_string(piece.tensor));
    }
    if (piece.at + piece.n_bytes == extent.n_bytes) {
      check_padding(header, piece.tensor);
    }
  });
  for (size_t i = 0; i < header.hashes.size(); ++i) {
    if (hash_of(to[i], header.extents[i].n_bytes) != header.hashes[i]) {
      corrupt("payload_hash", "SHA-256 of tensor " + std::to_string(i));
    }
  }
  stop_if(cancel);
  check_unchanged();
}

void CheckpointFile::verify(
    const Header& header,
    const std::atomic<bool>* cancel) const {
  auto buffer = std::make_unique_for_overwrite<std::byte[]>(kPiece);
  for (size_t i = 0; i < header.extents.size(); ++i) {
    const Extent& e = header.extents[i];
    base::Sha256 hash;
    for (uint32_t k = 0; k < e.n_crcs; ++k) {
      stop_if(cancel);
      uint64_t at = k * kPiece;
      std::span part(buffer.get(), std::min(kPiece, e.n_bytes - at));
      read_at(part, e.offset + at);
      if (base::crc32(0, part) != header.crcs[e.first_crc + k]) {
        corrupt("payload_crc", "CRC of tensor " + std::to_string(i));
      }
      if (!header.hashes.empty()) {
        hash.update(part);
      }
    }
    if (!header.hashes.empty() && hash.finish() != header.hashes[i]) {
      corrupt("payload_hash", "SHA-256 of tensor " + std::to_string(i));
    }
    check_padding(header, i);
  }
  check_unchanged();
}

} // namespace qwenmtp::state
