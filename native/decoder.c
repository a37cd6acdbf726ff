// Copyright 2026 the reluformers authors
// SPDX-License-Identifier: Apache-2.0
//
// Translation by an encoder–decoder model on a CPU: encoder, decoder steps, and the search around them.
//
// `decoder.py` fills `Search`, and PyTorch's own threads call `translate`. A part has some of the sentences and never
// waits for another. Rows are tokens: the encoder has those of its sentences side by side without padding, the decoder
// the last one of each beam. Keys and values stay where they were written, and `ancestors` says where those of a beam
// are, because moving them after each step would cost more.
//
// Numbers are float32. Weights of a linear map may be bfloat16, which become float32 before they are multiplied, or
// int8; then its input rows are rounded to integers as well.
#include <math.h>

#include "vectors.h"

// Inputs of int8 weights are rounded to integers from −127 to 127: the sum of two products with int8, 2 · 127 · 128,
// fits into 16 bits.
#define QUANTIZATION_STEPS 254
#if defined(__AVX512VNNI__)
#define CENTER 0  // Left factors of VNNI's products are unsigned, so the lowest integer is 0.
#else
#define CENTER 127
#endif

// SUMS vectors of sums, and as many factors, fit into a CPU's registers, of which ARM has 32.
#if defined(__aarch64__)
#define SUMS 16
#else
#define SUMS LANES
#endif

enum {
  OUTPUTS = 16,  // A linear map takes OUTPUTS outputs at a time: their weights stay in the nearest cache for all rows.
  WIDENED_FOR = 8,     // From WIDENED_FOR rows on, widening bfloat16 weights once for all rows is faster.
  COLUMNS = 512,       // COLUMNS logits of a row stay in the cache until the best are chosen.
  ENCODER_ROWS = 256,  // The encoder takes sentences of up to ENCODER_ROWS tokens together, or one longer sentence.
};

typedef struct {  // A linear map computes y = x·Wᵀ + b.
  const void *weight;                   // The weights W are [out, in], or NULL if W is int8.
  const int8_t *packed;                 // Integer weights W are [out / 16, in / 4, 16, 4], filled up with zeros.
  // Each output i of int8 weights has a scale, and the sum Σ_j W_ij, which removes the offset of unsigned inputs.
  const float *scales, *sums;
  const float *factors;                 // Factors [out] multiply the outputs of a linear map, or are NULL.
  const float *bias;                    // The bias b of a linear map is [out], or NULL.
  int64_t in, out, is_bfloat16;
} Linear;

enum { NO_NORM, LAYER_NORM, RMS_NORM, UNIT_LENGTH };

typedef struct {
  const float *gain, *bias, *gate;  // Gain, bias and gate of a norm have the shape [width], or are NULL.
  const float *factor;              // The factor of a norm is one number for all its outputs, or NULL.
  float eps;
  int32_t kind;
} Norm;

enum { SOFTMAX = OTHER_ACTIVATIONS, SOFTMAX1, SOFTPICK, SPARSEMAX, ENTMAX15, GELU_TANH, SWISH };
enum { CONSTANT, LOG_LENGTH, SQRT_LOG_LENGTH };
enum { NO_GATE, LINEAR_GATE, SILU_GATE, SIGMOID_GATE };

typedef struct {
  Linear query, key, value, gate, output;
  Norm query_norm, key_norm, value_norm, query_length, key_length, output_norm;
  // In attention the scale is a, the thresholds are θ of each head or one, and the exponent of the divisor is α.
  const float *scale, *thresholds, *exponent;
  float coefficient;
  int32_t threshold_step;                      // The step between the θ of two heads is 0 if all heads share one θ.
  int32_t activation, scale_form, threshold_form, is_sum_one, gate_form, is_exclusive;
} Attention;

typedef struct {
  Attention own, cross;
  Norm own_norm, cross_norm, mlp_norm, inner_norm;
  Linear fc1, fc_linear, fc2;
  const float *beta;  // Swish, x·σ(βx), takes its β from this pointer.
  float temperature;  // The temperature divides the inputs of the feed-forward network's softmax.
  int32_t activation, has_rectified_values;
} Layer;

typedef struct {
  const void *embeddings;         // Embeddings of tokens are [vocabulary, width].
  // Embeddings of positions are [positions, width], and the bias of embeddings is [width] or NULL.
  const float *positions, *bias;
  Norm token_norm, sum_norm, last_norm;
  const Layer *layers;
  int64_t layer_count, heads;
  float factor;  // Embeddings of tokens are multiplied by `factor`.
  int32_t is_pre_norm, is_bfloat16;
} Stack;

typedef struct {  // A rule of the search holds for rows of first_length tokens or more, and of fewer than last_length.
  const int32_t *tokens;
  int64_t count, first_length, last_length;
  int64_t is_forced;  // A forced rule of the search allows only its one token next; any other rule forbids its tokens.
} Rule;

enum { EARLY_NO, EARLY_YES, EARLY_NEVER };

typedef struct {
  const Stack *encoder;        // The encoder is NULL if the caller passes its states, so that nothing is encoded here.
  const Stack *decoder;
  const Linear *logits;
  const int32_t *source;       // Tokens of all source sentences lie side by side [source tokens].
  const int64_t *starts;  // Each sentence begins at its entry of `starts` among the source tokens [sentences + 1].
  float *states;               // The encoder's last states are [source tokens, padded width].
  float *source_cache;         // Keys and values of the source are [layers, source tokens, 2, padded width].
  float *cache;                // Keys and values of target tokens are [capacity, layers, rows, 2, padded width].
  int32_t *tokens;             // The caller writes the prompt into the target tokens [longest, rows].
  int32_t *ancestors;  // Ancestors name the row that wrote each token of a row; steps alternate [2, rows, longest].
  float *running_scores;       // Scores log P of unfinished beams are in falling order [sentences, beams].
  float *finished_scores;  // Finished scores, log P over the length penalty, are in falling order [sentences, beams].
  int32_t *finished_lengths;  // A finished length of 0 marks a beam without a finished translation [sentences, beams].
  int32_t *finished;           // Tokens of finished translations are [sentences, beams, longest].
  int64_t *results;            // Tokens that the search returns are [sentences, returned, longest].
  int64_t *result_lengths;     // Lengths of the returned translations are [sentences, returned].
  uint8_t *is_done;            // Each sentence has a flag, which is 1 when its search is done.
  int64_t *lengths;            // Lengths count the tokens of a row in each part of the sentences, and are 0 at first.
  const Rule *rules;
  const int32_t *ends;         // A translation ends with one of the end tokens.
  const float *penalties;      // The n-th penalty divides log P of a translation of n tokens [longest + 1].
  float *shown_logits;  // Logits of the first beam after the prompt, to compare with those of PyTorch, or NULL.
  uint8_t *is_broken;          // Each thread's part has a flag for infinity and NaN, which comparisons would skip.
  float *scratch;              // Scratch memory has the shape [parts, scratch_size].
  int64_t scratch_size, sentences, beams, returned, prompt_len, longest, capacity, positions, max_length, width, inner;
  int64_t parts, rule_count, end_count, early_stopping, is_beam_search;
  int64_t is_renormalized;     // With renormalisation, log P is taken over the tokens that no rule forbids.
  float last_penalty;          // `last_penalty` is the length penalty of the longest possible translation.
} Search;

