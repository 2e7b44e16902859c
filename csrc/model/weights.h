/** Tensors of a checkpoint by name, in any of the three layouts, read once and
 *  checked. Knows where a tensor lies and what it must look like; headers are
 *  parsed by the caller, who passes names, dtypes, shapes and file offsets. */
#pragma once

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <mlx/mlx.h>

#include "base/file.h"
#include "kernels/rows.h"

namespace qwenmtp::model {

namespace mx = mlx::core;

/** Names and conventions of a container (model.md 3). */
enum class Layout { released, pack, vlm };

struct TensorRef {
  std::string dtype; // as safetensors spells it: "BF16", "U32", ...
  mx::Shape shape;
  int file = 0;
  uint64_t offset = 0; // absolute, in bytes
};

/** Affine quantisation of one module; bits 0 means dense. */
struct Quant {
  int bits = 0;
  int group_size = 0;
};

/** y = x W^T with W dense [out, in] or affine-packed; also stacks of experts
 *  [E, out, in]. Owns its arrays. */
struct Linear {
  mx::array weight;
  std::optional<mx::array> scales;
  std::optional<mx::array> biases;
  Quant quant;

  /** x [n, in] -> [n, out], in x's dtype. */
  mx::array operator()(const mx::array& x) const;
  kernels::Matrix matrix() const {
    return {weight, scales, biases, quant.bits, quant.group_size};
  }
  /** The first n outputs of a matrix, over the same memory. */
  Linear top(int n) const;
  size_t nbytes() const;
};

class Weights {
 public:
  /** `quant` maps module paths of the pack to their widths, with the pack-wide
   *  width under ""; `bytes_read` grows while tensors are read. Throws
   * ModelFormatError for a tensor that does not lie inside its file or whose
   * bytes do not match its dtype and shape. */
  Weights(
      Layout layout,
      std::vector<std::string> files,
      std::map<std::string, TensorRef> tensors,
      std::map<std::string, Quant> quant,
      mx::Dtype dtype,
      std::atomic<uint64_t>* bytes_read = nullptr);

  /** A pack of which only the n-gram table is read and the token embedding is
   *  zero: every other array has a shape and a type and no values, matrices are
   *  quantised as `width`. For graphs that are counted and never evaluated. `tensors` names the table's
   *  and whatever says which parts there are. */
  static Weights without_values(
      std::vector<std::string> files,
      std::map<std::string, TensorRef> tensors,
      Quant width,
      mx::Dtype dtype);

  Layout layout() const {
    return layout_;
  }
  mx::Dtype dtype() const {
    return dtype_;
  }
  bool has(const std::string& name) const {
    return tensors_.contains(name);
  }
  const TensorRef& ref(const std::string& name) const;
  const std::string& path(int file) const {
    return paths_[file];
  }

  /** A dense floating tensor of exactly `shape`, as `dtype`. */
  mx::array dense(
      const std::string& name,
      const mx::Shape& shape,
      mx::Dtype dtype);
  /** A norm weight as 1 + w (its effective value), whatever its container. */
  mx::array norm(const std::string& name, int size, bool one_centred);
  /** Integer buffer; its values are small. */
  std::vector<int64_t> integers(const std::string& name, int size);
  /** The matrix `module`.weight [..., out, in], dense or quantised. */
  Linear linear(const std::string& module, const mx::Shape& shape);
  /** The rows of several matrices over `in` columns as one, {module, rows} in
   *  order, with `zeros` zero rows behind. Dense in float32 where they are not
   *  all stored in one form, which no recipe does. */
  Linear stacked(
      const std::vector<std::pair<std::string, int>>& modules,
      int in,
      int zeros = 0);
  /** Stored without ".weight" in the released layout (packed experts). */
  Linear packed(const std::string& name, const mx::Shape& shape);
  /** Width of a module that has scales, for rows of `columns` values. */
  Quant quant(const std::string& module, int columns) const;

  /** `a`, evaluated: at load, so that no stored form outlives its conversion;
   *  without values, an array like it. */
  mx::array settled(const mx::array& a) const;

  /** Names a tensor as used, for those that are read elsewhere. */
  void claim(const std::string& name);
  /** Throws ModelFormatError naming a tensor that nobody asked for. */
  void require_all_used() const;
  /** Bytes read so far, by kind of tensor ("dense", "4-bit", ...). */
  const std::map<std::string, uint64_t>& bytes_by_kind() const {
    return bytes_by_kind_;
  }

 private:
  mx::array read(const std::string& name, const TensorRef& ref);
  /** Type in which a dense matrix stored as `stored` is held: as it lies in a
   *  float32 model, where widening it changes nothing; else the model's. */
  mx::Dtype kept(const std::string& stored) const;
  const TensorRef& expect(
      const std::string& name,
      const mx::Shape& shape,
      std::initializer_list<const char*> dtypes);

  Layout layout_;
  std::vector<std::string> paths_;
  std::vector<File> files_;
  std::map<std::string, TensorRef> tensors_;
  std::map<std::string, Quant> quant_;
  mx::Dtype dtype_;
  std::atomic<uint64_t>* bytes_read_;
  bool has_values_ = true;
  std::set<std::string> used_;
  std::map<std::string, uint64_t> bytes_by_kind_;
};

/** "[2, 3]", as error messages print shapes. */
std::string to_string(const mx::Shape& shape);

} // namespace qwenmtp::model
