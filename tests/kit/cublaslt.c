/* A library in cuBLASLt's place for tests where there is none: it multiplies on the CPU, as cublasLt.h describes it.
   Matrices lie by columns. It knows the dtypes, the transpositions, batches, the bias, a matrix that is added, the
   activations, and the scales of matrices, rows and blocks. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  int32_t transa, transb, epilogue, bias_type, mode_a, mode_b;
  const char *bias;
  const float *scale_a, *scale_b;
} Operation;
typedef struct { int32_t type, batch; uint64_t rows, columns; int64_t leading, apart; } Layout;
typedef struct { int32_t attributes[16]; } Algorithm;
typedef struct { Algorithm algorithm; size_t workspace; int32_t state; float waves; int32_t reserved[4]; } Result;

/* What tests read and set. */
int calls, refuses, workspace;

int cublasLtCreate(void **made) { *made = malloc(8); return 0; }
size_t cublasLtGetVersion(void) { return 130100; }

int cublasLtMatmulDescCreate(Operation **made, int compute, int scale) { *made = calloc(1, sizeof **made); return 0; }
int cublasLtMatmulDescDestroy(Operation *one) { memset(one, 255, sizeof *one); free(one); return 0; }
int cublasLtMatmulDescSetAttribute(Operation *one, int what, const void *value, size_t size) {
  switch (what) {
    case 3: one->transa = *(const int32_t *)value; return size != 4;
    case 4: one->transb = *(const int32_t *)value; return size != 4;
    case 7: one->epilogue = *(const int32_t *)value; return size != 4;
    case 8: one->bias = *(const char *const *)value; return size != 8;
    case 17: one->scale_a = *(const float *const *)value; return size != 8;
    case 18: one->scale_b = *(const float *const *)value; return size != 8;
    case 25: return size != 1;
    case 26: one->bias_type = *(const int32_t *)value; return size != 4;
    case 31: one->mode_a = *(const int32_t *)value; return size != 4;
    case 32: one->mode_b = *(const int32_t *)value; return size != 4;
  }
  return 7;
}

int cublasLtMatrixLayoutCreate(Layout **made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  *made = calloc(1, sizeof **made);
  **made = (Layout){type, 1, rows, columns, leading, 0};
  return leading < (int64_t)rows ? 7 : 0;
}
int cublasLtMatrixLayoutDestroy(Layout *one) { free(one); return 0; }
int cublasLtMatrixLayoutSetAttribute(Layout *one, int what, const void *value, size_t size) {
  if (what == 5 && size == 4) one->batch = *(const int32_t *)value;
  else if (what == 6 && size == 8) one->apart = *(const int64_t *)value;
  else return 7;
  return 0;
}

int cublasLtMatmulPreferenceCreate(void **made) { *made = malloc(8); return 0; }
int cublasLtMatmulPreferenceDestroy(void *one) { free(one); return 0; }
int cublasLtMatmulPreferenceSetAttribute(void *one, int what, const void *value, size_t size) { return size != 8; }
int cublasLtMatmulAlgoGetHeuristic(void *handle, Operation *operation, Layout *a, Layout *b, Layout *c, Layout *d,
                                   void *preference, int count, Result *found, int *got) {
  static const Algorithm named[] = {{{66, 20, 1, 0, 0, 1, 35, 0, 2}}, {{66, 601, 1, 0, 0, 1, 35, 0, 2}}};
  memset(found, 0, count * sizeof *found);
  for (*got = 0; *got < 2 && *got < count; ++*got) found[*got].algorithm = named[*got];
  return 0;
}
int cublasLtMatmulAlgoGetIds() { return 7; }
int cublasLtMatmulAlgoCapGetAttribute() { return 7; }

static size_t size_of(int what) { return what < 7 ? 4 : 2; }
int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int number, Algorithm *made) {
  memset(made, 0, sizeof *made);
  made->attributes[0] = number;
  return number == 66 ? 0 : 15;
}
int cublasLtMatmulAlgoConfigSetAttribute(Algorithm *one, int what, const void *value, size_t size) {
  if (what < 1 || what > 8 || size != size_of(what)) return 7;
  memcpy(&one->attributes[what], value, size);
  return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm *one, int what, void *value, size_t size, size_t *written) {
  if (what < 0 || what > 8 || size != size_of(what)) return 7;
  memcpy(value, &one->attributes[what], *written = size);
  return 0;
}
int cublasLtMatmulAlgoCheck(void *handle, Operation *operation, Layout *a, Layout *b, Layout *c, Layout *d,
                            const Algorithm *algorithm, Result *found) {
  memset(found, 0, sizeof *found);
  found->workspace = workspace;
  return refuses ? 15 : 0;
}