typedef struct {  // A query row sees the first `count` keys and values.
  const float *states;  // The state of a token is its key and its value.
  // `rows` names the row that wrote each key of the cache, or is NULL for keys that lie in order.
  const int32_t *rows;
  int64_t step, row, count, own;  // The query's own token has the index `own` among the keys.
} Keys;

typedef struct {
  int64_t width, inner;  // The widths of model and feed-forward rows include padding up to whole vectors.
  float *x, *y, *z, *query, *gate, *pair, *hidden, *linear;  // Buffers of states have a row for each token.
  uint8_t *bytes;
  float *steps, *lows;   // A byte of a quantised row stands for low + step · byte.
  float *logits, *best, *largest, *sum, *weights, *widened;
  int32_t *best_tokens, *slots, *sentences;
  Keys *keys;
  uint8_t *is_broken;
} Work;

typedef struct {
  const float *numbers;
  const uint8_t *bytes;
  int64_t row, bytes_row;
  const float *steps, *lows;
  float *widened;  // `widened` is memory for bfloat16 weights as float32.
  uint8_t *is_broken;
} Input;

// ---------------------------------------------------------------- Linear maps have float32, bfloat16 or int8 weights.

// `sum_each` adds LANES vectors pairwise: one vector then holds all their sums, which is faster than one sum at a
// time.
INLINE vec sum_each(vec sums[LANES]) {
#pragma GCC unroll 4
  for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i)
      sums[i] = FIRST_HALVES(sums[i], sums[i + half]) + SECOND_HALVES(sums[i], sums[i + half]);
  return sums[0];
}

// `dot_tile` computes min(`count`, SUMS / rows) outputs of a linear map; with few rows many outputs share each load of
// x.
INLINE void dot_tile(int rows, int is_bfloat16, const void *weight, int64_t in, int64_t count, const float *x,
                     int64_t x_row, float *y, int64_t y_row) {
  const int outputs = SUMS / rows, bytes = is_bfloat16 ? 2 : 4;
  vec sums[SUMS];
  const char *weights[SUMS];
#pragma GCC unroll 16
  for (int i = 0; i < SUMS; ++i) sums[i] = splat(0);
#pragma GCC unroll 16
  for (int o = 0; o < outputs; ++o) weights[o] = (const char *)weight + min_of(o, count - 1) * in * bytes;
  // Weights are prefetched in code, because the CPU's own prefetching does not look so far ahead.
  int64_t k = 0, ahead = 2 * OUTPUTS * in;
  for (; k + LANES <= in; k += LANES) {
    vec right[SUMS];
#pragma GCC unroll 16
    for (int o = 0; o < outputs; ++o) {
      __builtin_prefetch(weights[o] + (k + ahead) * bytes, 0, 2);
      right[o] = read_vector(is_bfloat16, weights[o], k, k + LANES);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      vec left = LOAD(x + r * x_row + k);
#pragma GCC unroll 16
      for (int o = 0; o < outputs; ++o) sums[r * outputs + o] += left * right[o];
    }
  }
  if (k < in)
#pragma GCC unroll 16
    for (int o = 0; o < outputs; ++o) {
      vec right = read_vector(is_bfloat16, weights[o], k, in);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) sums[r * outputs + o] += LOAD(x + r * x_row + k) * right;
    }
  float folded[SUMS];
#pragma GCC unroll 4
  for (int i = 0; i < SUMS; i += LANES) STORE(folded + i, sum_each(sums + i));
  size_t kept = (size_t)count < (size_t)outputs ? (size_t)count : (size_t)outputs;
  for (int r = 0; r < rows; ++r) {
    if (kept == (size_t)outputs) memcpy(y + r * y_row, folded + r * outputs, outputs * sizeof(float));
    else memcpy(y + r * y_row, folded + r * outputs, kept * sizeof(float));
  }
}

// Rows pass through a linear map in groups of four, two or one, so that a group's sums stay in registers.
INLINE void dot_rows(int is_bfloat16, const void *weight, int64_t in, int64_t count, Input input, int64_t rows,
                     float *y, int64_t y_row) {
  const int bytes = is_bfloat16 ? 2 : 4;
  for (int64_t r = 0; r < rows;) {
    const float *x = input.numbers + r * input.row;
    float *target = y + r * y_row;
#define DOTS(ROWS) \
  for (int64_t i = 0; i < count; i += SUMS / ROWS) \
    dot_tile(ROWS, is_bfloat16, (const char *)weight + i * in * bytes, in, count - i, x, input.row, target + i, \
             y_row); \
  r += ROWS
    if (rows - r >= 4) { DOTS(4); }
    else if (rows - r >= 2) { DOTS(2); }
    else { DOTS(1); }
  }
}

static void multiply_numbers(const Linear *map, int64_t first, int64_t last, Input input, int64_t rows, float *y,
                             int64_t y_row) {
  for (int64_t o = first; o < last; o += OUTPUTS) {
    int64_t count = min_of(OUTPUTS, last - o), start = o * map->in;
    if (!map->is_bfloat16) {
      dot_rows(0, (const float *)map->weight + start, map->in, count, input, rows, y + o - first, y_row);
    } else if (rows < WIDENED_FOR) {
      dot_rows(1, (const uint16_t *)map->weight + start, map->in, count, input, rows, y + o - first, y_row);
    } else {
      for (int64_t i = 0; i < count * map->in; i += LANES)
        write_vector(0, input.widened, i, count * map->in,
                     read_vector(1, (const uint16_t *)map->weight + start, i, count * map->in));
      dot_rows(0, input.widened, map->in, count, input, rows, y + o - first, y_row);
    }
  }
  if (map->factors || map->bias)
    for (int64_t r = 0; r < rows; ++r, y += y_row)
      for (int64_t o = first; o < last; o += LANES) {
        vec sums = read_vector(0, y, o - first, last - first);
        if (map->factors) sums *= read_vector(0, map->factors, o, last);
        if (map->bias) sums += read_vector(0, map->bias, o, last);
        write_vector(0, y, o - first, last - first, sums);
      }
}

// `multiply_bytes` adds the products of four bytes to each sum; the left bytes are made by `input_of`, so their range
// is known.
INLINE ivec multiply_bytes(ivec sums, ivec left, ivec right) {
#if defined(__AVX512VNNI__)
  return (ivec)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)left, (__m512i)right);
