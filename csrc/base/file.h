/** One file opened for reading, closed with the object. Reads whole spans at
 *  absolute offsets; knows no formats and no writing. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace qwenmtp {

class File {
 public:
  /** Opens read-only and close-on-exec. Throws IoError. */
  explicit File(std::string path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const {
    return path_;
  }

  /** Bytes in the file when it was opened. */
  uint64_t size() const {
    return size_;
  }

  /** Fill `out` from `offset`; resumes after signals and partial reads. Throws
   *  IoError on an error and on an end of file before `out` is full. Safe to
   *  call from several threads. */
  void pread_exact(uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/** What File calls to read; the test extension puts its faults here. */
using PreadFunction = long (*)(int fd, void* out, size_t bytes, int64_t offset);
void set_pread_function(PreadFunction function);

} // namespace qwenmtp
