// Copyright 2026 the reluformers authors
// SPDX-License-Identifier: Apache-2.0
//
// Attention with an elementwise φ on a CPU, forward and backward: exact, and in memory linear in the length.
//
//     out_i = r_i · Σ_j D_ij·w_ij·v_j,   w_ij = φ(a·q_i·k_j − θ) over the visible keys j
//
// `__init__.py` fills `Call`, and PyTorch's own threads call `forward` and `backward`.
//
// A task has some queries (forward) or some keys (backward) of one head, and a thread that finishes one takes the next.
// A task copies the visible keys side by side into scratch memory. Padding is gone then, and the mask of row i is a
// range of keys, from start_i up to limit_i.
//
// Sums are float32, and factors are too unless the CPU multiplies pairs of bfloat16 and the states are bfloat16. Then
// weights and gradients of scores are rounded to bfloat16, a step of a product takes a word with two numbers, and
// numbers below 2^-126 count as 0. A CPU with AMX multiplies tiles of 16 rows of 16 such words.
#include "vectors.h"

// A tile of a product keeps ROWS × VECTORS vectors of sums in registers, of which AVX-512 and ARM have 32 and other
// CPUs 16.
#if VECTOR_BYTES == 64 || defined(__aarch64__)
#define VECTORS 4
#else
#define VECTORS 2
#endif

// Tests define EMULATED_TILES to run the code for pairs of bfloat16 and tiles of AMX on a CPU without them.
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || defined(EMULATED_TILES)
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif
#if defined(__AMX_BF16__) || defined(EMULATED_TILES)
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif

enum {
  ROWS = 6,
  TILE = 16,  // AMX fixes the number of rows of a tile, and of words in a row.
  PANEL = LANES * VECTORS,
  QUERIES = 96,  // A block of QUERIES × KEYS weights and its operands stay in the cache of a core.
  KEYS = 128,
  THRESHOLDS = HAS_TILES ? TILE : 2 * ROWS,  // Solving for θ holds the scores of THRESHOLDS rows for all keys.
};

// If the share of nonzero attention weights is below SPARSE_SHARE, skipping zeros is faster than multiplying all
// weights. For products of bfloat16 pairs it would gain little.
#define SPARSE_SHARE 0.33
// The backward pass gains from skipping zeros only below a smaller share of nonzero weights, because its sums for keys
// do not stay in registers.
#define SPARSE_SHARE_BACKWARD 0.22

typedef struct {
  void *data;
  int64_t batch, head, row;  // Strides of batch, head and row count bytes; numbers of a row are contiguous.
  // The `groups` query heads that share a key head are rows of one position, `group` bytes apart.
  int64_t groups, group;
  const int32_t *pages;      // A paged cache lists the pages of each sequence in `pages`; other memory has NULL.
  int64_t pages_stride, page_len;  // The stride between lists of pages counts numbers, and a page has page_len rows.
} States;

typedef struct {
  States query, key, value, output, grad_output, grad_query, grad_key, grad_value;
  const float *row_factors;           // Factors r of output rows are [batch or 1, positions], or NULL.
  const uint8_t *key_padding_mask;    // The key padding mask has the shape [batch, key_len], or is NULL.
  // The first and last keys that a query sees never decrease along [batch or 1, positions], or are NULL.
  const int32_t *first_keys, *last_keys;
  const float *row_thresholds;        // Thresholds θ of the rows have the `threshold_…` strides, or are NULL.
  // If `found_thresholds` is not NULL, thresholds θ are solved for and written there [batch, query heads, positions].
  float *found_thresholds;
  float *row_sums, *weighted_logs, *nonzeros;  // Statistics of rows are [batch, query heads, positions], or NULL.
  // Gradients of statistics are [batch, query heads, positions], or NULL.
  const float *grad_row_sums, *grad_weighted_logs;
  float *grad_threshold;              // The gradient of a shared θ has a number for each task, or is NULL.
  float *grad_row_thresholds;  // Gradients of θ of each row are [splits, batch, query heads, positions], or NULL.
  float *scratch;                     // Scratch memory has the shape [threads, scratch_size].
  int64_t scratch_size, batch;
  int64_t heads, query_len;           // `heads` counts key heads, and `query_len` the query rows of each key head.
  int64_t key_len, width, value_width;
  int64_t splits;                     // The work on one head is split into `splits` tasks.
  int64_t causal_offset;              // A causal offset of key_len or more hides no key.
  int64_t rows_per_position;          // `rows_per_position` query heads share each key head.
  // A stride between sequences is 0 if all sequences share the numbers.
  int64_t row_factor_stride, first_key_stride, last_key_stride;
  int64_t threshold_batch, threshold_head, threshold_position;   // Strides of the thresholds θ count numbers.
  int64_t next_task;
  uint64_t seed;
  float scale, threshold, dropout;
  int32_t activation, is_bfloat16;
} Call;

// The layout number counts up with `LAYOUT` of `__init__.py` when a field of a structure changes here or in decoder.c:
// an older build is refused then.
int64_t layout(void) { return 9; }

// ------------------------------------------------ Dropout sets the share p of the attention weights to 0 in training.

typedef struct {
  uint32_t add, change, drop_below;
  float scale;
} Dropout;

// Dropout draws its random number for an attention weight as a hash of the key's position and of two words of the
// query's row. Both passes and every division into tasks and blocks therefore drop the same weights.
INLINE Dropout dropout_of(uint64_t seed, float share, int64_t row) {
  uint64_t word = seed + (uint64_t)(row + 1) * 0x9e3779b97f4a7c15u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  word ^= word >> 31;
  uint32_t drop_below = (uint32_t)(share * 4294967296.0);
  return (Dropout){(uint32_t)word, (uint32_t)(word >> 32), drop_below, 1 / (1 - share)};
}

// Each lane of the vector gets the dropout factor D of one key: 0, or 1/(1 − p).
INLINE vec dropout_factors(Dropout row, int64_t key) {
  uvec x = ((uvec)lane_indices() + (uint32_t)key) * 0x9e3779b9u + row.add;
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x ^= row.change;
  x = (x ^ (x >> 15)) * 0x735a2d97u;
  x ^= x >> 15;
  return masked((ivec)(x >= row.drop_below), splat(row.scale));
}

// Dropout of a tensor of any shape takes it as rows of DROPPED_ROW numbers, because the hash needs a row and a
// position.
enum { DROPPED_ROW = 4096 };

typedef struct {
  const void *input;
  void *output;
  int64_t count;
  uint64_t seed;
  float dropout;
  int32_t is_bfloat16;
} Dropped;

INLINE void drop_rows(const Dropped *call, int64_t begin, int64_t end, int is_bfloat16) {
  for (int64_t row = begin; row < end; ++row) {
    Dropout dropout = dropout_of(call->seed, call->dropout, row);
    int64_t first = row * DROPPED_ROW, count = min_of(call->count - first, DROPPED_ROW);
    const char *input = (const char *)call->input + first * (is_bfloat16 ? 2 : 4);
    char *output = (char *)call->output + first * (is_bfloat16 ? 2 : 4);
    for (int64_t d = 0; d < count; d += LANES) {
      vec numbers = read_vector(is_bfloat16, input, d, count) * dropout_factors(dropout, d);
      write_vector(is_bfloat16, output, d, count, numbers);
    }
  }
}