#elif defined(__AVX2__) && VECTOR_BYTES == 32
  // AVX2's maddubs takes unsigned left factors, so absolute values of the weights go there and their signs move to the
  // inputs.
  __m256i sizes = _mm256_abs_epi8((__m256i)right), signed_left = _mm256_sign_epi8((__m256i)left, (__m256i)right);
  return sums + (ivec)_mm256_madd_epi16(_mm256_maddubs_epi16(sizes, signed_left), _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
  return (ivec)vdotq_s32((int32x4_t)sums, (int8x16_t)left, (int8x16_t)right);
#else
  svec odd = ((svec)left >> 8) * ((svec)right >> 8), even = ((svec)left << 8 >> 8) * ((svec)right << 8 >> 8);
  ivec pairs = (ivec)(odd + even);
  return sums + (pairs << 16 >> 16) + (pairs >> 16);
#endif
}

// `byte_tile` computes four vectors of outputs from int8 weights, so that these share each load of the inputs' bytes.
INLINE void byte_tile(int rows, const Linear *map, int64_t first, int64_t last, const Input *input, int64_t row,
                      float *y, int64_t y_row) {
  ivec sums[4][4];
  int64_t steps = round_up(map->in, 4) / 4, ahead = 8 * LANES * steps * 4;
  const uint8_t *x = input->bytes + row * input->bytes_row;
  const int8_t *weights[4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    int64_t o = min_of(first + v * LANES, round_up(map->out, 16) - LANES);
    weights[v] = map->packed + o / 16 * steps * 64 + o % 16 * 4;
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) sums[r][v] = (ivec){0};
  }
  for (int64_t k = 0; k < steps; ++k) {
    ivec right[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      __builtin_prefetch(weights[v] + k * 64 + ahead, 0, 2);
      right[v] = *(const ivec *)(weights[v] + k * 64);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      int32_t word;
      memcpy(&word, x + r * input->bytes_row + k * 4, 4);
      ivec left = (ivec){0} + word;
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sums[r][v] = multiply_bytes(sums[r][v], left, right[v]);
    }
  }
  for (int v = 0; v < 4 && first + v * LANES < last; ++v) {
    int64_t o = first + v * LANES;
    vec scales = LOAD(map->scales + o), shifts = LOAD(map->sums + o);
    vec bias = map->bias ? read_vector(0, map->bias, o, map->out) : splat(0);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      vec product = __builtin_convertvector(sums[r][v], vec) * (scales * input->steps[row + r]);
      write_vector(0, y + r * y_row, v * LANES, last - first, product + shifts * input->lows[row + r] + bias);
    }
  }
}

static void multiply_integers(const Linear *map, int64_t first, int64_t last, Input input, int64_t rows, float *y,
                              int64_t y_row) {
  for (int64_t o = first; o < last; o += 4 * LANES)
    for (int64_t r = 0; r < rows;) {
      float *target = y + r * y_row + o - first;
#define BYTES(ROWS) byte_tile(ROWS, map, o, last, &input, r, target, y_row), r += ROWS
      if (rows - r >= 4) BYTES(4);
      else if (rows - r >= 2) BYTES(2);
      else BYTES(1);
    }
}

// `multiply_some` makes the outputs of a linear map from `first` up to `last`. `first` must be a multiple of LANES,
// because int8 weights lie in vectors.
static void multiply_some(const Linear *map, int64_t first, int64_t last, Input input, int64_t rows, float *y,
                          int64_t y_row) {
  if (map->packed) multiply_integers(map, first, last, input, rows, y, y_row);
  else multiply_numbers(map, first, last, input, rows, y, y_row);
  vec products = splat(0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < last - first; o += LANES) products += read_vector(0, y + r * y_row, o, last - first) * 0;
  // Infinity and NaN times 0 are NaN, which differs from 0, so broken outputs are noticed.
  if (sum_of(products) != 0) *input.is_broken = 1;
}

static void multiply(const Linear *map, Input input, int64_t rows, float *y, int64_t y_row) {
  multiply_some(map, 0, map->out, input, rows, y, y_row);
}

// Linear maps with int8 weights read rows of integers q, which stand for low + step·q; the lowest q is −CENTER.
static Input input_of(const Work *work, const Linear *map, const float *x, int64_t row, int64_t rows) {
  Input input = {x, work->bytes, row, round_up(map->in, 64), work->steps, work->lows, work->widened, work->is_broken};
  if (!map->packed) return input;
  for (int64_t r = 0; r < rows; ++r, x += row) {
    uint8_t *bytes = work->bytes + r * input.bytes_row;
    float low = x[0], high = x[0];
    int64_t d = 0;
    vec lows = splat(low), highs = splat(high), products = splat(0);
    for (; d + LANES <= map->in; d += LANES) {
      vec inputs = LOAD(x + d);
      products += inputs * 0;
      lows = blend(inputs < lows, inputs, lows);
      highs = blend(inputs > highs, inputs, highs);
    }
    for (int lane = 0; lane < LANES; ++lane) {
      low = lows[lane] < low ? lows[lane] : low;
      high = highs[lane] > high ? highs[lane] : high;
    }
    float broken = sum_of(products);
    for (int64_t i = d; i < map->in; ++i) {
      broken += x[i] * 0;
      low = x[i] < low ? x[i] : low;
      high = x[i] > high ? x[i] : high;
    }
    if (broken != 0) {  // A row with NaN or ∞ is not rounded to int8, because C leaves that undefined.
      *work->is_broken = 1;
      continue;
    }
    float span = high - low, factor = span > 1e-30f ? QUANTIZATION_STEPS / span : 0;
    for (d = 0; d + LANES <= map->in; d += LANES) {
      ivec numbers = __builtin_convertvector((LOAD(x + d) - low) * factor + 0.5f, ivec) - CENTER;
#if defined(__AVX512F__)
      _mm_storeu_si128((__m128i *)(bytes + d), _mm512_cvtepi32_epi8((__m512i)numbers));
#else
      for (int lane = 0; lane < LANES; ++lane) bytes[d + lane] = (uint8_t)numbers[lane];
#endif
    }
    for (; d < map->in; ++d) bytes[d] = (uint8_t)((int32_t)((x[d] - low) * factor + 0.5f) - CENTER);
    for (; d < input.bytes_row; ++d) bytes[d] = 0;
    work->steps[r] = span / QUANTIZATION_STEPS;
    work->lows[r] = low + CENTER * work->steps[r];
  }
  return input;
}

// ------------------------------------------------------------- Norms and activation functions take one row at a time.

static void normalize(const Norm *norm, const float *x, float *y, int64_t width) {
  float mean = 0, factor = 1;
  if (norm->kind == LAYER_NORM) {
    vec sums = splat(0);
    for (int64_t d = 0; d < width; d += LANES) sums += read_vector(0, x, d, width);
    mean = sum_of(sums) / width;
  }
  if (norm->kind != NO_NORM) {
    vec squares = splat(0);
    int64_t d = 0;
    for (; d + LANES <= width; d += LANES) squares += (LOAD(x + d) - mean) * (LOAD(x + d) - mean);
    float total = sum_of(squares);
    for (; d < width; ++d) total += (x[d] - mean) * (x[d] - mean);
    if (norm->kind == UNIT_LENGTH) {
      float length = sqrtf(total);
      factor = length == 0 ? 1 : 1 / (length < norm->eps ? norm->eps : length);
    } else {
      factor = 1 / sqrtf(total / width + norm->eps);
    }
  } else if (x == y) {
    return;
  }
  if (norm->factor) factor *= *norm->factor;
  for (int64_t d = 0; d < width; d += LANES) {
    vec inputs = read_vector(0, x, d, width), normed = (inputs - mean) * factor;
    if (norm->gain) normed *= read_vector(0, norm->gain, d, width);
    if (norm->bias) normed += read_vector(0, norm->bias, d, width);
    if (norm->gate) normed *= sigmoid_of(read_vector(0, norm->gate, d, width) * inputs);
    write_vector(0, y, d, width, normed);
  }
}

