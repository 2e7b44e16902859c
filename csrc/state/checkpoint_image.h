/** ModelState on its way into a QWMTKV02 file: which array is which tensor, and
 *  the geometry of a model's states. The bytes are checkpoint.h's. */
#pragma once

#include <string>
#include <vector>

#include "state/checkpoint.h"
#include "state/model_state.h"

namespace qwenmtp::state {

/** The geometry of a model's states. empty: a state without tokens; wide: C *
 *  H; dtype: of every array but the delta-rule matrix. */
Geometry geometry_of(
    const ModelState& empty,
    int vocab,
    int wide,
    mx::Dtype dtype);

/** A state at one moment, ready to be written. Shares the state's arrays, which
 *  a later forward copies before it writes; so any thread may write it while
 *  the session goes on. */
class StateImage {
 public:
  /** Evaluates. Throws InvalidArgument for a state, or a boundary of it,
   *  without the rows of its last token. */
  StateImage(
      const ModelState& state,
      Geometry geometry,
      Finish finish,
      std::string meta);

  uint64_t n_tokens() const {
    return head_.shape.n_tokens;
  }
  /** Of the file. */
  uint64_t n_bytes() const {
    return n_bytes_;
  }

  /** As write_checkpoint. */
  void write(
      int dir_fd,
      const std::string& name,
      const Digest& identity,
      const Digest& owner,
      const WriteOptions& options) const;

 private:
  /** One tensor: its memory, and where its logical bytes lie in it. */
  struct Part {
    mx::array array;
    uint64_t n_bytes;
    uint64_t run_bytes;
    uint64_t stride_bytes;
  };

  void add(const mx::array& a);
  void add_recurrent(const Boundary& boundary);
  void add_cache(const KvCache& cache);
  void seal();

  Geometry geometry_;
  CheckpointHead head_;
  uint64_t n_bytes_ = 0;
  std::vector<Part> parts_;
  std::vector<Source> sources_; // into parts_
};

} // namespace qwenmtp::state
