/** What a launcher hands to a CPU body: plain pointers and sizes, no MLX. The
 *  bodies are compiled once per instruction set; bodies() is the set in use. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace qwenmtp::kernels::cpu {

/** Storage of a dense tensor. Activations are f32 or bf16. */
enum class Type : uint8_t { f32, bf16, f16 };

/** Rows of a tensor whose last axis is contiguous. Strides count elements. */
struct Rows {
  const void* data = nullptr;
  int64_t stride = 0;
};

struct OutRows {
  void* data = nullptr;
  int64_t stride = 0;
};

/** A small tensor read once per call in any storage: norm weights, conv taps.
 */
struct Vector {
  const void* data = nullptr;
  Type type = Type::f32;
};

/** [out, in], or a stack [E, out, in] of them. bits == 0: dense of `type`.
 *  Else affine codes, low bits first, with scales and biases of `type`
 *  [out, in / group]: value = scale * code + bias. */
struct Weights {
  const void* data = nullptr;
  const void* scales = nullptr;
  const void* biases = nullptr;
  int64_t row_bytes = 0;
  int64_t stack_bytes = 0;
  int64_t scale_row = 0; // elements between rows of scales, and of biases
  int64_t scale_stack = 0;
  int32_t out = 0;
  int32_t in = 0;
  int32_t bits = 0;
  int32_t group = 0;
  Type type = Type::f32;
};

inline constexpr int kMaxMatrices = 8;

struct RowsCall {
  Type type;
  int32_t n_rows;
  int32_t n_matrices;
  Rows x; // [n, in]
  Weights weights[kMaxMatrices];
  OutRows y[kMaxMatrices]; // [n, out]
};

struct EmbedCall {
  Type type;
  int32_t n_rows;
  int32_t copies;
  const int32_t* ids; // [n], rows of the table
  Weights table;
  void* y; // [n, copies * in]
};

struct NormCall {
  Type type;
  int32_t n_rows;
  int32_t width;
  float eps;
  Rows x;        // [n, width]
  Vector weight; // [width]
  OutRows y;     // [n, width]
};

/** Streams x [n, C * H]: optionally x[s] += inject[s] * y first, then the gated
 *  mean of the normalised streams. Without `mix` only the write happens. */
struct HyperCall {
  Type type;
  int32_t n_rows;
  int32_t streams;
  int32_t hidden;
  float eps;
  Rows x;
  Rows y;      // [n, H]; data is null: read only
  Rows inject; // [n, C], of the read before
  OutRows x_out;
  Vector norm;        // [C * H]
  Weights gates[2];   // down [R, C * H], then inject [C, C * H] where
                      // `inject_out` is set
  Weights up;         // [C * H, R]
  OutRows mix;        // [n, H]
  OutRows inject_out; // [n, C]; data is null in mixers
};

struct GdnCall {
  Type type;
  int32_t n_rows;
  int32_t key_heads;
  int32_t value_heads;
  int32_t key_dim;
  int32_t value_dim;
  int32_t kernel;
  float eps;
  Rows qkv;           // [n, 2 * Hk * Dk + Hv * Dv]
  Rows z;             // [n, Hv * Dv]
  Rows a;             // [n, Hv]
  Rows b;             // [n, Hv]
  Rows conv;          // [kernel - 1, channels]
  const float* delta; // [Hv, Dv, Dk]
  Vector taps;        // [kernel, channels]
  Vector decay_rate;  // [Hv], exp(A_log)
  Vector dt_bias;     // [Hv]
  Vector norm;        // [Dv]
  OutRows y;          // [n, Hv * Dv]; data is null: states only
  OutRows conv_out;
  float* delta_out;
};

struct MoeCall {
  Type type;
  int32_t n_rows;
  int32_t top_k;
  Rows u; // [n, H]
  Weights
      first[4]; // router [E, H], shared gate, up [Is, H], shared weight [1, H]
  Weights gate; // [E, I, H]
  Weights up;   // [E, I, H]
  Weights down; // [E, H, I]
  Weights shared_down; // [H, Is]
  OutRows y;           // [n, H]
  int32_t* ids;        // [n, K], as summed
  OutRows weights;     // [n, K]
};