static void normalize_rows(const Norm *norm, const float *x, float *y, int64_t rows, int64_t row, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) normalize(norm, x + r * row, y + r * row, width);
}

static void normalize_heads(const Norm *norm, float *x, int64_t rows, int64_t row, int64_t heads, int64_t width) {
  if (norm->kind == NO_NORM) return;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < heads; ++h) {
      float *head = x + r * row + h * width;
      normalize(norm, head, head, width);
    }
}

// GELU by tanh and swish occur in feed-forward layers alone, so they are here and not in vectors.h.
INLINE vec function_of(vec z, int kind, float beta) {
  if (kind == GELU_TANH) return z * sigmoid_of(1.5957691f * (z + 0.044715f * z * z * z));
  if (kind == SWISH) return z * sigmoid_of(beta * z);
  return activated(z, kind);
}

static float largest_of(const float *z, int64_t count) {
  float largest = -INFINITY;
  for (int64_t j = 0; j < count; ++j) largest = z[j] > largest ? z[j] : largest;
  return largest;
}

// Rows of all functions below have memory up to a whole vector, so that loops take whole vectors.

// `exponentiate` subtracts the largest score, which keeps the powers finite. Callers divide by the sum of powers, so
// it is returned.
static float exponentiate(float *z, int64_t count, float largest) {
  vec sums = splat(0);
  for (int64_t j = 0; j < count; j += LANES) {
    vec powers = exp_of(LOAD(z + j) - largest);
    if (j + LANES > count) powers = masked(lane_indices() + (int32_t)j < (int32_t)count, powers);
    sums += powers;
    STORE(z + j, powers);
  }
  return sum_of(sums);
}

static void scale_row(float *z, int64_t count, float factor) {
  for (int64_t j = 0; j < count; j += LANES) STORE(z + j, LOAD(z + j) * factor);
}

// The weights of sparsemax (p = 1) and 1.5-entmax (p = 2) are max(z/p − τ, 0)^p and sum to 1. The threshold τ depends
// on the sorted scores, which `ordered` holds.
static void make_sparse(float *z, int64_t count, int power, float *ordered) {
  float largest = largest_of(z, count), sum = 0, squares = 0, threshold = -1;
  int64_t held = 0;
  for (int64_t j = 0; j < count; ++j) {
    z[j] = (z[j] - largest) / power;
    if (!(z[j] > -1)) continue;  // The threshold τ is at least -1, so lower scores get the weight 0.
    int64_t rank = held++;
    for (; rank && ordered[rank - 1] < z[j]; --rank) ordered[rank] = ordered[rank - 1];
    ordered[rank] = z[j];
  }
  for (int64_t k = 1; k <= held; ++k) {
    sum += ordered[k - 1];
    squares += ordered[k - 1] * ordered[k - 1];
    float mean = sum / k, rest = (1 - squares + sum * mean) / k;
    float candidate = power == 1 ? mean - 1.0f / k : mean - sqrtf(rest > 0 ? rest : 0);
    if (!(ordered[k - 1] > candidate)) break;
    threshold = candidate;
  }
  for (int64_t j = 0; j < count; ++j) {
    float weight = z[j] > threshold ? z[j] - threshold : 0;
    z[j] = power == 1 ? weight : weight * weight;
  }
}

// `weigh` replaces the scores of a row by weights, as scores are not needed again; `spare` is memory for sorting them.
static void weigh(int kind, float *z, int64_t count, float threshold, float *spare) {
  for (int64_t j = 0; threshold != 0 && j < count; ++j) z[j] -= threshold;
  if (kind < SOFTMAX) {
    for (int64_t j = 0; j < count; j += LANES) STORE(z + j, function_of(LOAD(z + j), kind, 1));
    return;
  }
  float largest = largest_of(z, count);
  switch (kind) {
    case SOFTMAX: scale_row(z, count, 1 / exponentiate(z, count, largest)); return;
    case SOFTMAX1:
      largest = largest > 0 ? largest : 0;
      scale_row(z, count, 1 / (exponentiate(z, count, largest) + expf(-largest)));
      return;
    case SOFTPICK: {
      largest = largest > 0 ? largest : 0;
      float one = expf(-largest), sum = 1e-6f * one;
      exponentiate(z, count, largest);
      for (int64_t j = 0; j < count; ++j) {
        sum += fabsf(z[j] - one);
        z[j] = z[j] > one ? z[j] - one : 0;
      }
      scale_row(z, count, 1 / sum);
      return;
    }
    default: make_sparse(z, count, kind == SPARSEMAX ? 1 : 2, spare);
  }
}

static float length_factor(int form, int64_t count, int64_t width) {
  if (form == CONSTANT) return 1;
  float logs = logf((float)(count < 1 ? 1 : count));
  return form == LOG_LENGTH ? logs : sqrtf(2 * logs / width);
}

// ---------------------------------------------------------- Attention computes the output of one query row at a time.

INLINE const float *key_of(const Keys *keys, int64_t j) {
  return keys->states + j * keys->step + (keys->rows ? keys->rows[j] * keys->row : 0);
}

INLINE vec dot(const float *a, const float *b, int64_t width) {
  vec sums = splat(0);
  int64_t d = 0;
  for (; d + LANES <= width; d += LANES) sums += LOAD(a + d) * LOAD(b + d);
  if (d < width) sums += read_vector(0, a, d, width) * read_vector(0, b, d, width);
  return sums;
}

// `add_values` computes Σ_j w_j·v_j for a constant number of vectors, whose sums stay in registers.
INLINE void add_values(int vectors, const Keys *keys, const float *weights, int64_t offset, int64_t d, int64_t width,
                       float *output) {
  vec sums[4];
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) sums[v] = splat(0);
  for (int64_t j = 0; j < keys->count; ++j) {
    if (weights[j] == 0) continue;
    const float *value = key_of(keys, j) + offset;
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      sums[v] += weights[j] * (vectors > 1 ? LOAD(value + d + v * LANES) : read_vector(0, value, d, width));
  }
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) write_vector(0, output, d + v * LANES, width, sums[v]);
}

// Exclusive attention removes the part of an output u along the query's own value v: u − (u·v̂) v̂. A rest as small as
// rounding becomes 0, as in Python, because its direction would be noise.
static void remove_projection(float *output, const float *value, int64_t width) {
  float along = sum_of(dot(output, value, width)), square = sum_of(dot(value, value, width));
  float whole = sum_of(dot(output, output, width)), length = sqrtf(square);
  float share = length == 0 ? 0 : along / (length < 1e-12f ? 1e-12f * 1e-12f : square);
  for (int64_t d = 0; d < width; ++d) output[d] -= share * value[d];
  float rest = sum_of(dot(output, output, width));
  if (sqrtf(rest) < 8 * 1.1920929e-7f * sqrtf(whole)) memset(output, 0, width * sizeof(float));
}

