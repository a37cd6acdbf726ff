// Copyright 2026 the reluformers authors
// SPDX-License-Identifier: Apache-2.0
//
// Norms of rows on a CPU, forward and backward, each in one pass over memory.
//
//     y = a ⊙ x / ρ,   a = g ⊙ σ(w⊙x), g or 1,   ρ = √(mean(x²) + ε), or max(‖x‖, ε) and 1 at x = 0
//
// `__init__.py` fills `Norm`, and PyTorch's own threads call `norm_forward` and `norm_backward`.
#include <math.h>

#include "vectors.h"

typedef struct {
  const void *input, *grad_output;
  void *output;                   // The backward pass writes the gradient of x to `output`.
  const float *gain, *gate;       // Gain g and gate w of a norm are [width], or NULL.
  float *grad_gain, *grad_gate;   // Gradients of gain and gate are [parts, width], or NULL.
  float *scratch;                 // Scratch memory has the shape [parts, scratch_size].
  int64_t scratch_size, rows, width;
  int64_t parts;                  // Each part of the rows has its own sums of gradients, so that threads never wait.
  float eps;
  int32_t is_mean, is_bfloat16;
} Norm;

INLINE void *row_pointer(const Norm *norm, const void *states, int64_t row) {
  return (char *)states + row * norm->width * (norm->is_bfloat16 ? 2 : 4);
}

// Both passes of a norm divide rows by ρ. The backward pass needs the slope dρ/d(½·Σ x²) too.
typedef struct {
  float factor, slope;
} Scale;

INLINE Scale scale_of(const Norm *norm, const void *row, int is_bfloat16) {
  vec squares = splat(0);
  for (int64_t d = 0; d < norm->width; d += LANES) {
    vec x = read_vector(is_bfloat16, row, d, norm->width);
    squares += x * x;
  }
  float total = sum_of(squares);
  if (norm->is_mean) {
    float factor = 1 / sqrtf(total / norm->width + norm->eps);
    return (Scale){factor, factor / norm->width};
  }
  float length = sqrtf(total), factor = length == 0 ? 1 : 1 / (length < norm->eps ? norm->eps : length);
  return (Scale){factor, length < norm->eps ? 0 : factor};
}

INLINE void forward_row(const Norm *norm, int64_t row, int is_bfloat16, int has_gain, int has_gate) {
  const void *input = row_pointer(norm, norm->input, row);
  Scale scale = scale_of(norm, input, is_bfloat16);
  for (int64_t d = 0; d < norm->width; d += LANES) {
    vec x = read_vector(is_bfloat16, input, d, norm->width), y = x * scale.factor;
    if (has_gain) y *= LOAD(norm->gain + d);
    if (has_gate) y *= sigmoid_of(LOAD(norm->gate + d) * x);
    write_vector(is_bfloat16, row_pointer(norm, norm->output, row), d, norm->width, y);
  }
}

// `direct` holds the gradient of a norm's input x at a constant ρ, because the part that comes through ρ needs a sum
// over the row first.
INLINE void backward_row(const Norm *norm, int64_t row, float *direct, float *grad_gain, float *grad_gate,
                         int is_bfloat16, int has_gain, int has_gate) {
  const void *input = row_pointer(norm, norm->input, row), *grad_output = row_pointer(norm, norm->grad_output, row);
  Scale scale = scale_of(norm, input, is_bfloat16);
  vec dot = splat(0);
  for (int64_t d = 0; d < norm->width; d += LANES) {
    vec x = read_vector(is_bfloat16, input, d, norm->width), of_input = splat(0);
    vec grad = read_vector(is_bfloat16, grad_output, d, norm->width);
    if (has_gain) {
      vec gain = LOAD(norm->gain + d), of_gain = grad * x * scale.factor;
      grad *= gain;
      if (has_gate) {
        vec gate = LOAD(norm->gate + d), open = sigmoid_of(gate * x), of_gate = of_gain * gain * open * (1 - open);
        STORE(grad_gate + d, LOAD(grad_gate + d) + of_gate * x);
        of_gain *= open;
        grad *= open;
        of_input = of_gate * gate;
      }
      STORE(grad_gain + d, LOAD(grad_gain + d) + of_gain);
    }
    dot += grad * x;
    STORE(direct + d, grad * scale.factor + of_input);
  }
  // The factors are multiplied in an order that avoids 1/ρ³, which may overflow.
  float share = sum_of(dot) * scale.factor * scale.slope * scale.factor;
  for (int64_t d = 0; d < norm->width; d += LANES) {
    vec x = read_vector(is_bfloat16, input, d, norm->width);
    write_vector(is_bfloat16, row_pointer(norm, norm->output, row), d, norm->width, LOAD(direct + d) - x * share);
  }
}

// Constant flags for dtype, gain and gate let the compiler make a loop without branches for each kind of norm.
#define BY_KIND(CALL) \
  switch (norm->is_bfloat16 * 3 + (norm->gain != NULL) + (norm->gate != NULL)) { \
    case 0: CALL(0, 0, 0); break; \
    case 1: CALL(0, 1, 0); break; \
    case 2: CALL(0, 1, 1); break; \
    case 3: CALL(1, 0, 0); break; \
    case 4: CALL(1, 1, 0); break; \
    default: CALL(1, 1, 1); \
  }

int64_t norm_scratch(const Norm *norm) { return 3 * round_up(norm->width, 16); }

void norm_forward(int64_t begin, int64_t end, void *context) {
  const Norm *norm = context;
  int64_t first = norm->rows * begin / norm->parts, last = norm->rows * end / norm->parts;
#define FORWARD(...) for (int64_t row = first; row < last; ++row) forward_row(norm, row, __VA_ARGS__)
  BY_KIND(FORWARD)
}

void norm_backward(int64_t begin, int64_t end, void *context) {
  const Norm *norm = context;
  for (int64_t part = begin; part < end; ++part) {
    int64_t first = norm->rows * part / norm->parts, last = norm->rows * (part + 1) / norm->parts;
    float *scratch = norm->scratch + part * norm->scratch_size;
    float *direct = take(&scratch, norm->width), *grad_gain = take(&scratch, norm->width);
    float *grad_gate = take(&scratch, norm->width);
    memset(grad_gain, 0, 2 * round_up(norm->width, 16) * sizeof(float));
#define BACKWARD(...) \
  for (int64_t row = first; row < last; ++row) backward_row(norm, row, direct, grad_gain, grad_gate, __VA_ARGS__)
    BY_KIND(BACKWARD)
    if (norm->gain) memcpy(norm->grad_gain + part * norm->width, grad_gain, norm->width * sizeof(float));
    if (norm->gate) memcpy(norm->grad_gate + part * norm->width, grad_gate, norm->width * sizeof(float));
  }
}
