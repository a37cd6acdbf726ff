// Copyright 2026 the reluformers authors
// SPDX-License-Identifier: Apache-2.0
//
// Vectors of floats, read from rows of float32 or bfloat16 and written to them.
//
// The code is plain C with the vector types that GCC and Clang share. The compiler's options choose the instruction
// set, because setup.py builds the files that include this one once for each set.
#ifndef RELUFORMERS_VECTORS_H
#define RELUFORMERS_VECTORS_H
#include <stdint.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef VECTOR_BYTES
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#endif

enum { LANES = VECTOR_BYTES / 4 };

typedef float vec __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef uint32_t uvec __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef int16_t svec __attribute__((vector_size(VECTOR_BYTES), aligned(2), may_alias));
typedef uint16_t hvec __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define LOAD(pointer) (*(const vec *)(pointer))
#define STORE(pointer, value) (*(vec *)(pointer) = (value))

INLINE int64_t round_up(int64_t length, int64_t step) { return (length + step - 1) / step * step; }
INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE vec splat(float number) { return number - (vec){0}; }
INLINE vec masked(ivec mask, vec numbers) { return (vec)((ivec)numbers & mask); }
INLINE vec blend(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }

INLINE ivec lane_indices(void) {
  ivec numbers;
  for (int lane = 0; lane < LANES; ++lane) numbers[lane] = lane;
  return numbers;
}

// GCC and Clang name the shuffle of two vectors differently. Lanes of the second vector are numbered after the first's.
#if defined(__clang__)
#define SHUFFLE(first, second, ...) __builtin_shufflevector(first, second, __VA_ARGS__)
#else
#define SHUFFLE(first, second, ...) __builtin_shuffle(first, second, (ivec){__VA_ARGS__})
#endif

// FIRST_HALVES and SECOND_HALVES interleave the lanes of two vectors, because a few such shuffles transpose a block.
#if VECTOR_BYTES == 64
#define FIRST_HALVES(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define SECOND_HALVES(a, b) SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif VECTOR_BYTES == 32
#define FIRST_HALVES(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define SECOND_HALVES(a, b) SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define FIRST_HALVES(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define SECOND_HALVES(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#endif