// `attend` takes heads one by one, because a decoding step has one query for each row.
static void attend(const Attention *attention, const Keys *keys, float *query, int64_t heads, int64_t width,
                   int64_t padded, float *weights, float *output) {
  int64_t count = keys->count;
  float factor = *attention->scale * length_factor(attention->scale_form, count, width);
  float exponent = *attention->exponent, divisor = attention->coefficient;
  if (exponent != 0) divisor *= powf((float)(count < 1 ? 1 : count), exponent);
  float *spare = weights + round_up(count, LANES);
  for (int64_t h = 0; h < heads; ++h) {
    const float *head = query + h * width;
    for (int64_t j = 0; j < count; j += LANES) {
      vec sums[LANES];
#pragma GCC unroll 16
      for (int i = 0; i < LANES; ++i)
        sums[i] = j + i < count ? dot(head, key_of(keys, j + i) + h * width, width) : splat(0);
      STORE(weights + j, sum_each(sums) * factor);
    }
    float threshold = attention->thresholds[h * attention->threshold_step];
    if (threshold != 0) threshold *= length_factor(attention->threshold_form, count, width);
    if (count) weigh(attention->activation, weights, count, threshold, spare);
    if (attention->is_sum_one) {
      float sum = 0;
      for (int64_t j = 0; j < count; ++j) sum += weights[j];
      divisor = sum == 0 ? 1 : sum;
    }
    if (divisor != 1) scale_row(weights, count, 1 / divisor);
    int64_t d = 0;
#define ADD(VECTORS) add_values(VECTORS, keys, weights, padded + h * width, d, width, output + h * width)
    for (; d + 4 * LANES <= width; d += 4 * LANES) ADD(4);
    for (; d + 2 * LANES <= width; d += 2 * LANES) ADD(2);
    for (; d < width; d += LANES) ADD(1);
    if (attention->is_exclusive)
      remove_projection(output + h * width, key_of(keys, keys->own) + padded + h * width, width);
  }
}

// A key and its value lie side by side [rows, 2, padded width], so that one copy moves both into the cache.
static void make_keys(const Attention *attention, const Work *work, Input input, int64_t rows, int64_t heads,
                      int64_t width, float *keys) {
  int64_t row = 2 * work->width;
  multiply(&attention->key, input, rows, keys, row);
  multiply(&attention->value, input, rows, keys + work->width, row);
  normalize_heads(&attention->key_norm, keys, rows, row, heads, width / heads);
  normalize_heads(&attention->key_length, keys, rows, row, heads, width / heads);
  normalize_heads(&attention->value_norm, keys + work->width, rows, row, heads, width / heads);
}

// `finish_attention` replaces `work->y` by the output of attention. Its callers make queries and `work->keys`, in
// which self- and cross-attention differ.
static void finish_attention(const Attention *attention, const Work *work, Input input, int64_t rows, int64_t heads,
                             int64_t width) {
  int64_t padded = work->width;
  float broken = (*attention->scale + *attention->exponent) * 0;
  for (int64_t h = 0; h < heads; ++h) broken += attention->thresholds[h * attention->threshold_step] * 0;
  if (broken != 0) *work->is_broken = 1;
  if (attention->gate_form != NO_GATE) multiply(&attention->gate, input, rows, work->gate, padded);
  for (int64_t r = 0; r < rows; ++r) {
    attend(attention, work->keys + r, work->query + r * padded, heads, width / heads, padded, work->weights,
           work->z + r * padded);
    normalize(&attention->output_norm, work->z + r * padded, work->z + r * padded, width);
    for (int64_t d = 0; attention->gate_form != NO_GATE && d < width; d += LANES) {
      vec gate = LOAD(work->gate + r * padded + d);
      if (attention->gate_form == SILU_GATE) gate *= sigmoid_of(gate);
      else if (attention->gate_form == SIGMOID_GATE) gate = sigmoid_of(gate);
      write_vector(0, work->z + r * padded, d, width, LOAD(work->z + r * padded + d) * gate);
    }
  }
  multiply(&attention->output, input_of(work, &attention->output, work->z, padded, rows), rows, work->y, padded);
}

static void make_queries(const Attention *attention, const Work *work, Input input, int64_t rows, int64_t heads,
                         int64_t width) {
  multiply(&attention->query, input, rows, work->query, work->width);
  normalize_heads(&attention->query_norm, work->query, rows, work->width, heads, width / heads);
  normalize_heads(&attention->query_length, work->query, rows, work->width, heads, width / heads);
}

// -------------------------------------------------------- Layers add the outputs of their branches to a residual sum.

// A branch of a layer reads `work->y`, because `work->x` must stay for the residual sum.
static void begin_branch(const Stack *stack, const Norm *norm, const Work *work, int64_t rows, int64_t width) {
  if (stack->is_pre_norm) normalize_rows(norm, work->x, work->y, rows, work->width, width);
  else memcpy(work->y, work->x, rows * work->width * sizeof(float));
}

static void end_branch(const Stack *stack, const Norm *norm, const Work *work, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows * work->width; i += LANES) STORE(work->x + i, LOAD(work->x + i) + LOAD(work->y + i));
  if (!stack->is_pre_norm) normalize_rows(norm, work->x, work->x, rows, work->width, width);
}

static void feed_forward(const Stack *stack, const Layer *layer, const Work *work, int64_t rows, int64_t width) {
  begin_branch(stack, &layer->mlp_norm, work, rows, width);
  int64_t inner = layer->fc1.out;
  Input input = input_of(work, &layer->fc1, work->y, work->width, rows);
  multiply(&layer->fc1, input, rows, work->hidden, work->inner);
  int is_gated = layer->fc_linear.out > 0;
  if (is_gated) multiply(&layer->fc_linear, input, rows, work->linear, work->inner);
  for (int64_t r = 0; r < rows; ++r) {
    float *hidden = work->hidden + r * work->inner, *values = work->linear + r * work->inner;
    if (layer->activation == SOFTMAX) {
      scale_row(hidden, inner, 1 / layer->temperature);
      scale_row(hidden, inner, 1 / exponentiate(hidden, inner, largest_of(hidden, inner)));
    }
    for (int64_t d = 0; d < inner; d += LANES) {
      vec activations = function_of(LOAD(hidden + d), layer->activation, *layer->beta);
      if (is_gated) {
        vec linear = LOAD(values + d);
        activations *= layer->has_rectified_values ? activated(linear, RELU) : linear;
      }
      write_vector(0, hidden, d, inner, activations);
    }
  }
  input = input_of(work, &layer->fc2, work->hidden, work->inner, rows);
  multiply(&layer->fc2, input, rows, work->y, work->width);
  normalize_rows(&layer->inner_norm, work->y, work->y, rows, work->width, width);
  end_branch(stack, &layer->mlp_norm, work, rows, width);
}

