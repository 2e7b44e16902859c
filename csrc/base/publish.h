/** A file that appears under its name whole or not at all, and the questions
 *  about a folder that decide whether it may hold such files. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace qwenmtp::base {

/** How far a finished file is pushed before it takes its name. barrier orders
 *  it before the rename (F_BARRIERFSYNC on macOS, fsync elsewhere); full also
 *  empties the drive's cache. */
enum class Durability { none, barrier, full };

/** Owns a temporary file, mode 0600, beside its future name in dir_fd, until
 *  commit renames it; the destructor unlinks what was not committed.
 *  Everything throws IoError with errno. dir_fd is borrowed. */
class Publication {
 public:
  Publication(int dir_fd, std::string name);
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  /** Sets the exact size and takes the disk space now. */
  void reserve(uint64_t n_bytes);

  /** Thread-safe: a positional write of all of data. */
  void write_at(std::span<const std::byte> data, uint64_t offset);

  /** Sync, rename, sync the folder. after(step) runs behind each of "synced",
   *  "renamed" and "folder_synced". */
  void commit(
      Durability durability,
      const std::function<void(const char*)>& after = {});

 private:
  int dir_fd_;
  int fd_ = -1;
  std::string name_;
  std::string temp_name_;
  bool renamed_ = false;
};

/** Whether fd lies on a file system of this machine: no network, no FUSE. */
bool is_local(int fd);

} // namespace qwenmtp::base
