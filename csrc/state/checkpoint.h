/** QWMTKV02 files: one conversation state each, written once under a temporary
 *  name and renamed, read with positional reads into memory of the caller.
 *  The bytes are in checkpoint_layout.h. No folders, no policy, no live state.
 *  Everything throws CheckpointError. */
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "base/publish.h"
#include "state/checkpoint_layout.h"

namespace qwenmtp::state {

/** Where one tensor's bytes lie in memory: runs of run_bytes, stride_bytes
 *  apart, in logical order. A dense tensor is a single run; the rows of a key
 *  slab with spare capacity are one run a head. */
template <typename Byte>
struct Runs {
  Byte* data;
  uint64_t run_bytes;
  uint64_t stride_bytes;
};
using Source = Runs<const std::byte>;
using Destination = Runs<std::byte>;

struct WriteOptions {
  base::Durability durability = base::Durability::barrier;
  bool tensor_hashes = false; // SHA-256 of each tensor into its record
  const std::atomic<bool>* cancel = nullptr;
  /** Runs behind each step: created, reserved, piece (one call each, from the
   *  worker threads), header, synced, renamed, folder_synced. */
  std::function<void(const char*)> after;
};

/** Writes name in dir_fd, replacing it only by the final rename. sources is in
 *  schema order and stays unchanged during the call. Returns the file's bytes.
 *  Outcomes: busy (reason no_space or io), cancelled. */
uint64_t write_checkpoint(
    int dir_fd,
    const std::string& name,
    const CheckpointHead& head,
    const Geometry& geometry,
    std::span<const Source> sources,
    const WriteOptions& options = {});

/** Size of the file that write_checkpoint would make. */
uint64_t checkpoint_bytes(
    const Geometry& geometry,
    const StateShape& shape,
    uint64_t meta_bytes);

/** One file, open for reading. It must be a regular file with one link, owned
 *  by this user and not writable by others: else outcome unsafe_path. */
class CheckpointFile {
 public:
  CheckpointFile(int dir_fd, const std::string& name);
  ~CheckpointFile();
  CheckpointFile(const CheckpointFile&) = delete;
  CheckpointFile& operator=(const CheckpointFile&) = delete;

  uint64_t inode() const {
    return stat_.st_ino;
  }
  uint64_t n_bytes() const {
    return static_cast<uint64_t>(stat_.st_size);
  }

  /** Reads 256 bytes. */
  Prologue prologue(const Expectation& expect) const;

  /** Reads and checks the whole header. */
  Header header(const Expectation& expect) const;

  /** Reads every tensor into what place(index) gives, checks every CRC, the
   *  padding, the hashes, and that the file did not change. What place gave
   *  may be filled in part when this throws. */
  void read(
      const Header& header,
      const std::function<Destination(size_t)>& place,
      const std::atomic<bool>* cancel = nullptr) const;

  /** The checks of read through one buffer, nothing kept. */
  void verify(const Header& header, const std::atomic<bool>* cancel = nullptr)
      const;

 private:
  void read_at(std::span<std::byte> out, uint64_t offset) const;
  void check_padding(const Header& header, size_t i) const;
  void check_unchanged() const;

  int fd_ = -1;
  struct stat stat_ = {};
};

/** Tensor bytes for which readers of this process asked for memory so far. */
uint64_t checkpoint_allocated_bytes();

} // namespace qwenmtp::state