static void embed(const Stack *stack, int32_t token, int64_t position, int64_t width, float *x) {
  int is_bfloat16 = stack->is_bfloat16;
  const char *row = (const char *)stack->embeddings + token * width * (is_bfloat16 ? 2 : 4);
  for (int64_t d = 0; d < width; d += LANES) write_vector(0, x, d, width, read_vector(is_bfloat16, row, d, width));
  normalize(&stack->token_norm, x, x, width);
  const float *position_embedding = stack->positions + position * width;
  for (int64_t d = 0; d < width; d += LANES) {
    vec sum = read_vector(0, x, d, width) * stack->factor;
    if (stack->bias) sum += read_vector(0, stack->bias, d, width);
    write_vector(0, x, d, width, sum + read_vector(0, position_embedding, d, width));
  }
  normalize(&stack->sum_norm, x, x, width);
}

// `encode` takes the sentences from `first` up to `last` together, so that each weight is read once for all of them.
static void encode(const Search *search, const Work *work, int64_t first, int64_t last) {
  const Stack *stack = search->encoder;
  int64_t begin = search->starts[first], rows = search->starts[last] - begin, width = search->width;
  int64_t padded = work->width;
  for (int64_t s = first; s < last; ++s)
    for (int64_t index = search->starts[s]; index < search->starts[s + 1]; ++index) {
      int64_t own = index - search->starts[s], count = search->starts[s + 1] - search->starts[s];
      embed(stack, search->source[index], own, width, work->x + (index - begin) * padded);
      const float *states = work->pair + (search->starts[s] - begin) * 2 * padded;
      work->keys[index - begin] = (Keys){states, NULL, 2 * padded, 0, count, own};
    }
  for (const Layer *layer = stack->layers; layer < stack->layers + stack->layer_count; ++layer) {
    begin_branch(stack, &layer->own_norm, work, rows, width);
    Input input = input_of(work, &layer->own.query, work->y, padded, rows);
    make_queries(&layer->own, work, input, rows, stack->heads, width);
    make_keys(&layer->own, work, input, rows, stack->heads, width, work->pair);
    finish_attention(&layer->own, work, input, rows, stack->heads, width);
    end_branch(stack, &layer->own_norm, work, rows, width);
    feed_forward(stack, layer, work, rows, width);
  }
  for (int64_t r = 0; r < rows; ++r)
    normalize(&stack->last_norm, work->x + r * padded, search->states + (begin + r) * padded, width);
}

// `decode` computes only the last token of each row, into `work->y`, since the cache has the keys of earlier tokens.
static void decode(const Search *search, const Work *work, int64_t rows, int64_t position) {
  const Stack *stack = search->decoder;
  int64_t width = search->width, padded = work->width, all_rows = search->sentences * search->beams;
  int64_t source_tokens = search->starts[search->sentences], step = stack->layer_count * all_rows * 2 * padded;
  const int32_t *ancestors = search->ancestors + ((position + 1) & 1) * all_rows * search->longest;
  for (int64_t r = 0; r < rows; ++r)
    embed(stack, search->tokens[position * all_rows + work->slots[r]], position, width, work->x + r * padded);
  for (int64_t l = 0; l < stack->layer_count; ++l) {
    const Layer *layer = stack->layers + l;
    begin_branch(stack, &layer->own_norm, work, rows, width);
    Input input = input_of(work, &layer->own.query, work->y, padded, rows);
    make_queries(&layer->own, work, input, rows, stack->heads, width);
    make_keys(&layer->own, work, input, rows, stack->heads, width, work->pair);
    float *cache = search->cache + l * all_rows * 2 * padded;
    for (int64_t r = 0; r < rows; ++r) {
      int64_t slot = work->slots[r];
      memcpy(cache + position * step + slot * 2 * padded, work->pair + r * 2 * padded, 2 * padded * sizeof(float));
      work->keys[r] = (Keys){cache, ancestors + slot * search->longest, step, 2 * padded, position + 1, position};
    }
    finish_attention(&layer->own, work, input, rows, stack->heads, width);
    end_branch(stack, &layer->own_norm, work, rows, width);
    begin_branch(stack, &layer->cross_norm, work, rows, width);
    input = input_of(work, &layer->cross.query, work->y, padded, rows);
    make_queries(&layer->cross, work, input, rows, stack->heads, width);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t sentence = work->slots[r] / search->beams, start = search->starts[sentence];
      const float *states = search->source_cache + (l * source_tokens + start) * 2 * padded;
      work->keys[r] = (Keys){states, NULL, 2 * padded, 0, search->starts[sentence + 1] - start, 0};
    }
    finish_attention(&layer->cross, work, input, rows, stack->heads, width);
    end_branch(stack, &layer->cross_norm, work, rows, width);
    feed_forward(stack, layer, work, rows, width);
  }
  normalize_rows(&stack->last_norm, work->x, work->y, rows, padded, width);
}

// ----------------------------------------------------------------------- The best next tokens of each row are chosen.

INLINE uint32_t greater_bits(vec numbers, float than) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)numbers, _mm512_set1_ps(than), _CMP_GT_OQ);
#elif defined(__AVX__) && VECTOR_BYTES == 32
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)numbers, _mm256_set1_ps(than), _CMP_GT_OQ));
#elif defined(__aarch64__)
  return vaddvq_u32((uint32x4_t)((numbers > than) & (ivec){1, 2, 4, 8}));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < LANES; ++lane) bits |= (uint32_t)(numbers[lane] > than) << lane;
  return bits;
#endif
}

static void insert_candidate(float *best, int32_t *tokens, int64_t number, float value, int32_t token) {
  int64_t rank = number - 1;
  for (; rank && best[rank - 1] < value; --rank) {
    best[rank] = best[rank - 1];
    tokens[rank] = tokens[rank - 1];
  }
  best[rank] = value;
  tokens[rank] = token;
}

// Beam search looks at `candidate_count` continuations of a sentence in all, so a row needs at most as many.
static int64_t candidate_count(const Search *search) {
  int64_t number = search->is_beam_search ? (search->end_count > 1 ? 1 + search->end_count : 2) * search->beams : 1;
  return min_of(number, search->logits->out);
}

// A token that a rule forbids gets the logit −∞. `logits` begins at the token `first`, as the vocabulary is taken in
// blocks.
static void mask_forbidden(const Search *search, int64_t length, int64_t first, int64_t count, float *logits) {
  for (const Rule *rule = search->rules; rule < search->rules + search->rule_count; ++rule)
    for (int64_t i = 0; rule->first_length <= length && length < rule->last_length && i < rule->count; ++i)
      if (first <= rule->tokens[i] && rule->tokens[i] < first + count) logits[rule->tokens[i] - first] = -INFINITY;
}