static double e4m3(uint8_t bits) {
  int exponent = bits >> 3 & 15;
  double value = exponent ? ldexp(8 + (bits & 7), exponent - 10) : ldexp(bits & 7, -9);
  return bits & 128 ? -value : value;
}
/* The scale of one element, by its row or column of the product and its place along K. */
static double scale(const float *from, int mode, int64_t outer, int64_t outers, int64_t k, int64_t inner) {
  int64_t deep = (inner + 127) / 128;
  if (!from) return 1;
  if (mode == 3) return from[outer];
  if (mode == 4) return from[outer + k / 128 * outers];
  if (mode == 5) return from[k / 128 + outer / 128 * ((deep + 3) / 4 * 4)];
  return mode ? NAN : *from;
}
static double get(const char *from, int type, int64_t place) {
  uint32_t bits = 0;
  float value;
  if (type == 3) return ((const int8_t *)from)[place];
  if (type == 0) return ((const float *)from)[place];
  if (type == 28) return e4m3(((const uint8_t *)from)[place]);
  bits = (uint32_t)((const uint16_t *)from)[place] << 16; /* bf16 */
  memcpy(&value, &bits, 4);
  return value;
}
static void put(char *to, int type, int64_t place, double value) {
  float rounded = (float)value;
  uint32_t bits;
  memcpy(&bits, &rounded, 4);
  if (type == 10) ((int32_t *)to)[place] = (int32_t)value;
  else if (type == 0) ((float *)to)[place] = rounded;
  else ((uint16_t *)to)[place] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

int cublasLtMatmul(void *handle, Operation *o, const void *alpha, const char *a, Layout *la, const char *b, Layout *lb,
                   const void *beta, const char *c, Layout *lc, char *d, Layout *ld, const Algorithm *algorithm,
                   char *space, size_t size, void *stream) {
  int whole = ld->type == 10;
  int64_t inner = o->transa ? la->rows : la->columns;
  int biased = o->epilogue & 4, activation = o->epilogue & ~4; /* 1: none, 2: ReLU, 32: GELU; a bias alone is 4. */
  if (biased && !o->bias) return 7;
  int added = *(const int32_t *)beta != 0; /* A sum with C, which is elsewhere: only as fp32, and once. */
  if (whole ? *(const int32_t *)alpha != 1 : *(const float *)alpha != 1) return 7;
  if (added ? whole || *(const float *)beta != 1 || c == d || biased || lc->rows != ld->rows : c != d) return 7;
  if ((o->transa ? la->columns : la->rows) != ld->rows || (o->transb ? lb->rows : lb->columns) != ld->columns ||
      (o->transb ? lb->columns : lb->rows) != (uint64_t)inner || la->batch != ld->batch || lb->batch != ld->batch)
    return 7;
  if (size) memset(space, 1, size); /* It must be there. */
  for (int64_t batch = 0; batch < ld->batch; ++batch)
    for (int64_t i = 0; i < (int64_t)ld->rows; ++i)
      for (int64_t j = 0; j < (int64_t)ld->columns; ++j) {
        double sum = biased ? get(o->bias, o->bias_type, i) : 0;
        if (added) sum = get(c, lc->type, batch * lc->apart + j * lc->leading + i);
        for (int64_t k = 0; k < inner; ++k)
          sum += get(a, la->type, batch * la->apart + (o->transa ? i * la->leading + k : k * la->leading + i)) *
                 get(b, lb->type, batch * lb->apart + (o->transb ? k * lb->leading + j : j * lb->leading + k)) *
                 scale(o->scale_a, o->mode_a, i, ld->rows, k, inner) *
                 scale(o->scale_b, o->mode_b, j, ld->columns, k, inner);
        if (activation == 2 && sum < 0) sum = 0;
        if (activation == 32) sum *= 0.5 * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        put(d, ld->type, batch * ld->apart + j * ld->leading + i, sum);
      }
  __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  return 0;
}
