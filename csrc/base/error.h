/** Exceptions of the core, one class per remedy. Each carries the stable code
 *  under which Python raises it (python/qwenmtp/errors.py). Messages read
 *  "[room.function] fact, expected". */
#pragma once

#include <stdexcept>
#include <string>

namespace qwenmtp {

class Error : public std::runtime_error {
 public:
  Error(std::string code, const std::string& message)
      : std::runtime_error(message), code_(std::move(code)) {
  }

  /** Stable, machine-readable: "model_load_error", "ple_read_error", ... */
  const std::string& code() const {
    return code_;
  }

 private:
  std::string code_;
};

/** The caller's argument is out of its documented range. */
struct InvalidArgument : Error {
  explicit InvalidArgument(const std::string& message)
      : Error("invalid_request", message) {
  }
};

/** Config or tensors are not a qwen4_exp checkpoint we know. */
struct ModelFormatError : Error {
  explicit ModelFormatError(const std::string& message)
      : Error("model_load_error", message) {
  }
};

/** Opening, reading or writing a file failed. */
struct IoError : Error {
  explicit IoError(const std::string& message, int error_number = 0)
      : Error("io_error", message), error_number(error_number) {
  }

  int error_number; // errno of the failed call, 0 when there was none
};

/** A checkpoint was not restored or not written. outcome is a key of
 *  CHECKPOINT_CODES in python/qwenmtp/errors.py and says what becomes of the
 *  file; reason is a stable word for logs and tests. */
struct CheckpointError : Error {
  CheckpointError(
      const char* outcome,
      std::string reason,
      const std::string& message)
      : Error(std::string("checkpoint_") + outcome, message),
        outcome(outcome),
        reason(std::move(reason)) {
  }

  const char* outcome;
  std::string reason;
};

/** A logits row with NaN, +inf, or nothing but -inf. */
struct NonFiniteLogits : Error {
  explicit NonFiniteLogits(const std::string& message)
      : Error("non_finite_logits", message) {
  }
};

/** The n-gram table could not be read; no state has changed. */
struct PleReadError : Error {
  explicit PleReadError(const std::string& message)
      : Error("ple_read_error", message) {
  }
};

/** The caller cancelled where no partial answer can be returned. */
struct Cancelled : Error {
  explicit Cancelled(const std::string& message) : Error("cancelled", message) {
  }
};

/** This machine cannot run what was asked of it. */
struct DeviceError : Error {
  explicit DeviceError(const std::string& message)
      : Error("device_error", message) {
  }
};

/** A broken invariant of our own; never the caller's doing. */
struct InternalError : Error {
  explicit InternalError(const std::string& message)
      : Error("internal_error", message) {
  }
};

} // namespace qwenmtp
