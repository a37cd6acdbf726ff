// Computes the recorded calls of standard input again, and writes their memory to standard output.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION(NAME) void NAME(int64_t begin, int64_t end, void *context)
FUNCTION(forward);
FUNCTION(backward);
FUNCTION(norm_forward);
FUNCTION(norm_backward);
FUNCTION(drop);
FUNCTION(translate);
int64_t forward_scratch(const void *), backward_scratch(const void *), norm_scratch(const void *);
int64_t translate_scratch(const void *);

// in the order of recorded_calls.py
static void (*const functions[])(int64_t, int64_t, void *) = {forward, backward, norm_forward, norm_backward, drop,
                                                              translate};
static int64_t (*const scratches[])(const void *) = {forward_scratch, backward_scratch, NULL, norm_scratch, NULL,
                                                     translate_scratch};

static void stop(const char *fault) {
  fprintf(stderr, "%s\n", fault);
  exit(1);
}

// Memory for numbers of the input, which begins at a whole cache line.
static void *read_memory(size_t size) {
  void *memory;
  if (posix_memalign(&memory, 64, size + 64)) stop("no memory");
  if (fread(memory, 1, size, stdin) != size) stop("a call is cut short");
  return memory;
}

int main(void) {
  enum { FUNCTION_NUMBER, PARTS, CALL, BYTES, POINTERS, SCRATCH, SCRATCH_SIZE, NUMBERS };
  for (int64_t header[NUMBERS]; fread(header, sizeof *header, NUMBERS, stdin) == NUMBERS;) {
    int64_t *pairs = read_memory(16 * header[POINTERS]), function = header[FUNCTION_NUMBER];
    char *memory = read_memory(header[BYTES]), *call = memory + header[CALL];
    for (int64_t p = 0; p < header[POINTERS]; ++p) {
      char *target = memory + pairs[2 * p + 1];
      memcpy(memory + pairs[2 * p], &target, sizeof target);
    }
    float *scratch = NULL;
    if (scratches[function]) {
      int64_t size = scratches[function](call), bytes = header[PARTS] * size * (int64_t)sizeof(float);
      scratch = malloc(bytes);
      memset(scratch, 255, bytes);  // NaN, which shows whoever reads it before writing
      memcpy(call + header[SCRATCH], &scratch, sizeof scratch);
      memcpy(call + header[SCRATCH_SIZE], &size, sizeof size);
    }
    functions[function](0, header[PARTS], call);
    fwrite(memory, 1, header[BYTES], stdout);
    free(scratch);
    free(memory);
    free(pairs);
  }
  return 0;
}
