/** Rows times weight matrices, y = x W^T: the projections of every layer. */
#pragma once

#include <optional>
#include <vector>

#include "kernels/kernel.h"

namespace qwenmtp::kernels {

/** A weight matrix [out, in], or a stack of them [E, out, in]. Dense (f32,
 * bf16, f16) when `scales` is empty; else affine-quantised: `weight` is u32
 * codes
 *  [.., out, in * bits / 32], scales and biases are bf16 or f32 [.., out, in /
 * group]. May be a view whose rows are contiguous. */
struct Matrix {
  array weight;
  std::optional<array> scales;
  std::optional<array> biases;
  int bits = 0;
  int group = 0;

  int out() const;
  int in() const;
};

/** What a node keeps of a Matrix; its arrays are among the node's inputs. */
struct MatrixForm {
  int out = 0;
  int in = 0;
  int bits = 0; // 0: dense
  int group = 0;
};

/** y_i [n, out_i] = x [n, in] W_i^T for each matrix, in x's dtype (f32 or
 * bf16); sums in float. Row r of y does not depend on the other rows. Throws
 * InvalidArgument on a mismatch of shapes or dtypes. */
std::vector<array> rows(
    const array& x,
    const std::vector<Matrix>& matrices,
    mlx::core::StreamOrDevice s = {});

/** Most rows of one launch of metal/rows.metal. */
inline constexpr int kTextRows = 8;
/** Above this many rows a matrix is multiplied by MLX's own operators. */
inline constexpr int kMostTextRows = 32;

/** Launches of metal/rows.metal, over at most kTextRows rows each; of more rows
 *  text_product makes several and joins them. */
array text_product(
    const array& x,
    const Matrix& m,
    int n_silu, // outputs below become silu(y / divisor), the others y /
                // divisor
    int divisor,
    mlx::core::StreamOrDevice s);
array text_glu(
    const array& x,
    const Matrix& gate,
    const Matrix& up,
    mlx::core::StreamOrDevice s);
/** u [n, H] and g [n, C] of low [n, R + 8] and z [n, C * H]. */
std::vector<array> text_mix(
    const array& low,
    const array& z,
    const Matrix& up,
    int streams,
    mlx::core::StreamOrDevice s);
/** Of `experts`' matrices those that `expert` [n, K] names, in `order`; y [n *
 * K, out]. */
array text_gather_glu(
    const array& x,
    const array& expert,
    const array& order,
    const Matrix& gate,
    const Matrix& up,
    mlx::core::StreamOrDevice s);
array text_gather(
    const array& x,
    const array& expert,
    const array& order,
    const array& weight,
    const Matrix& m,
    mlx::core::StreamOrDevice s);

/** Rows begin .. end - 1 of x [n, ...]. */
array rows_between(
    const array& x,
    int begin,
    int end,
    mlx::core::StreamOrDevice s);

/** For the launchers: appends the arrays of m to a node's inputs, and says how
 * to read them back in the same order. */
MatrixForm append(std::vector<array>& inputs, const Matrix& m);
cpu::Weights weights_of(
    const std::vector<array>& inputs,
    size_t& at,
    const MatrixForm& form);
/** Its rows begin .. begin + n - 1. */
cpu::Weights part_of(cpu::Weights w, int begin, int n);

/** Throws InvalidArgument unless m is [out, in], or a stack of `stack` such. */
void check_matrix(
    const char* where,
    const Matrix& m,
    int out,
    int in,
    int stack = 0);

/** Throws InvalidArgument unless a has `shape`; -1 is any size. */
void check_shape(
    const char* where,
    const char* name,
    const array& a,
    std::initializer_list<int> shape);

void check_dtype(
    const char* where,
    const char* name,
    const array& a,
    mlx::core::Dtype dtype);

/** Throws InvalidArgument unless a is float32 or bfloat16. */
void check_activation(const char* where, const array& a);

} // namespace qwenmtp::kernels