void drop(int64_t begin, int64_t end, void *context) {
  const Dropped *call = context;
  if (call->is_bfloat16) drop_rows(call, begin, end, 1);
  else drop_rows(call, begin, end, 0);
}

// ----------------------------------------------------- Matrix products multiply float32 numbers or pairs of bfloat16.

// A bfloat16 is the upper half of a float32, so a shift or a mask widens either of the two numbers in a 32-bit word.
INLINE vec low_half(vec words) { return (vec)((uvec)words << 16); }
INLINE vec high_half(vec words) { return (vec)((uvec)words & 0xffff0000u); }

// One multiply-add serves float32 numbers and pairs of bfloat16, so that `tile` is written once.
INLINE vec multiply_add(int in_pairs, vec sum, const float *left, vec right) {
#if defined(__AVX512BF16__)
  if (in_pairs) return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(*left), (__m512bh)right);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  if (in_pairs) return (vec)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)splat(*left), (bfloat16x8_t)right);
#elif HAS_PAIRS
  if (in_pairs) return sum + low_half(splat(*left)) * low_half(right) + high_half(splat(*left)) * high_half(right);
#endif
  (void)in_pairs;
  return sum + splat(*left) * right;
}

// `tile` computes C [rows, vectors] (+)= A [rows, steps] · B [steps, vectors] with all sums in registers.
INLINE void tile(int in_pairs, int rows, int vectors, int64_t steps, const float *a, int64_t a_row, int64_t a_step,
                 const float *b, int64_t b_step, float *c, int64_t c_row, int add) {
  vec sums[ROWS][VECTORS];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[r][v] = add ? LOAD(c + r * c_row + v * LANES) : splat(0);
  for (int64_t k = 0; k < steps; ++k, a += a_step, b += b_step) {
    vec right[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) right[v] = LOAD(b + v * LANES);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[r][v] = multiply_add(in_pairs, sums[r][v], a + r * a_row, right[v]);
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) STORE(c + r * c_row + v * LANES, sums[r][v]);
}

// A matrix product A · B of any size is cut into tiles. Swapping the strides `a_row` and `a_step` transposes A without
// a copy; each panel of PANEL columns of B begins `b_panel` after the one before.
INLINE void multiply_tiles(int in_pairs, int64_t rows, int64_t vectors, int64_t steps, const float *a, int64_t a_row,
                           int64_t a_step, const float *b, int64_t b_panel, int64_t b_step, float *c, int64_t c_row,
                           int add) {
  for (int64_t r = 0; r < rows; r += ROWS, a += ROWS * a_row, c += ROWS * c_row) {
    const float *right = b;
    float *target = c;
    for (int64_t v = 0; v < vectors; v += VECTORS, right += b_panel, target += PANEL) {
#define TILE(R, V) tile(in_pairs, R, V, steps, a, a_row, a_step, right, b_step, target, c_row, add); break;
#define TILES(V) \
  switch (rows - r) { \
    case 1: TILE(1, V) \
    case 2: TILE(2, V) \
    case 3: TILE(3, V) \
    case 4: TILE(4, V) \
    case 5: TILE(5, V) \
    default: TILE(6, V) \
  } \
  break;
      switch (vectors - v) {
        case 1: TILES(1)
#if VECTORS == 4
        case 2: TILES(2)
        case 3: TILES(3)
#endif
        default: TILES(VECTORS)
      }
    }
  }
}

#if HAS_TILES
#if defined(EMULATED_TILES)
static __thread float emulated[8][TILE][TILE];
INLINE void multiply_emulated(int sums, int left, int right) {
  for (int m = 0; m < TILE; ++m)
    for (int n = 0; n < TILE; n += LANES) {
      vec first = splat(0), second = splat(0);
      for (int k = 0; k < TILE; ++k) {
        vec words = LOAD(&emulated[right][k][n]), factors = splat(emulated[left][m][k]);
        first += low_half(factors) * low_half(words);
        second += high_half(factors) * high_half(words);
      }
      STORE(&emulated[sums][m][n], LOAD(&emulated[sums][m][n]) + (first + second));
    }
}
#define TILE_ZERO(T) memset(emulated[T], 0, sizeof emulated[T])
#define TILE_LOAD(T, FROM, ROW) for (int m = 0; m < TILE; ++m) memcpy(emulated[T][m], (FROM) + m * (ROW), 4 * TILE)
#define TILE_STORE(T, TO, ROW) for (int m = 0; m < TILE; ++m) memcpy((TO) + m * (ROW), emulated[T][m], 4 * TILE)
#define TILE_MULTIPLY(SUMS, LEFT, RIGHT) multiply_emulated(SUMS, LEFT, RIGHT)
INLINE void begin_tiles(void) {}
INLINE void end_tiles(void) {}
#else
#define TILE_ZERO(T) _tile_zero(T)
#define TILE_LOAD(T, FROM, ROW) _tile_loadd(T, FROM, 4 * (ROW))
#define TILE_STORE(T, TO, ROW) _tile_stored(T, TO, 4 * (ROW))
#define TILE_MULTIPLY(SUMS, LEFT, RIGHT) _tile_dpbf16ps(SUMS, LEFT, RIGHT)
INLINE void begin_tiles(void) {
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } shapes = {.palette = 1};
  for (int t = 0; t < 8; ++t) shapes.bytes[t] = 4 * TILE, shapes.rows[t] = TILE;
  _tile_loadconfig(&shapes);
}
INLINE void end_tiles(void) { _tile_release(); }
#endif

// `multiply_amx` computes C (+)= A · B for up to two tiles of rows by two of columns: AMX's eight tile registers hold
// no more.
INLINE void multiply_amx(int is_tall, int is_wide, int64_t steps, const float *a, int64_t a_row, const float *b,
                         int64_t b_step, float *c, int64_t c_row, int add) {
  float *below = c + TILE * c_row;
  if (add) {
    TILE_LOAD(0, c, c_row);
    if (is_wide) TILE_LOAD(1, c + TILE, c_row);
    if (is_tall) TILE_LOAD(2, below, c_row);
    if (is_tall && is_wide) TILE_LOAD(3, below + TILE, c_row);
  } else {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  }
  for (int64_t k = 0; k < steps; k += TILE, a += TILE, b += TILE * b_step) {
    TILE_LOAD(4, a, a_row);
    TILE_LOAD(6, b, b_step);
    TILE_MULTIPLY(0, 4, 6);
    if (is_wide) {
      TILE_LOAD(7, b + TILE, b_step);
      TILE_MULTIPLY(1, 4, 7);
    }
    if (is_tall) {
      TILE_LOAD(5, a + TILE * a_row, a_row);
      TILE_MULTIPLY(2, 5, 6);
      if (is_wide) TILE_MULTIPLY(3, 5, 7);
    }
  }
  TILE_STORE(0, c, c_row);
  if (is_wide) TILE_STORE(1, c + TILE, c_row);
  if (is_tall) TILE_STORE(2, below, c_row);
  if (is_tall && is_wide) TILE_STORE(3, below + TILE, c_row);
}