// A block of LANES vectors is transposed by log2(LANES) perfect shuffles, since a load for each number would be
// slower.
INLINE void transpose(vec block[LANES]) {
#pragma GCC unroll 4
  for (int pass = 1; pass < LANES; pass *= 2) {
    vec transposed[LANES];
#pragma GCC unroll 8
    for (int r = 0; r < LANES / 2; ++r) {
      transposed[2 * r] = FIRST_HALVES(block[r], block[r + LANES / 2]);
      transposed[2 * r + 1] = SECOND_HALVES(block[r], block[r + LANES / 2]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < LANES; ++r) block[r] = transposed[r];
  }
}

INLINE float sum_of(vec numbers) {
#if defined(__AVX512F__) && VECTOR_BYTES == 64
  // AVX-512's reduction adds lanes in the order of the loop for other CPUs, so results are equal.
  return _mm512_reduce_add_ps((__m512)numbers);
#else
  float sums[LANES];
  STORE(sums, numbers);
#pragma GCC unroll 4
  for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 8
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
#endif
}

// `log_of` computes log max(x, smallest normal number), as weights may be 0. The polynomial on [√½, √2) is that of
// Cephes' logf.
INLINE vec log_of(vec x) {
  x = blend(x > 1.17549435e-38f, x, splat(1.17549435e-38f));
  ivec bits = (ivec)x, exponent = (bits >> 23) - 127;
  vec mantissa = (vec)((bits & 0x007fffff) | 0x3f800000);
  ivec is_large = mantissa > 1.41421356f;
  mantissa = blend(is_large, mantissa * 0.5f, mantissa) - 1.0f;
  vec power = __builtin_convertvector(exponent - is_large, vec);
  vec sum = mantissa * 7.0376836292e-2f - 1.1514610310e-1f;
  sum = sum * mantissa + 1.1676998740e-1f;
  sum = sum * mantissa - 1.2420140846e-1f;
  sum = sum * mantissa + 1.4249322787e-1f;
  sum = sum * mantissa - 1.6668057665e-1f;
  sum = sum * mantissa + 2.0000714765e-1f;
  sum = sum * mantissa - 2.4999993993e-1f;
  sum = sum * mantissa + 3.3333331174e-1f;
  vec square = mantissa * mantissa;
  vec small = sum * mantissa * square - power * 2.12194440e-4f - square * 0.5f;
  return mantissa + small + power * 0.693359375f;
}

// `exp_of` clamps x to ±87, where exp x is still a normal float. The polynomial is that of Cephes' expf.
INLINE vec exp_of(vec x) {
  x = blend(x > 87, splat(87), x);
  x = blend(x < -87, splat(-87), x);
  vec power = x * 1.44269504f + 12582912.0f;  // Adding 1.5 · 2^23 to a float leaves its integer in the last bits.
  ivec exponent = (ivec)power - 0x4b400000;
  power -= 12582912.0f;
  vec rest = x - power * 0.693359375f + power * 2.12194440e-4f;
  vec sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  return (sum * rest * rest + rest + 1) * (vec)((exponent + 127) << 23);
}

INLINE vec sigmoid_of(vec x) { return 1 / (1 + exp_of(-x)); }

// `log1p_of` computes log(1 + x) for x from 0 to 1. The quotient restores the digits that a small x loses in 1 + x.
INLINE vec log1p_of(vec x) {
  vec sum = 1 + x, rest = sum - 1;
  return blend(rest == 0, x, log_of(sum) * (x / rest));
}

// GELU needs the normal distribution function; formula 7.1.26 of Abramowitz and Stegun errs by at most 1e-7.
INLINE vec normal_cdf(vec x) {
  vec size = blend(x < 0, -x, x) * 0.70710678f, step = 1 / (1 + size * 0.3275911f);
  vec sum = step * 1.061405429f - 1.453152027f;
  sum = sum * step + 1.421413741f;
  sum = sum * step - 0.284496736f;
  sum = sum * step + 0.254829592f;
  vec rest = 0.5f * sum * step * exp_of(-size * size);
  return blend(x < 0, rest, 1 - rest);
}

// The enum numbers the elementwise activations φ. `ACTIVATIONS` of `__init__.py` has the same order, as Python passes
// the number to C.
enum { RELU, RELU2, RELU6, LEAKY_RELU, GELU, SOFTPLUS, SIGMOID, IDENTITY, STEP, OTHER_ACTIVATIONS };
#define FOR_EACH_ACTIVATION(DO) \
  DO(RELU) DO(RELU2) DO(RELU6) DO(LEAKY_RELU) DO(GELU) DO(SOFTPLUS) DO(SIGMOID) DO(IDENTITY) DO(STEP)

// Comparisons in an activation are negated so that NaN stays NaN, and a broken input can be seen in the output.
INLINE vec activated(vec z, int activation) {
  vec positive = masked(~(z <= 0), z);
  switch (activation) {
    case RELU: return positive;
    case RELU2: return positive * positive;
    case RELU6: return blend(positive > 6, splat(6), positive);
    case LEAKY_RELU: return blend(z > 0, z, z * 0.01f);
    case GELU: return z * normal_cdf(z);
    // Below -87 `exp_of` is clamped; weights are set to 0 there, or a row of them would get a wrong sum.
    case SOFTPLUS: return masked(~(z <= -87), positive + log1p_of(exp_of(blend(z < 0, z, -z))));
    case SIGMOID: return masked(~(z <= -87), sigmoid_of(z));
    case STEP: return blend(z > 0, splat(1), positive * 0);
    default: return z;
  }
}

// By the chain rule, the gradient of a score z is gradient · φ′(z).
INLINE vec times_derivative(vec gradient, vec z, int activation) {
  switch (activation) {
    case RELU: return masked(~(z <= 0), gradient);
    case RELU2: return gradient * 2 * masked(~(z <= 0), z);
    case RELU6: return masked(~((z <= 0) | (z >= 6)), gradient);
    case LEAKY_RELU: return blend(z > 0, gradient, gradient * 0.01f);
    case GELU: return gradient * (normal_cdf(z) + z * 0.39894228f * exp_of(z * z * -0.5f));
    case SOFTPLUS: return gradient * sigmoid_of(z);
    case SIGMOID: return gradient * sigmoid_of(z) * sigmoid_of(-z);
    case STEP: return splat(0);
    default: return gradient;
  }
}

// A row may end within a vector: `read_vector` makes lanes behind its last number 0, and does not read the memory
// there.
INLINE vec read_vector(int is_bfloat16, const void *row, int64_t d, int64_t width) {
  int64_t count = min_of(width - d, LANES);
  if (is_bfloat16) {
    hvec numbers = {0};
    if (count == LANES) numbers = *(const hvec *)((const uint16_t *)row + d);
    else for (int64_t lane = 0; lane < count; ++lane) numbers[lane] = ((const uint16_t *)row)[d + lane];
    return (vec)(__builtin_convertvector(numbers, uvec) << 16);
  }
  if (count == LANES) return LOAD((const float *)row + d);
  vec numbers = splat(0);
  for (int64_t lane = 0; lane < count; ++lane) numbers[lane] = ((const float *)row)[d + lane];
  return numbers;
}

// Numbers are rounded to the nearest bfloat16, ties to even, as PyTorch rounds them. NaN stays NaN.
INLINE hvec to_bfloat16(vec numbers) {
#if defined(__AVX512BF16__)
  return (hvec)_mm512_cvtneps_pbh((__m512)numbers);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return (hvec)vcvt_bf16_f32((float32x4_t)numbers);
#else
  uvec bits = (uvec)numbers, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  rounded = (uvec)blend(numbers == numbers, (vec)rounded, (vec)((uvec){0} + 0x7fc0));
#if defined(__AVX512F__)
  return (hvec)_mm512_cvtepi32_epi16((__m512i)rounded);  // GCC 12 would not choose AVX-512's narrowing itself.
#else
  return __builtin_convertvector(rounded, hvec);
#endif
#endif
}

// The bfloat16 product reads words of two numbers, so `pack_pairs` interleaves two vectors.
INLINE vec pack_pairs(vec first, vec second) {
  uvec low = __builtin_convertvector(to_bfloat16(first), uvec);
  uvec high = __builtin_convertvector(to_bfloat16(second), uvec);
  return (vec)(low | high << 16);
}

INLINE void write_vector(int is_bfloat16, void *row, int64_t d, int64_t width, vec numbers) {
  int64_t count = min_of(width - d, LANES);
  if (is_bfloat16) {
    hvec narrowed = to_bfloat16(numbers);
    if (count == LANES) *(hvec *)((uint16_t *)row + d) = narrowed;
    else for (int64_t lane = 0; lane < count; ++lane) ((uint16_t *)row)[d + lane] = narrowed[lane];
  } else if (count == LANES) {
    STORE((float *)row + d, numbers);
  } else {
    for (int64_t lane = 0; lane < count; ++lane) ((float *)row)[d + lane] = numbers[lane];
  }
}

// Each piece of scratch memory begins at a cache line, so that vectors do not straddle two lines.
INLINE float *take(float **scratch, int64_t size) {
  float *piece = *scratch;
  *scratch += round_up(size, 16);
  return piece;
}

#endif
