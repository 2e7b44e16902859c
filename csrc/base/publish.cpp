#include "base/publish.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "base/error.h"
#if defined(__APPLE__)
#include <sys/mount.h>
#include <sys/param.h>
#else
#include <sys/vfs.h>
#endif

namespace qwenmtp::base {
namespace {

[[noreturn]] void fail(const char* call, const std::string& name) {
  int error = errno;
  throw IoError(
      std::string("[publish.") + call + "] " + name + ": " +
          std::strerror(error),
      error);
}

/** ".tmp-<pid>-<random>": whose file it is, for those who clean up. */
std::string temp_name() {
  std::random_device entropy;
  char text[64];
  std::snprintf(
      text,
      sizeof text,
      ".tmp-%ld-%08x%08x",
      static_cast<long>(::getpid()),
      entropy(),
      entropy());
  return text;
}

void sync(int fd, Durability durability, const std::string& name) {
  if (durability == Durability::none) {
    return;
  }
#if defined(__APPLE__)
  // A plain fsync neither orders nor empties the drive's cache.
  int command = durability == Durability::full ? F_FULLFSYNC : F_BARRIERFSYNC;
  if (::fcntl(fd, command) == 0) {
    return;
  }
#endif
  if (::fsync(fd) != 0) {
    fail("sync", name);
  }
}

} // namespace

Publication::Publication(int dir_fd, std::string name)
    : dir_fd_(dir_fd), name_(std::move(name)), temp_name_(temp_name()) {
  fd_ = ::openat(
      dir_fd_,
      temp_name_.c_str(),
      O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC,
      0600);
  if (fd_ < 0) {
    fail("create", temp_name_);
  }
  ::fchmod(fd_, 0600);
#if defined(__APPLE__)
  ::fcntl(fd_, F_NOCACHE, 1); // leave the page cache to the n-gram table
#endif
}

Publication::~Publication() {
  if (!renamed_) {
    ::unlinkat(dir_fd_, temp_name_.c_str(), 0);
  }
  ::close(fd_);
}

void Publication::reserve(uint64_t n_bytes) {
  auto size = static_cast<off_t>(n_bytes);
#if defined(__APPLE__)
  fstore_t want = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, size, 0};
  if (::fcntl(fd_, F_PREALLOCATE, &want) != 0 && errno != ENOTSUP) {
    fail("reserve", temp_name_);
  }
#else
  if (::fallocate(fd_, 0, 0, size) != 0 && errno != EOPNOTSUPP) {
    fail("reserve", temp_name_);
  }
#endif
  if (::ftruncate(fd_, size) != 0) {
    fail("reserve", temp_name_);
  }
}

void Publication::write_at(std::span<const std::byte> data, uint64_t offset) {
  while (!data.empty()) {
    ssize_t n =
        ::pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      fail("write", temp_name_);
    }
#if defined(__linux__)
    // The disk starts now and not at the sync; no guarantee is taken from it.
    ::sync_file_range(
        fd_,
        static_cast<off_t>(offset),
        static_cast<off_t>(n),
        SYNC_FILE_RANGE_WRITE);
#endif
    data = data.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

void Publication::commit(
    Durability durability,
    const std::function<void(const char*)>& after) {
  auto step = [&](const char* name) {
    if (after) {
      after(name);
    }
  };
  sync(fd_, durability, temp_name_);
  step("synced");
  if (::renameat(dir_fd_, temp_name_.c_str(), dir_fd_, name_.c_str()) != 0) {
    fail("rename", name_);
  }
  renamed_ = true;
  step("renamed");
  if (durability != Durability::none && ::fsync(dir_fd_) != 0) {
    fail("sync", name_);
  }
  step("folder_synced");
}

bool is_local(int fd) {
  struct statfs info;
  if (::fstatfs(fd, &info) != 0) {
    fail("is_local", "folder");
  }
#if defined(__APPLE__)
  return (info.f_flags & MNT_LOCAL) != 0;
#else
  // linux/magic.h and the kernel sources: NFS, SMB1, SMB2, CIFS, AFS, Coda,
  // Ceph, 9p, FUSE, NCP.
  constexpr uint32_t kRemote[] = {
      0x6969,
      0x517B,
      0xFE534D42,
      0xFF534D42,
      0x5346414F,
      0x73757245,
      0x00C36400,
      0x01021997,
      0x65735546,
      0x564C};
  return std::ranges::find(kRemote, static_cast<uint32_t>(info.f_type)) ==
         std::end(kRemote);
#endif
}

} // namespace qwenmtp::base