// `multiply_in_tiles` is `multiply` for pairs of bfloat16 on AMX, with at most QUERIES / 2 steps if A is transposed.
// Whole tiles of rows are read and written, so that the sums of a row do not depend on its neighbours. Vector
// registers compute the steps behind the last whole tile.
static __attribute__((noinline)) void multiply_in_tiles(int64_t rows, int64_t vectors, int64_t steps, const float *a,
                                                        int64_t a_row, int64_t a_step, const float *b, int64_t b_panel,
                                                        int64_t b_step, float *c, int64_t c_row, int add) {
  float transposed[2 * TILE * QUERIES / 2];
  for (int64_t r = 0; r < rows; r += 2 * TILE) {
    int64_t block_rows = min_of(round_up(rows - r, TILE), 2 * TILE), whole = steps / TILE * TILE;
    const float *left = a + r * a_row;
    int64_t left_row = a_row;
    if (a_step != 1) {
      left_row = round_up(steps, TILE);
      for (int64_t i = 0; i < block_rows; i += TILE)
        for (int64_t k = 0; k < steps; k += TILE) {
          vec block[LANES];
          for (int64_t s = 0; s < TILE; ++s) block[s] = k + s < steps ? LOAD(left + (k + s) * a_step + i) : splat(0);
          transpose(block);
          for (int64_t s = 0; s < TILE; ++s) STORE(transposed + (i + s) * left_row + k, block[s]);
        }
      left = transposed;
    }
    for (int64_t v = 0; whole && v < vectors; v += 2) {
      const float *right = b + v / VECTORS * b_panel + v % VECTORS * LANES;
      float *target = c + r * c_row + v * LANES;
#define AMX(IS_TALL, IS_WIDE) multiply_amx(IS_TALL, IS_WIDE, whole, left, left_row, right, b_step, target, c_row, add)
      if (block_rows > TILE && v + 1 < vectors) AMX(1, 1);
      else if (block_rows > TILE) AMX(1, 0);
      else if (v + 1 < vectors) AMX(0, 1);
      else AMX(0, 0);
    }
    if (whole < steps)
      multiply_tiles(1, block_rows, vectors, steps - whole, left + whole, left_row, 1, b + whole * b_step, b_panel,
                     b_step, c + r * c_row, c_row, add || whole);
  }
}
#else
INLINE void begin_tiles(void) {}
INLINE void end_tiles(void) {}
#endif

INLINE void multiply(int in_pairs, int64_t rows, int64_t vectors, int64_t steps, const float *a, int64_t a_row,
                     int64_t a_step, const float *b, int64_t b_panel, int64_t b_step, float *c, int64_t c_row,
                     int add) {
#define MULTIPLY(IN_PAIRS) \
  multiply_tiles(IN_PAIRS, rows, vectors, steps, a, a_row, a_step, b, b_panel, b_step, c, c_row, add)
#if HAS_TILES
  if (in_pairs) {
    multiply_in_tiles(rows, vectors, steps, a, a_row, a_step, b, b_panel, b_step, c, c_row, add);
    return;
  }
#endif
  if (HAS_PAIRS && in_pairs) MULTIPLY(1);
  else MULTIPLY(0);
}

// The three matrix products of attention are separate functions, because strides that the compiler knows save a third
// of their time. The compiler might not specialise one shared function, which depends on the size of the rest of this
// file.

// Attention scores are a product C = A · B of queries A and keys B, with B in panels of keys.
static __attribute__((noinline)) void multiply_panels(int in_pairs, int64_t rows, int64_t vectors, int64_t steps,
                                                      const float *a, int64_t a_row, const float *panels, float *c,
                                                      int64_t c_row) {
  multiply(in_pairs, rows, vectors, steps, a, a_row, 1, panels, steps * PANEL, PANEL, c, c_row, 0);
}

// Outputs of attention and gradients of queries are products C += A · B, where a row of A has KEYS weights.
static __attribute__((noinline)) void add_product(int in_pairs, int64_t rows, int64_t vectors, int64_t steps,
                                                  const float *a, const float *b, float *c) {
  multiply(in_pairs, rows, vectors, steps, a, KEYS, 1, b, PANEL, vectors * LANES, c, vectors * LANES, 1);
}

// Gradients of keys and values are products C += Aᵀ · B, where a row of A has KEYS weights.
static __attribute__((noinline)) void add_transposed_product(int in_pairs, int64_t rows, int64_t vectors, int64_t steps,
                                                         const float *a, const float *b, float *c) {
  multiply(in_pairs, rows, vectors, steps, a, 1, KEYS, b, PANEL, vectors * LANES, c, vectors * LANES, 1);
}

// `nonzero_bits` makes a bit mask of 64 numbers, with which callers visit only those that are not 0. Whole vectors are
// read, even behind `count`.
INLINE uint64_t nonzero_bits(const float *numbers, int64_t count) {
  uint64_t bits = 0;
  for (int64_t k = 0; k < 64 && k < count; k += LANES) {
#if defined(__AVX512F__)
    uint64_t lane_bits = _mm512_cmp_ps_mask(_mm512_loadu_ps(numbers + k), _mm512_setzero_ps(), _CMP_NEQ_UQ);
#elif defined(__AVX__) && VECTOR_BYTES == 32
    __m256 is_nonzero = _mm256_cmp_ps(_mm256_loadu_ps(numbers + k), _mm256_setzero_ps(), _CMP_NEQ_UQ);
    uint64_t lane_bits = _mm256_movemask_ps(is_nonzero);
#else
    uint64_t lane_bits = 0;
    for (int lane = 0; lane < LANES; ++lane) lane_bits |= (uint64_t)(numbers[k + lane] != 0) << lane;
#endif
    bits |= lane_bits << k;
  }
  return bits;
}

static int64_t count_nonzeros(const float *numbers, int64_t count) {
  int64_t total = 0;
  for (int64_t k = 0; k < count; k += 64) total += __builtin_popcountll(nonzero_bits(numbers + k, count - k));
  return total;
}

// `add_sparse` computes C [vectors] += a [steps] · B [steps, vectors], and reads only rows of B whose a is not 0.
INLINE void add_sparse(int vectors, int64_t steps, const float *a, const float *b, int64_t b_step, float *c) {
  vec sums[8];
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) sums[v] = LOAD(c + v * LANES);
  for (int64_t k = 0; k < steps; k += 64)
    for (uint64_t bits = nonzero_bits(a + k, steps - k); bits; bits &= bits - 1) {
      int64_t step = k + __builtin_ctzll(bits);
      vec left = splat(a[step]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[v] += left * LOAD(b + step * b_step + v * LANES);
    }
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) STORE(c + v * LANES, sums[v]);
}

// BY_EIGHTS passes CALL(vectors, first number) a constant number of vectors, 8, 4 or 1, so that their sums stay in
// registers.
#define BY_EIGHTS(CALL) \
  for (int64_t v = 0; v < vectors;) { \
    int64_t left = vectors - v; \
    if (left >= 8) CALL(8, v * LANES), v += 8; \
    else if (left >= 4) CALL(4, v * LANES), v += 4; \
    else CALL(1, v * LANES), v += 1; \
  }

static __attribute__((noinline)) void multiply_sparse(int64_t rows, int64_t vectors, int64_t steps, const float *a,
                                                   int64_t a_row, const float *b, int64_t b_step, float *c) {
#define ADD(V, D) add_sparse(V, steps, a, b + (D), b_step, c + (D))
  for (int64_t r = 0; r < rows; ++r, a += a_row, c += vectors * LANES) BY_EIGHTS(ADD)
}