// The vocabulary is taken in blocks, so that logits stay in the cache: `work->best` keeps the best so far in falling
// order. Beams need log P, for which a sum over the vocabulary is carried from block to block.
static void find_best_tokens(const Search *search, const Work *work, int64_t rows, int64_t length) {
  const Linear *map = search->logits;
  int64_t number = candidate_count(search);
  const Rule *forced = NULL;
  for (int64_t i = 0; i < rows * number; ++i) work->best[i] = -INFINITY, work->best_tokens[i] = 0;
  for (int64_t r = 0; r < rows; ++r) work->largest[r] = -INFINITY, work->sum[r] = 0;
  for (const Rule *rule = search->rules; rule < search->rules + search->rule_count; ++rule)
    if (rule->is_forced && rule->first_length <= length && length < rule->last_length) forced = rule;
  if (forced) {
    for (int64_t r = 0; r < rows; ++r) work->best[r * number] = 0, work->best_tokens[r * number] = *forced->tokens;
    return;
  }
  Input input = input_of(work, map, work->y, work->width, rows);
  for (int64_t first = 0; first < map->out; first += COLUMNS) {
    int64_t count = min_of(COLUMNS, map->out - first);
    multiply_some(map, first, first + count, input, rows, work->logits, COLUMNS);
    if (search->shown_logits) memcpy(search->shown_logits + first, work->logits, count * sizeof(float));
    for (int64_t r = 0; r < rows; ++r) {
      float *logits = work->logits + r * COLUMNS, *best = work->best + r * number;
      for (int64_t j = count; j < round_up(count, LANES); ++j) logits[j] = -INFINITY;
      if (search->is_renormalized) mask_forbidden(search, length, first, count, logits);
      if (search->is_beam_search) {
        vec most = LOAD(logits), sums = splat(0);
        for (int64_t j = LANES; j < count; j += LANES) most = blend(LOAD(logits + j) > most, LOAD(logits + j), most);
        float largest = work->largest[r];
        for (int lane = 0; lane < LANES; ++lane) largest = most[lane] > largest ? most[lane] : largest;
        for (int64_t j = 0; j < count; j += LANES) sums += exp_of(LOAD(logits + j) - largest);
        if (largest > -INFINITY) work->sum[r] = work->sum[r] * expf(work->largest[r] - largest) + sum_of(sums);
        work->largest[r] = largest;
      }
      if (!search->is_renormalized) mask_forbidden(search, length, first, count, logits);
      for (int64_t j = 0; j < count; j += LANES)
        for (uint32_t bits = greater_bits(LOAD(logits + j), best[number - 1]); bits; bits &= bits - 1) {
          int64_t column = j + __builtin_ctz(bits);
          if (logits[column] > best[number - 1])
            insert_candidate(best, work->best_tokens + r * number, number, logits[column], (int32_t)(first + column));
        }
    }
  }
  for (int64_t r = 0; search->is_beam_search && r < rows; ++r)
    for (int64_t i = 0; i < number; ++i)
      work->best[r * number + i] -= work->largest[r] + logf(work->sum[r]);
}

// ------------------------------------------------------------- The search appends tokens until each sentence is done.

static int is_end(const Search *search, int32_t token) {
  for (int64_t i = 0; i < search->end_count; ++i)
    if (search->ends[i] == token) return 1;
  return 0;
}

// While the greedy search runs, tokens of all sentences lie by step; a result is one row, so its tokens are copied
// when the sentence ends.
static void advance_greedily(const Search *search, int64_t sentence, int64_t length, int32_t token) {
  search->tokens[length * search->sentences + sentence] = token;
  if (!is_end(search, token) && length + 1 < search->max_length) return;
  search->is_done[sentence] = 1;
  search->result_lengths[sentence] = length + 1;
  for (int64_t p = search->prompt_len; p <= length; ++p)
    search->results[sentence * search->longest + p] = search->tokens[p * search->sentences + sentence];
}

// Finished translations of a sentence are kept in order of score, so that a better one pushes out the last, which is
// the worst.
static void insert_finished(const Search *search, int64_t sentence, const int32_t *rows, int64_t parent, int64_t length,
                   int32_t token, float score) {
  int64_t beams = search->beams, all_rows = search->sentences * beams, rank = beams - 1;
  float *scores = search->finished_scores + sentence * beams;
  int32_t *lengths = search->finished_lengths + sentence * beams;
  int32_t *finished = search->finished + sentence * beams * search->longest;
  for (; rank && scores[rank - 1] < score; --rank) {
    scores[rank] = scores[rank - 1];
    lengths[rank] = lengths[rank - 1];
    memcpy(finished + rank * search->longest, finished + (rank - 1) * search->longest,
           lengths[rank] * sizeof(int32_t));
  }
  scores[rank] = score;
  lengths[rank] = (int32_t)(length + 1);
  for (int64_t p = 0; p < length - 1; ++p)
    finished[rank * search->longest + p] = search->tokens[p * all_rows + rows[p]];
  finished[rank * search->longest + length - 1] = search->tokens[(length - 1) * all_rows + parent];
  finished[rank * search->longest + length] = token;
}

// `advance_beams` follows the rules of transformers' beam search to the letter, so that both give the same
// translation.
static void advance_beams(const Search *search, int64_t sentence, int64_t length, const float *best,
                          const int32_t *tokens) {
  int64_t beams = search->beams, all_rows = search->sentences * beams, first = sentence * beams;
  int64_t width = candidate_count(search), longest = search->longest, kept = 0, seen = 0;
  int64_t number = (search->end_count > 1 ? 1 + search->end_count : 2) * beams;
  const int32_t *old = search->ancestors + (length & 1) * all_rows * longest;
  int32_t *new = search->ancestors + ((length + 1) & 1) * all_rows * longest;
  int64_t next_ranks[beams], parents[beams];
  float kept_scores[beams];
  int32_t kept_tokens[beams];
  for (int64_t b = 0; b < beams; ++b) next_ranks[b] = 0;
  for (; seen < number; ++seen) {
    int64_t beam = -1;
    float score = 0;
    for (int64_t b = 0; b < beams; ++b) {
      if (next_ranks[b] == width) continue;
      float total = best[b * width + next_ranks[b]] + search->running_scores[first + b];
      if (beam < 0 || total > score) beam = b, score = total;
    }
    if (beam < 0) break;
    int32_t token = tokens[beam * width + next_ranks[beam]++];
    int64_t parent = first + beam;
    if (is_end(search, token) || length + 1 >= search->max_length) {
      float divided = score / search->penalties[length + 1 - search->prompt_len];
      if (seen < beams && divided > search->finished_scores[first + beams - 1])
        insert_finished(search, sentence, old + parent * longest, parent, length, token, divided);
    } else if (kept < beams) {
      parents[kept] = parent;
      kept_tokens[kept] = token;
      kept_scores[kept++] = score;
    }
  }
  // A small vocabulary may have fewer continuations than beams, so beams without one get log P = −∞.
  for (int64_t b = kept; kept && b < beams; ++b)
    parents[b] = parents[0], kept_tokens[b] = kept_tokens[0], kept_scores[b] = -INFINITY;
  for (int64_t b = 0; kept && b < beams; ++b) {
    memcpy(new + (first + b) * longest, old + parents[b] * longest, (length - 1) * sizeof(int32_t));
    new[(first + b) * longest + length - 1] = (int32_t)parents[b];
    new[(first + b) * longest + length] = (int32_t)(first + b);
    search->tokens[length * all_rows + first + b] = kept_tokens[b];
    search->running_scores[first + b] = kept_scores[b];
  }
  int is_full = search->finished_lengths[first + beams - 1] > 0;
  float penalty = search->penalties[length + 1 - search->prompt_len];
  if (search->early_stopping == EARLY_NEVER) penalty = search->last_penalty;
  int may_improve = kept && search->running_scores[first] / penalty >
                    (is_full ? search->finished_scores[first + beams - 1] : -1e9f);
  if (may_improve && !(is_full && search->early_stopping == EARLY_YES)) return;
  search->is_done[sentence] = 1;
  for (int64_t b = 0; b < search->returned; ++b) {
    int64_t count = search->finished_lengths[first + b], result = sentence * search->returned + b;
    search->result_lengths[result] = count;
    const int32_t *finished = search->finished + (first + b) * longest;
    for (int64_t p = 0; p < count; ++p) search->results[result * longest + p] = finished[p];
  }
}

