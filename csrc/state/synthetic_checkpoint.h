/** A state of the released geometry made of random bytes: what benchmarks save
 *  and restore where the model is not at hand. */
#pragma once

#include <memory>
#include <vector>

#include "state/checkpoint.h"

namespace qwenmtp::state {

class SyntheticCheckpoint {
 public:
  /** An MTP state after n_tokens. */
  explicit SyntheticCheckpoint(uint64_t n_tokens);
  SyntheticCheckpoint(const SyntheticCheckpoint&) = delete;
  SyntheticCheckpoint& operator=(const SyntheticCheckpoint&) = delete;

  uint64_t payload_bytes() const {
    return n_payload_;
  }
  uint64_t write(int dir_fd, const std::string& name) const;
  /** Reads and checks a file into fresh memory, which is then freed. */
  static void read(int dir_fd, const std::string& name);

  /** The work of the checksums alone, on one thread. */
  uint32_t crc() const;
  Digest header_hash() const;

 private:
  CheckpointHead head_;
  uint64_t n_payload_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> tensors_;
  std::vector<Source> sources_;
};

} // namespace qwenmtp::state