// `scatter_sparse` computes C [steps, vectors] += aᵀ [steps] · b [vectors], and touches only rows of C whose a is not
// 0.
INLINE void scatter_sparse(int vectors, int64_t steps, const float *a, const float *b, float *c, int64_t c_row) {
  vec right[8];
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) right[v] = LOAD(b + v * LANES);
  for (int64_t k = 0; k < steps; k += 64)
    for (uint64_t bits = nonzero_bits(a + k, steps - k); bits; bits &= bits - 1) {
      int64_t step = k + __builtin_ctzll(bits);
      vec left = splat(a[step]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        float *sum = c + step * c_row + v * LANES;
        STORE(sum, LOAD(sum) + left * right[v]);
      }
    }
}

// `multiply_sparse_transposed` computes C [steps, vectors] += Aᵀ · B for A [rows, steps] and B [rows, vectors], and
// skips zeros of A.
static __attribute__((noinline)) void multiply_sparse_transposed(int64_t rows, int64_t vectors, int64_t steps,
                                                                 const float *a, int64_t a_row, const float *b,
                                                                 float *c) {
  int64_t width = vectors * LANES;
#define SPREAD(V, D) scatter_sparse(V, steps, a, b + (D), c + (D), width)
  for (int64_t r = 0; r < rows; ++r, a += a_row, b += width) BY_EIGHTS(SPREAD)
}

// -------------------------------------- Scattered rows of queries, keys and values are copied to contiguous memory.

INLINE float row_factor_of(const Call *call, int64_t head, int64_t row) {
  if (!call->row_factors) return 1;
  return call->row_factors[head / call->heads * call->row_factor_stride + row / call->rows_per_position];
}

// Rows of a task alternate between the query heads that share a key head, but statistics lie as [batch, query heads,
// positions], so `statistic_of` converts the index.
INLINE int64_t statistic_of(const Call *call, int64_t row) {
  int64_t groups = call->rows_per_position, head = row / call->query_len, own = row % call->query_len;
  return groups == 1 ? row : (head * groups + own % groups) * (call->query_len / groups) + own / groups;
}

INLINE const void *row_of(const Call *call, States states, int64_t head, int64_t row) {
  int64_t batch = head / call->heads, position = row / states.groups;
  if (states.pages) {
    batch = states.pages[batch * states.pages_stride + position / states.page_len];
    position %= states.page_len;
  }
  return (const char *)states.data + batch * states.batch + head % call->heads * states.head + position * states.row +
         row % states.groups * states.group;
}

// `read_row` fills a row with zeros up to whole vectors, so that products need no special last step.
static void read_row(int is_bfloat16, const void *source, int64_t width, float *row) {
#define READ(IS_BFLOAT16) \
  for (int64_t d = 0; d < width; d += LANES) STORE(row + d, read_vector(IS_BFLOAT16, source, d, width))
  if (is_bfloat16) READ(1);
  else READ(0);
}

static void write_row(int is_bfloat16, void *target, int64_t width, float factor, const float *row) {
#define WRITE(IS_BFLOAT16) \
  for (int64_t d = 0; d < width; d += LANES) write_vector(IS_BFLOAT16, target, d, width, LOAD(row + d) * factor)
  if (is_bfloat16) WRITE(1);
  else WRITE(0);
}

// Rows of keys [count, padded width] become columns [width, PANEL], since scores multiply one number of many keys at a
// time.
static void transpose_panel(const float *rows, int64_t padded, int64_t width, int64_t count, float *columns) {
  for (int64_t j = 0; j < count; j += LANES)
    for (int64_t d = 0; d < width; d += LANES) {
      vec block[LANES];
#pragma GCC unroll 16
      for (int r = 0; r < LANES; ++r) block[r] = LOAD(rows + (j + r) * padded + d);
      transpose(block);
#pragma GCC unroll 16
      for (int r = 0; r < LANES; ++r)
        if (d + r < width) STORE(columns + (d + r) * PANEL + j, block[r]);
    }
}

// Rows of a head [rows, padded width] serve as left and as right factors of products. For pairs of bfloat16 these
// differ: a word of a left factor holds two numbers of one row, a word of a right factor a number from each of two
// rows. Otherwise both share memory.
typedef struct {
  float *left, *right;
} Rows;

INLINE Rows take_rows(int in_pairs, float **scratch, int64_t rows, int64_t padded) {
  float *left = take(scratch, rows * padded);
  return (Rows){left, in_pairs ? take(scratch, rows / 2 * padded) : left};
}

// float32 states are never rounded to bfloat16, so only bfloat16 states are multiplied in pairs.
INLINE int is_in_pairs(const Call *call) { return HAS_PAIRS && call->is_bfloat16; }

INLINE int64_t words_of(int in_pairs, int64_t numbers) { return in_pairs ? (numbers + 1) / 2 : numbers; }

// Attention weights are made for `rows_at_once` rows, and for a multiple of `keys_at_once` keys, because AMX needs
// whole tiles.
INLINE int64_t rows_at_once(int in_pairs) { return HAS_TILES && in_pairs ? 2 * TILE : ROWS; }
INLINE int64_t keys_at_once(int in_pairs) { return HAS_TILES && in_pairs ? 2 * TILE : LANES; }

// `read_rows` copies `count` rows from `first` on; `indices`, if given, lists the visible rows. Zeros fill up whole
// vectors.
static void read_rows(const Call *call, int in_pairs, States states, int64_t head, const int32_t *indices,
                      int64_t first, int64_t count, int64_t width, Rows rows) {
  int64_t padded = round_up(width, LANES), end = round_up(count, keys_at_once(in_pairs));
  for (int64_t r = 0; r < count; ++r) {
    const void *source = row_of(call, states, head, indices ? indices[first + r] : first + r);
    float *row = rows.left + r * padded;
    if (in_pairs) {
      row[width / 2] = 0;
      memcpy(row, source, 2 * width);
    } else {
      read_row(call->is_bfloat16, source, width, row);
    }
  }
  memset(rows.left + count * padded, 0, (end - count) * padded * sizeof(float));
  for (int64_t r = 0; in_pairs && r < end; r += 2)
    for (int64_t d = 0; d < width; d += LANES) {
      const float *row = rows.left + r * padded;
      vec first = read_vector(1, row, d, width), second = read_vector(1, row + padded, d, width);
      STORE(rows.right + r / 2 * padded + d, pack_pairs(first, second));
    }
}

// Keys are transposed, because `multiply_panels` reads them as panels of PANEL columns.
static void transpose_rows(int in_pairs, Rows rows, int64_t count, int64_t width, float *panels) {
  int64_t padded = round_up(width, LANES), words = words_of(in_pairs, width);
  for (int64_t j = 0; j < count; j += PANEL)
    transpose_panel(rows.left + j * padded, padded, words, min_of(count - j, PANEL), panels + j * words);
}

// Attention weights are float32. As left factors of products of bfloat16 pairs they are rounded into `words`;
// otherwise they stay where they are.
static const float *left_factors(int in_pairs, int64_t rows, int64_t width, const float *numbers, float *words) {
  if (!in_pairs) return numbers;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t d = 0; d < width; d += LANES)
      write_vector(1, words + r * KEYS, d, width, LOAD(numbers + r * KEYS + d));
  return words;
}

