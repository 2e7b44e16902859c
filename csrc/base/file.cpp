#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace qwenmtp {
namespace {

long system_pread(int fd, void* out, size_t bytes, int64_t offset) {
  return ::pread(fd, out, bytes, static_cast<off_t>(offset));
}

std::atomic<PreadFunction> read_function{system_pread};

} // namespace

void set_pread_function(PreadFunction function) {
  read_function = function != nullptr ? function : system_pread;
}

File::File(std::string path) : path_(std::move(path)) {
  do {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) {
    throw IoError(
        "[base.File] " + path_ + ": " + std::strerror(errno) +
        ", expected a readable file");
  }
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw IoError(
        "[base.File] " + path_ + " is not a regular file, expected one");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

File::~File() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_) {
}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

void File::pread_exact(uint64_t offset, std::span<std::byte> out) const {
  const PreadFunction read = read_function.load(std::memory_order_relaxed);
  size_t done = 0;
  while (done < out.size()) {
    const long n = read(
        fd_,
        out.data() + done,
        out.size() - done,
        static_cast<int64_t>(offset + done));
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      const std::string fact = n == 0 ? "end of file" : std::strerror(errno);
      throw IoError(
          "[base.File] " + path_ + ": " + fact + " at byte " +
          std::to_string(offset + done) + ", expected " +
          std::to_string(out.size() - done) + " more");
    }
  }
}

} // namespace qwenmtp