struct QsaPrepareCall {
  Type type;
  int32_t n_rows;
  int32_t n_blocks; // that become complete with these rows
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t index_heads;
  int32_t index_dim;
  int32_t ratio;
  int32_t half; // rotary_dim / 2
  int32_t tail; // rows of the incomplete block before these
  float eps;
  Rows q_gate;      // [n, Hq * 2 * D]: per head D of query, D of gate
  Rows k;           // [n, Hkv * D]
  Rows v;           // [n, Hkv * D]
  Rows index;       // [n, (Hi + 1) * Di]
  Rows raw_tail;    // [tail, Di]
  const float* cos; // [n, half]
  const float* sin;
  const float* block_cos; // [n_blocks, half]
  const float* block_sin;
  Vector q_norm;       // [D]
  Vector k_norm;       // [D]
  Vector index_q_norm; // [Di]
  Vector index_k_norm; // [Di]
  void* q;             // [n, Hq, D]; null: no queries
  void* k_out;         // [Hkv, n, D]
  void* v_out;         // [Hkv, n, D]
  void* index_q;       // [n, Hi, Di]
  void* raw;           // [n, Di]
  void* pooled;        // [n_blocks, Di]
};

struct QsaAttendCall {
  Type type;
  int32_t n_rows;
  int32_t first; // position of row 0
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t index_heads;
  int32_t index_dim;
  int32_t ratio;
  int32_t budget_blocks;
  Rows q;           // [n, Hq * D]
  Rows q_gate;      // [n, Hq * 2 * D]
  Rows index_q;     // [n, Hi * Di]
  const void* keys; // [Hkv, >= first + n, D]
  const void* values;
  int64_t key_head; // elements between heads
  int64_t value_head;
  int64_t key_row; // elements between positions
  int64_t value_row;
  Rows pooled;     // [>= (first + n) / ratio, Di]
  OutRows y;       // [n, Hq * D]
  int32_t* blocks; // [n, budget_blocks] ascending, -1 behind the last
};

struct PleCall {
  Type type;
  int32_t n_rows;
  int32_t streams;
  int32_t hidden;
  int32_t kernel;
  int32_t dilation;
  float eps;
  Rows x;     // [n, C * H]
  Rows key;   // [n, C * H]
  Rows value; // [n, H]
  Rows conv;  // [(kernel - 1) * dilation, C * H]
  Vector norm_key;
  Vector norm_query;
  Vector norm_conv;
  Vector taps;    // [kernel, C * H]
  OutRows added;  // [n, C * H]
  OutRows normed; // [n, C * H]: what the convolution saw
  OutRows conv_out;
};

struct SampleCall {
  Type type;
  int32_t n_rows;
  int32_t size; // of the vocabulary
  int32_t most; // candidates of a row
  float scale;
  Rows logits;   // [n, size]
  float* top;    // [n, most], by id
  int32_t* ids;  // [n, most] ascending
  int32_t* ties; // [n]
  float* total;  // [n, 2]: maximum, sum of exponentials
};

struct PickCall {
  int32_t n; // candidates
  int32_t k;
  float top_p; // 1: no nucleus
  float u;
  const float* top;   // [n]
  const int32_t* ids; // [n] ascending
  const float* total; // [2], of SampleCall
  int32_t* token;     // [1]
};

/** One function per family, for one instruction set. */
struct Bodies {
  const char* isa;
  void (*rows)(const RowsCall&);
  void (*embed)(const EmbedCall&);
  void (*norm)(const NormCall&);
  void (*hyper)(const HyperCall&);
  void (*gdn)(const GdnCall&);
  void (*moe)(const MoeCall&);
  void (*qsa_prepare)(const QsaPrepareCall&);
  void (*qsa_attend)(const QsaAttendCall&);
  void (*ple)(const PleCall&);
  void (*sample)(const SampleCall&);
  void (*pick)(const PickCall&);
};

/** The set in use: the widest that this machine runs. Throws DeviceError on an
 *  x86-64 machine without AVX2 and FMA. */
const Bodies& bodies();

/** Instruction sets that this machine runs, narrowest first. */
std::vector<std::string> available_isas();

/** Replaces the set in use. For tests: bits do not depend on it. */
void select_isa(const std::string& name);

} // namespace qwenmtp::kernels::cpu