// The steps of a transposed product are rows, so a 32-bit word pairs bfloat16 numbers of two rows.
static void pair_columns(int64_t rows, int64_t width, const float *numbers, float *words) {
  for (int64_t r = 0; r < rows; r += 2, numbers += 2 * KEYS, words += KEYS)
    for (int64_t d = 0; d < width; d += LANES)
      STORE(words + d, pack_pairs(LOAD(numbers + d), r + 1 < rows ? LOAD(numbers + KEYS + d) : splat(0)));
}

// `list_visible_keys` lists the keys before `end` that are not padding, so that later loops need no mask, and returns
// their number.
static int64_t list_visible_keys(const Call *call, int64_t head, int64_t end, int32_t *visible_keys) {
  const uint8_t *mask = call->key_padding_mask;
  if (mask) mask += head / call->heads * call->key_len;
  int64_t count = 0;
  for (int64_t j = 0; j < end; ++j) {
    visible_keys[count] = (int32_t)j;
    count += !mask || mask[j];
  }
  return count;
}

// Causality and the row's entry of `last_keys` both limit the keys that a query sees; the earlier limit counts.
INLINE int64_t last_key_of(const Call *call, int64_t head, int64_t row) {
  int64_t last = row / call->rows_per_position + call->causal_offset;
  if (!call->last_keys) return last;
  return min_of(last, call->last_keys[head / call->heads * call->last_key_stride + row / call->rows_per_position]);
}

// `find_limits` writes behind which visible key each row of queries sees none. Limits never fall, so the search goes
// on at that of the row before.
static int64_t find_limits(const Call *call, int64_t head, int64_t first, int64_t rows, const int32_t *visible_keys,
                           int64_t count, int64_t limit, int64_t *limits) {
  for (int64_t r = 0; r < rows; ++r) {
    int64_t last = last_key_of(call, head, first + r);
    if (last >= call->key_len - 1) limit = count;
    while (limit < count && visible_keys[limit] <= last) ++limit;
    limits[r] = limit;
  }
  return limit;
}

// `find_starts` writes which visible key each row of queries sees first. Like the limits, these starts never fall.
static int64_t find_starts(const Call *call, int64_t head, int64_t first, int64_t rows, const int32_t *visible_keys,
                           int64_t count, int64_t start, int64_t *starts) {
  const int32_t *first_keys = call->first_keys;
  if (first_keys) first_keys += head / call->heads * call->first_key_stride;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t position = (first + r) / call->rows_per_position;
    while (first_keys && start < count && visible_keys[start] < first_keys[position]) ++start;
    starts[r] = start;
  }
  return start;
}

// A vector of keys may straddle the first or the last key that a query sees: `seen_lanes` hides its other lanes.
INLINE ivec seen_lanes(int64_t first_key, int64_t start, int64_t limit) {
  ivec keys = lane_indices() + (int32_t)first_key;
  return (keys >= (int32_t)start) & (keys < (int32_t)limit);
}

INLINE float threshold_of(const Call *call, int64_t row) {
  if (!call->row_thresholds) return call->threshold;
  int64_t groups = call->rows_per_position, head = row / call->query_len, own = row % call->query_len;
  return call->row_thresholds[head / call->heads * call->threshold_batch +
                              (head % call->heads * groups + own % groups) * call->threshold_head +
                              own / groups * call->threshold_position];
}

// ---------------------------------------------------------------- Thresholds θ make the weights of each row sum to 1.

// Few scores z exceed `lowest`, the lower bound of a threshold. Moving z − `lowest` of these to the front makes each
// of Newton's steps short.
INLINE int64_t move_positive(float *scores, int64_t begin, int64_t end, float lowest) {
  int64_t count = 0;
#if defined(__AVX512F__) && VECTOR_BYTES == 64
  for (int64_t j = begin; j < end; j += LANES) {
    __m512 above = (__m512)(LOAD(scores + j) - lowest);
    __mmask16 is_above = _mm512_cmp_ps_mask(above, _mm512_setzero_ps(), _CMP_NLE_UQ);
    _mm512_storeu_ps(scores + count, _mm512_maskz_compress_ps(is_above, above));
    count += __builtin_popcount(is_above);
  }
#else
  for (int64_t j = begin; j < end; j += LANES) STORE(scores + j, activated(LOAD(scores + j) - lowest, RELU));
  for (int64_t j = begin; j < end; j += 64)
    for (uint64_t bits = nonzero_bits(scores + j, end - j); bits; bits &= bits - 1)
      scores[count++] = scores[j + __builtin_ctzll(bits)];
#endif
  for (int64_t j = count; j < round_up(count, LANES); ++j) scores[j] = 0;
  return count;
}

// `find_threshold` solves for the θ at which the weights of a row sum to 1, and overwrites the scores. θ lies less
// than 1 below the largest z, so few scores matter. Newton's method on Σ relu(z − θ) = 1, or √Σ relu(z − θ)² = 1,
// starts at that bound and never overshoots, because both sums are convex in θ and fall.
static float find_threshold(const Call *call, int64_t start, int64_t limit, float *scores) {
  if (start >= limit) return __builtin_inff();
  int64_t begin = start / LANES * LANES;
  vec largest = splat(-__builtin_inff());
  for (int64_t j = begin; j < limit; j += LANES) {
    vec z = blend(seen_lanes(j, start, limit), LOAD(scores + j) * call->scale, splat(-__builtin_inff()));
    largest = blend(z > largest, z, largest);
    STORE(scores + j, z);
  }
  float lowest = largest[0];
  for (int lane = 1; lane < LANES; ++lane) lowest = largest[lane] > lowest ? largest[lane] : lowest;
  lowest -= 1;
  int64_t count = move_positive(scores, begin, round_up(limit, LANES), lowest);
  float threshold = 0;
  for (int step = 0; step < 64; ++step) {
    vec counts = splat(0), sums = splat(0), squares = splat(0);
    for (int64_t j = 0; j < count; j += LANES) {
      vec z = activated(LOAD(scores + j) - threshold, RELU);
      counts += masked(z > 0, splat(1));
      sums += z;
      squares += z * z;
    }
    float sum = sum_of(sums), square = sum_of(squares);
    float more = call->activation == RELU ? (sum - 1) / sum_of(counts) : (square - __builtin_sqrtf(square)) / sum;
    if (!(more > 1e-7f)) break;
    threshold += more;
  }
  return lowest + threshold;
}

// ----------------------------------------------------------------- The forward pass computes the output of attention.

// `weigh` replaces the scores of a row by weights, as scores are not needed again. The block begins at key
// `first_key`; within it the row sees keys from `start` up to `limit`, and the others, up to `width`, get the weight
// 0.
INLINE void weigh(const Call *call, int64_t row, int64_t first_key, int64_t start, int64_t limit, int64_t width,
                  float *scores, int activation) {
  Dropout dropout = dropout_of(call->seed, call->dropout, row);
  float threshold = threshold_of(call, row);
  vec row_sum = splat(0), weighted_log = splat(0);
  ivec zeros = (ivec)splat(0);
  for (int64_t j = 0; j < width; j += LANES) {
    vec weights = activated(LOAD(scores + j) * call->scale - threshold, activation);
    if (j < start || j + LANES > limit) weights = masked(seen_lanes(j, start, limit), weights);
    if (call->row_sums) row_sum += weights;
    if (call->weighted_logs) {
      weighted_log += weights * log_of(weights);
      zeros += weights == 0;
    }
    if (call->dropout > 0) weights *= dropout_factors(dropout, first_key + j);
    STORE(scores + j, weights);
  }
  if (call->row_sums) call->row_sums[statistic_of(call, row)] += sum_of(row_sum);
  if (call->weighted_logs) {
    call->weighted_logs[statistic_of(call, row)] += sum_of(weighted_log);
    call->nonzeros[statistic_of(call, row)] += width + sum_of(__builtin_convertvector(zeros, vec));
  }
}