INLINE int64_t first_sentence(const Search *search, int64_t part) { return search->sentences * part / search->parts; }

// `lay_out_scratch` both sizes the scratch memory and divides it, so that the two cannot disagree. It returns the
// size.
static int64_t lay_out_scratch(const Search *search, int64_t part, float *scratch, Work *work) {
  float *start = scratch;
  int64_t first = first_sentence(search, part), last = first_sentence(search, part + 1);
  int64_t decoder_rows = (last - first) * search->beams, rows = decoder_rows, keys = search->longest;
  int64_t tokens = search->starts[last] - search->starts[first];
  if (rows < min_of(tokens, ENCODER_ROWS)) rows = min_of(tokens, ENCODER_ROWS);
  for (int64_t s = first; s < last; ++s) {
    int64_t length = search->starts[s + 1] - search->starts[s];
    rows = length > rows ? length : rows;
    keys = length > keys ? length : keys;
  }
  int64_t width = round_up(search->width, 16), inner = round_up(search->inner, 16), number = candidate_count(search);
  int64_t bytes = round_up(search->width > search->inner ? search->width : search->inner, 64);
  work->width = width;
  work->inner = inner;
  work->x = take(&scratch, rows * width);
  work->y = take(&scratch, rows * width);
  work->z = take(&scratch, rows * width);
  work->query = take(&scratch, rows * width);
  work->gate = take(&scratch, rows * width);
  work->pair = take(&scratch, rows * 2 * width);
  work->hidden = take(&scratch, rows * inner);
  work->linear = take(&scratch, rows * inner);
  work->bytes = (uint8_t *)take(&scratch, rows * bytes / 4);
  work->steps = take(&scratch, rows);
  work->lows = take(&scratch, rows);
  work->logits = take(&scratch, decoder_rows * COLUMNS);
  work->best = take(&scratch, decoder_rows * number);
  work->best_tokens = (int32_t *)take(&scratch, decoder_rows * number);
  work->largest = take(&scratch, decoder_rows);
  work->sum = take(&scratch, decoder_rows);
  work->weights = take(&scratch, 2 * round_up(keys, 16));
  work->widened = take(&scratch, OUTPUTS * (width > inner ? width : inner));
  work->slots = (int32_t *)take(&scratch, decoder_rows);
  work->sentences = (int32_t *)take(&scratch, last - first);
  work->keys = (Keys *)take(&scratch, rows * (int64_t)sizeof(Keys) / 4);
  return scratch - start;
}

// Each part of the sentences gets as much scratch memory as the largest part needs, so that the memory of a part
// begins at a multiple of this size.
int64_t translate_scratch(const Search *search) {
  int64_t most = 0;
  Work work;
  float any;  // A size is a difference of addresses, but arithmetic on NULL is undefined, so any address is given.
  for (int64_t part = 0; part < search->parts; ++part) {
    int64_t size = lay_out_scratch(search, part, &any, &work);
    most = size > most ? size : most;
  }
  return most;
}

// Each layer's keys and values of the source do not change while decoding, so they are made once, before it.
static void encode_source(const Search *search, const Work *work, int64_t first, int64_t last) {
  int64_t padded = work->width, source_tokens = search->starts[search->sentences];
  for (int64_t s = first; s < last;) {
    int64_t end = s + 1, begin = search->starts[s];
    while (end < last && search->starts[end + 1] - begin <= ENCODER_ROWS) ++end;
    int64_t rows = search->starts[end] - begin;
    if (search->encoder) encode(search, work, s, end);
    const float *states = search->states + begin * padded;
    for (int64_t l = 0; l < search->decoder->layer_count; ++l) {
      const Attention *cross = &search->decoder->layers[l].cross;
      float *keys = search->source_cache + (l * source_tokens + begin) * 2 * padded;
      make_keys(cross, work, input_of(work, &cross->key, states, padded, rows), rows, search->decoder->heads,
                search->width, keys);
    }
    s = end;
  }
}

// A part of the search stops when its sentences are done, or when the cache or the positions are full: Python then
// makes larger ones and calls again.
static void translate_part(const Search *search, int64_t part, float *scratch) {
  Work work;
  // Scratch memory begins as zeros, because padded rows must end with zeros.
  memset(scratch, 0, lay_out_scratch(search, part, scratch, &work) * sizeof(float));
  work.is_broken = search->is_broken + part;
  int64_t first = first_sentence(search, part), last = first_sentence(search, part + 1), beams = search->beams;
  int64_t number = candidate_count(search), length = search->lengths[part];
  if (length == 0) {
    encode_source(search, &work, first, last);
    length = 1;
  }
  for (;;) {
    int64_t rows = 0;
    for (int64_t s = first; s < last; ++s)
      for (int64_t b = 0; !search->is_done[s] && b < beams; ++b, ++rows) {
        work.slots[rows] = (int32_t)(s * beams + b);
        work.sentences[rows / beams] = (int32_t)s;
      }
    if (rows == 0 || length > search->capacity || length > search->positions) break;
    decode(search, &work, rows, length - 1);
    if (length >= search->prompt_len) {
      find_best_tokens(search, &work, rows, length);
      for (int64_t i = 0; i < rows / beams; ++i) {
        const float *best = work.best + i * beams * number;
        const int32_t *tokens = work.best_tokens + i * beams * number;
        if (search->is_beam_search) advance_beams(search, work.sentences[i], length, best, tokens);
        else advance_greedily(search, work.sentences[i], length, tokens[0]);
      }
    }
    ++length;
  }
  search->lengths[part] = length;
}

// PyTorch gives each thread a range of parts, each with some of the sentences to translate.
void translate(int64_t begin, int64_t end, void *context) {
  const Search *search = context;
  for (int64_t part = begin; part < end; ++part)
    translate_part(search, part, search->scratch + part * search->scratch_size);
}
