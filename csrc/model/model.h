/** A loaded checkpoint: geometry, trunk and, where there is one, MTP head. */
#pragma once

#include <memory>

#include "model/mtp_head.h"
#include "model/trunk.h"

namespace qwenmtp::model {

class Model {
 public:
  /** Checks the config, then reads and checks every tensor once. Throws
   *  ModelFormatError, IoError, and what ple::open_stager throws. */
  Model(
      const Config& config,
      Weights weights,
      const ple::OpenOptions& ple = {});

  const Config& config() const {
    return trunk_.config();
  }
  mx::Dtype dtype() const {
    return dtype_;
  }
  const Trunk& trunk() const {
    return trunk_;
  }
  /** Null without an MTP head. */
  const MtpHead* mtp_head() const {
    return head_ ? &*head_ : nullptr;
  }
  /** Bytes read, by stored form ("BF16", "4-bit", ...). */
  const std::map<std::string, uint64_t>& bytes_by_kind() const {
    return bytes_by_kind_;
  }

  // The head refers to the trunk.
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

 private:
  mx::Dtype dtype_;
  Trunk trunk_;
  std::optional<MtpHead> head_;
  std::map<std::string, uint64_t> bytes_by_kind_;
};

} // namespace qwenmtp::model