// Each activation φ has a compiled function of its own: in a shared one the constants of all φ would compete for
// registers.
#define WEIGH(ACTIVATION) \
  static __attribute__((noinline)) void weigh_##ACTIVATION(const Call *call, int64_t row, int64_t first_key, \
                                                           int64_t start, int64_t limit, int64_t width, \
                                                           float *scores) { \
    weigh(call, row, first_key, start, limit, width, scores, ACTIVATION); \
  }
FOR_EACH_ACTIVATION(WEIGH)

static void weigh_rows(const Call *call, int64_t row, int64_t rows, int64_t first_key, const int64_t *starts,
                       const int64_t *limits, int64_t width, float *scores) {
#define WEIGHED_BY(ACTIVATION) [ACTIVATION] = weigh_##ACTIVATION,
  static void (*const by[])(const Call *, int64_t, int64_t, int64_t, int64_t, int64_t, float *) = {
      FOR_EACH_ACTIVATION(WEIGHED_BY)};
  for (int64_t r = 0; r < rows; ++r, scores += KEYS)
    by[call->activation](call, row + r, first_key, starts[r] - first_key, limits[r] - first_key, width, scores);
}

static void forward_task(Call *call, int64_t task, float *scratch) {
  // Tasks with the last queries of all heads go first: with causality these queries see most keys, and a long task
  // must not run alone at the end.
  int64_t heads = call->batch * call->heads, head = task % heads, split = call->splits - 1 - task / heads;
  int64_t begin = call->query_len * split / call->splits, end = call->query_len * (split + 1) / call->splits;
  int in_pairs = is_in_pairs(call);
  int64_t width = call->width, padded = round_up(width, LANES), words = words_of(in_pairs, width);
  int64_t value_width = call->value_width, padded_value = round_up(value_width, LANES);
  int64_t key_rows = round_up(call->key_len, PANEL);
  int32_t *visible_keys = (int32_t *)take(&scratch, call->key_len + 1);
  float *key_panels = take(&scratch, key_rows * words);
  Rows keys = take_rows(in_pairs, &scratch, key_rows, padded);
  Rows values = take_rows(in_pairs, &scratch, key_rows, padded_value);
  Rows queries = take_rows(in_pairs, &scratch, QUERIES, padded);
  float *output = take(&scratch, QUERIES * padded_value);
  int64_t strip = rows_at_once(in_pairs), span = keys_at_once(in_pairs);
  float *weights = take(&scratch, strip * KEYS), *words_of_weights = take(&scratch, strip * KEYS);
  float *all_scores = take(&scratch, call->found_thresholds ? THRESHOLDS * key_rows : 0);
  int64_t starts[QUERIES], start = 0, limits[QUERIES], limit = 0;
  int64_t last_key = begin < end ? last_key_of(call, head, end - 1) : -1;
  int64_t count = list_visible_keys(call, head, last_key < 0 ? 0 : min_of(last_key + 1, call->key_len), visible_keys);
  // Keys before the first one that a task's queries see are left out in whole blocks, because other blocks would
  // change the order of sums.
  int64_t base = begin < end ? find_starts(call, head, begin, 1, visible_keys, count, 0, starts) / KEYS * KEYS : count;
  read_rows(call, in_pairs, call->key, head, visible_keys, base, count - base, width, keys);
  if (value_width) read_rows(call, in_pairs, call->value, head, visible_keys, base, count - base, value_width, values);
  transpose_rows(in_pairs, keys, count - base, width, key_panels);
  int64_t blocks = (end - begin + QUERIES - 1) / QUERIES, counted = 0, nonzeros = 0;
  int is_sparse = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    int64_t first = begin + (end - begin) * block / blocks;
    int64_t rows = begin + (end - begin) * (block + 1) / blocks - first;
    limit = find_limits(call, head, first, rows, visible_keys, count, limit, limits);
    start = find_starts(call, head, first, rows, visible_keys, count, start, starts);
    read_rows(call, in_pairs, call->query, head, NULL, first, rows, width, queries);
    for (int64_t r = 0; call->found_thresholds && r < rows; r += THRESHOLDS) {
      int64_t strip_rows = min_of(rows - r, THRESHOLDS);
      int64_t lowest = starts[r] / KEYS * KEYS, seen = limits[r + strip_rows - 1];
      for (int64_t j = lowest; j < seen; j += KEYS)
        multiply_panels(in_pairs, strip_rows, (min_of(seen - j, KEYS) + LANES - 1) / LANES, words,
                        queries.left + r * padded, padded, key_panels + (j - base) * words, all_scores + j - lowest,
                        key_rows);
      for (int64_t i = r; i < r + strip_rows; ++i)
        call->found_thresholds[statistic_of(call, head * call->query_len + first + i)] =
            find_threshold(call, starts[i] - lowest, limits[i] - lowest, all_scores + (i - r) * key_rows);
    }
    if (call->found_thresholds) continue;
    memset(output, 0, rows * padded_value * sizeof(float));
    for (int64_t j = starts[0] / KEYS * KEYS; j < limit; j += KEYS) {
      const float *panels = key_panels + (j - base) * words;
      const float *values_here = values.right + words_of(in_pairs, j - base) * padded_value;
      for (int64_t r = 0; r < rows && starts[r] < j + KEYS; r += strip) {
        int64_t strip_rows = min_of(rows - r, strip), seen = min_of(limits[r + strip_rows - 1] - j, KEYS);
        if (seen <= 0) continue;
        int64_t vectors = round_up(seen, span) / LANES;
        multiply_panels(in_pairs, strip_rows, vectors, words, queries.left + r * padded, padded, panels, weights, KEYS);
        weigh_rows(call, head * call->query_len + first + r, strip_rows, j, starts + r, limits + r, vectors * LANES,
                   weights);
        if (is_sparse) {
          multiply_sparse(strip_rows, padded_value / LANES, seen, weights, KEYS, values_here, padded_value,
                       output + r * padded_value);
        } else {
          const float *factors = left_factors(in_pairs, strip_rows, vectors * LANES, weights, words_of_weights);
          int64_t steps = in_pairs ? round_up(seen, span) / 2 : seen;
          add_product(in_pairs, strip_rows, padded_value / LANES, steps, factors, values_here,
                      output + r * padded_value);
          // The first block of queries decides whether the others skip zero weights, since counting zeros costs time.
          // Both ways add up in the same order.
          if (!in_pairs && block == 0) {
            for (int64_t i = 0; i < strip_rows; ++i) nonzeros += count_nonzeros(weights + i * KEYS, seen);
            counted += strip_rows * seen;
            is_sparse = counted > ROWS * PANEL && nonzeros < SPARSE_SHARE * counted;
          }
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r)
      write_row(call->is_bfloat16, (void *)row_of(call, call->output, head, first + r), value_width,
                row_factor_of(call, head, first + r), output + r * padded_value);
  }
}

// A task's scratch memory holds `copies` panels or gradients of keys and values beside the rows themselves, and some
// rows of weights.
static int64_t scratch_of(const Call *call, int64_t copies, int64_t rows_of_weights) {
  int64_t keys = round_up(call->key_len, PANEL);
  int64_t halves = is_in_pairs(call) ? 3 : 2;  // In halves of a float: pairs of bfloat16 are kept beside the rows.
  int64_t widths = round_up(call->width, LANES) + round_up(call->value_width, LANES);
  int64_t of_rows = (keys * (halves + 2 * copies) + QUERIES * (halves + 2)) * widths / 2;
  int64_t scores = call->found_thresholds ? THRESHOLDS * keys : 0;
  return round_up(call->key_len + of_rows + rows_of_weights * KEYS + scores + 32 * 16, 16);
}

int64_t forward_scratch(const Call *call) { return scratch_of(call, 1, 2 * rows_at_once(is_in_pairs(call))); }

// PyTorch calls `forward` once for each thread. Tasks differ in length, so threads take them from a common counter.
void forward(int64_t thread, int64_t end, void *context) {
  (void)end;
  Call *call = context;
  int64_t task, tasks = call->batch * call->heads * call->splits;
  if (is_in_pairs(call)) begin_tiles();
  while ((task = __atomic_fetch_add(&call->next_task, 1, __ATOMIC_RELAXED)) < tasks)
    forward_task(call, task, call->scratch + thread * call->scratch_size);
  if (is_in_pairs(call)) end_tiles();
}

// ------------------------------------------------------------- The backward pass computes the gradients of attention.

// `differentiate` replaces the scores of a row by r·D·w, and dO·v by dS = dW·φ′. It returns Σ dS, as the gradient of θ
// is −Σ dS.
INLINE float differentiate(const Call *call, int64_t row, int64_t first_key, int64_t start, int64_t limit,
                           int64_t width, float *scores, float *grads, int activation) {
  float row_factor = row_factor_of(call, row / call->query_len, row % call->query_len);
  Dropout dropout = dropout_of(call->seed, call->dropout, row);
  float threshold = threshold_of(call, row);
  float grad_row_sum = call->grad_row_sums ? call->grad_row_sums[statistic_of(call, row)] : 0;
  float grad_weighted_log = call->grad_weighted_logs ? call->grad_weighted_logs[statistic_of(call, row)] : 0;
  vec total = splat(0);
  for (int64_t j = 0; j < width; j += LANES) {
    vec z = LOAD(scores + j) * call->scale - threshold, weights = activated(z, activation);
    vec kept_weights = weights * row_factor, gradient = LOAD(grads + j) * row_factor;
    if (call->dropout > 0) {
      vec factors = dropout_factors(dropout, first_key + j);
      kept_weights *= factors;
      gradient *= factors;
    }
    gradient += grad_row_sum;
    // The derivative of w·log w is log w + 1, without the 1 below the smallest normal number, where the log is
    // constant.
    if (call->grad_weighted_logs) {
      vec one = masked(weights > 1.17549435e-38f, splat(1));
      gradient += (log_of(weights) + one) * grad_weighted_log;
    }
    gradient = times_derivative(gradient, z, activation);
    if (j < start || j + LANES > limit) {
      ivec is_seen = seen_lanes(j, start, limit);
      kept_weights = masked(is_seen, kept_weights);
      gradient = masked(is_seen, gradient);
    }
    total += gradient;
    STORE(scores + j, kept_weights);
    STORE(grads + j, gradient);
  }
  return sum_of(total);
}

#define DIFFERENTIATE(ACTIVATION) \
  static __attribute__((noinline)) float differentiate_##ACTIVATION( \
      const Call *call, int64_t row, int64_t first_key, int64_t start, int64_t limit, int64_t width, float *scores, \
      float *grads) { \
    return differentiate(call, row, first_key, start, limit, width, scores, grads, ACTIVATION); \
  }
FOR_EACH_ACTIVATION(DIFFERENTIATE)

// `differentiate_rows` returns Σ dS of its rows for one shared θ; `grad_thresholds`, which may be NULL, gets −Σ dS of
// each row.
static float differentiate_rows(const Call *call, int64_t row, int64_t rows, int64_t first_key, const int64_t *starts,
                                const int64_t *limits, int64_t width, float *scores, float *grads,
                                float *grad_thresholds) {
#define DIFFERENTIATED_BY(ACTIVATION) [ACTIVATION] = differentiate_##ACTIVATION,
  static float (*const by[])(const Call *, int64_t, int64_t, int64_t, int64_t, int64_t, float *, float *) = {
      FOR_EACH_ACTIVATION(DIFFERENTIATED_BY)};
  float total = 0;
  for (int64_t r = 0; r < rows; ++r, scores += KEYS, grads += KEYS) {
    int64_t start = starts[r] - first_key, limit = limits[r] - first_key;
    float sum = by[call->activation](call, row + r, first_key, start, limit, width, scores, grads);
    total += sum;
    if (grad_thresholds) grad_thresholds[statistic_of(call, row + r)] -= sum;
  }
  return total;
}

static void backward_task(Call *call, int64_t task, float *scratch) {
  int64_t heads = call->batch * call->heads, head = task % heads, split = task / heads;
  int in_pairs = is_in_pairs(call);
  int64_t width = call->width, padded = round_up(width, LANES), vectors = padded / LANES;
  int64_t value_width = call->value_width, padded_value = round_up(value_width, LANES);
  int64_t words = words_of(in_pairs, width), value_words = words_of(in_pairs, value_width);
  int64_t value_vectors = padded_value / LANES;
  int32_t *visible_keys = (int32_t *)take(&scratch, call->key_len + 1);
  int64_t visible = list_visible_keys(call, head, call->key_len, visible_keys);
  int64_t begin = visible * split / call->splits, end = visible * (split + 1) / call->splits, count = end - begin;
  int64_t key_rows = round_up((call->key_len + call->splits - 1) / call->splits, PANEL);
  float *key_panels = take(&scratch, key_rows * words), *value_panels = take(&scratch, key_rows * value_words);
  Rows keys = take_rows(in_pairs, &scratch, key_rows, padded);
  Rows values = take_rows(in_pairs, &scratch, key_rows, padded_value);
  float *grad_keys = take(&scratch, key_rows * padded), *grad_values = take(&scratch, key_rows * padded_value);
  Rows queries = take_rows(in_pairs, &scratch, QUERIES, padded);
  Rows grad_output = take_rows(in_pairs, &scratch, QUERIES, padded_value);
  float *grad_queries = take(&scratch, QUERIES * padded);
  float *weights = take(&scratch, QUERIES * KEYS), *grad_scores = take(&scratch, QUERIES * KEYS);
  // Products of bfloat16 pairs need the weights and gradients once more, rounded and with two rows in a 32-bit word.
  float *weight_columns = in_pairs ? take(&scratch, QUERIES / 2 * KEYS) : weights;
  float *grad_columns = in_pairs ? take(&scratch, QUERIES / 2 * KEYS) : grad_scores;
  int64_t strip = rows_at_once(in_pairs), span = keys_at_once(in_pairs);
  float *words_of_grads = take(&scratch, strip * KEYS);
  int64_t starts[QUERIES], start = 0, limits[QUERIES], limit = 0;
  double grad_threshold = 0;
  float *grad_thresholds = call->grad_row_thresholds;
  if (grad_thresholds) grad_thresholds += split * heads * call->query_len;
  // Tasks of one head would add to the same gradients of queries: each task has its own, in float32, and Python adds
  // them.
  States grad_query = call->grad_query;
  grad_query.data = (char *)grad_query.data + split * call->batch * grad_query.batch;
  read_rows(call, in_pairs, call->key, head, visible_keys, begin, count, width, keys);
  read_rows(call, in_pairs, call->value, head, visible_keys, begin, count, value_width, values);
  transpose_rows(in_pairs, keys, count, width, key_panels);
  transpose_rows(in_pairs, values, count, value_width, value_panels);
  memset(grad_keys, 0, count * padded * sizeof(float));
  memset(grad_values, 0, count * padded_value * sizeof(float));
  int64_t blocks = (call->query_len + QUERIES - 1) / QUERIES, counted = 0, nonzeros = 0;
  int is_counted = 0;  // As in `forward`, the first block of queries that sees keys decides whether zeros are skipped.
  for (int64_t block = 0; block < blocks; ++block) {
    int is_sparse = counted > ROWS * PANEL && nonzeros < SPARSE_SHARE_BACKWARD * counted;
    int64_t first = call->query_len * block / blocks, rows = call->query_len * (block + 1) / blocks - first;
    limit = find_limits(call, head, first, rows, visible_keys, end, limit, limits);
    start = find_starts(call, head, first, rows, visible_keys, end, start, starts);
    int64_t hidden_blocks = starts[0] > begin ? (starts[0] - begin) / KEYS : 0;
    int sees_some = limit > begin && starts[0] < end;
    if (sees_some) {
      read_rows(call, in_pairs, call->query, head, NULL, first, rows, width, queries);
      read_rows(call, in_pairs, call->grad_output, head, NULL, first, rows, value_width, grad_output);
    }
    memset(grad_queries, 0, rows * padded * sizeof(float));
    for (int64_t first_key = begin + hidden_blocks * KEYS; sees_some && first_key < limit; first_key += KEYS) {
      int64_t j = first_key - begin, width_here = min_of(limit - first_key, KEYS), rows_here = rows;
      for (int64_t r = 0; r < rows; r += strip) {
        if (starts[r] >= first_key + KEYS) {
          rows_here = r;
          break;
        }
        int64_t strip_rows = min_of(rows - r, strip), seen = min_of(limits[r + strip_rows - 1] - first_key, KEYS);
        if (seen <= 0) continue;
        int64_t strip_vectors = round_up(seen, span) / LANES;
        float *strip_weights = weights + r * KEYS, *strip_grads = grad_scores + r * KEYS;
        multiply_panels(in_pairs, strip_rows, strip_vectors, words, queries.left + r * padded, padded,
                        key_panels + j * words, strip_weights, KEYS);
        multiply_panels(in_pairs, strip_rows, strip_vectors, value_words, grad_output.left + r * padded_value,
                        padded_value, value_panels + j * value_words, strip_grads, KEYS);
        grad_threshold -= differentiate_rows(call, head * call->query_len + first + r, strip_rows, first_key,
                                             starts + r, limits + r, strip_vectors * LANES, strip_weights,
                                             strip_grads, grad_thresholds);
        if (is_sparse) {
          multiply_sparse(strip_rows, vectors, seen, strip_grads, KEYS, keys.right + j * padded, padded,
                       grad_queries + r * padded);
          multiply_sparse_transposed(strip_rows, value_vectors, seen, strip_weights, KEYS,
                                     grad_output.right + r * padded_value, grad_values + j * padded_value);
          multiply_sparse_transposed(strip_rows, vectors, seen, strip_grads, KEYS, queries.right + r * padded,
                                     grad_keys + j * padded);
          continue;
        }
        const float *factors = left_factors(in_pairs, strip_rows, strip_vectors * LANES, strip_grads, words_of_grads);
        int64_t steps = in_pairs ? round_up(seen, span) / 2 : seen;
        add_product(in_pairs, strip_rows, vectors, steps, factors, keys.right + words_of(in_pairs, j) * padded,
                    grad_queries + r * padded);
        for (int64_t i = 0; !in_pairs && !is_counted && i < strip_rows; ++i, counted += seen)
          nonzeros += count_nonzeros(strip_grads + i * KEYS, seen);
        // Weights behind the last key of a strip of rows become 0: later rows of the block see more keys, and the
        // transposed products read all rows up to there.
        for (int64_t i = 0, hidden = width_here - strip_vectors * LANES; hidden > 0 && i < strip_rows; ++i) {
          memset(strip_weights + i * KEYS + strip_vectors * LANES, 0, hidden * sizeof(float));
          memset(strip_grads + i * KEYS + strip_vectors * LANES, 0, hidden * sizeof(float));
        }
        if (in_pairs) {
          pair_columns(strip_rows, width_here, strip_weights, weight_columns + r / 2 * KEYS);
          pair_columns(strip_rows, width_here, strip_grads, grad_columns + r / 2 * KEYS);
        }
      }
      int64_t keys_at_a_time = HAS_TILES && in_pairs ? 2 * TILE : 2 * ROWS;
      for (int64_t k = 0, r = 0; !is_sparse && k < width_here; k += keys_at_a_time) {
        // Query rows before the first that sees one of a group of keys add nothing to the gradients of these keys.
        while (limits[r] <= first_key + k) ++r;
        int64_t block_keys = min_of(width_here - k, keys_at_a_time), step = in_pairs ? r / 2 : r;
        int64_t steps = words_of(in_pairs, rows_here) - step;
        if (steps <= 0) break;
        add_transposed_product(in_pairs, block_keys, value_vectors, steps, weight_columns + step * KEYS + k,
                           grad_output.right + step * padded_value, grad_values + (j + k) * padded_value);
        add_transposed_product(in_pairs, block_keys, vectors, steps, grad_columns + step * KEYS + k,
                           queries.right + step * padded, grad_keys + (j + k) * padded);
      }
    }
    is_counted = counted > 0;
    for (int64_t r = 0; r < rows; ++r)
      write_row(call->is_bfloat16 && call->splits == 1, (void *)row_of(call, grad_query, head, first + r), width,
                call->scale, grad_queries + r * padded);
  }
  for (int64_t j = 0; j < count; ++j) {
    int64_t key = visible_keys[begin + j];
    write_row(call->is_bfloat16, (void *)row_of(call, call->grad_key, head, key), width, call->scale,
              grad_keys + j * padded);
    write_row(call->is_bfloat16, (void *)row_of(call, call->grad_value, head, key), value_width, 1,
              grad_values + j * padded_value);
  }
  if (call->grad_threshold) call->grad_threshold[task] = (float)grad_threshold;
}

int64_t backward_scratch(const Call *call) { return scratch_of(call, 2, 4 * QUERIES); }

// PyTorch calls `backward` once for each thread. Tasks differ in length, so threads take them from a common counter.
void backward(int64_t thread, int64_t end, void *context) {
  (void)end;
  Call *call = context;
  int64_t task, tasks = call->batch * call->heads * call->splits;
  if (is_in_pairs(call)) begin_tiles();
  while ((task = __atomic_fetch_add(&call->next_task, 1, __ATOMIC_RELAXED)) < tasks)
    backward_task(call, task, call->scratch + thread * call->scratch_size);
  if (is_in_pairs(call)) end_tiles();
}
