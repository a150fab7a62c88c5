// One GEMM for Hopper with few rows and an int4 weight that has a scale for each group along K:
// out = a * ((number - zero) * scale). The GEMMDB_ macros before this text choose the kernel.
//
// The weight is read once, so time is that of its bytes if enough of them are on their way. Each warp has a ring of
// stages of its own and waits for no other warp: it copies its rows of the weight, and the activations beside them,
// some steps ahead. It multiplies with `mma`, the weight on the left, and scales the sums of each group, in fp32.
//
// The warps of a block, and the blocks of a cluster (GEMMDB_SPLIT), share out the steps along K, and add up at the end.

#include <cstdint>

// Each file has its own: the objects of several kernels are linked together in an AOTInductor package.
namespace {
namespace kernel {

// GEMMDB_ROWS: rows of the weight that a warp multiplies. GEMMDB_WARPS: those of a block.
constexpr int kTokens = GEMMDB_TILE_M, kTileRows = GEMMDB_TILE_N, kRows = GEMMDB_ROWS, kWarps = GEMMDB_WARPS;
constexpr int kSplit = GEMMDB_SPLIT;
// Weights along K that share a scale, and whether there are zero points: none, which are all 8, those of the
// activation's dtype, or bytes.
constexpr int kGroup = GEMMDB_GROUP;
constexpr int kZeros = GEMMDB_ZEROS;
constexpr bool kHalf = GEMMDB_FP16;
// Warps along N and along K, and what a warp multiplies, in instructions.
constexpr int kAcross = kTileRows / kRows, kAlong = kWarps / kAcross;
constexpr int kTall = kRows / 16, kWide = kTokens / 8;
// Numbers along K of a step, and groups of a step, or steps of a group.
constexpr int kDepth = 128;
constexpr int kPer = kGroup < kDepth ? kDepth / kGroup : 1, kLong = kGroup > kDepth ? kGroup / kDepth : 1;
// More stages are slower: what is copied last, such as scales, waits behind them.
constexpr int kStages = 3;
constexpr int kRowBytes = kRows * kDepth / 2, kStageBytes = kRowBytes + kTokens * kDepth * 2;
constexpr int kRingBytes = kWarps * kStages * kStageBytes;
// The sums of the warps along K, [warp][token][row], lie where stages were.
constexpr int kPitch = kTileRows + 4, kSumsBytes = kAlong * kTokens * kPitch * 4;
constexpr int kSharedBytes = kRingBytes > kSumsBytes ? kRingBytes : kSumsBytes;
// Warps, and blocks, that the registers of a multiprocessor are for.
constexpr int kResident = kRows == 64 ? 8 : kTokens == 8 ? 16 : 12, kBlocks = kResident < kWarps ? 1 : kResident / kWarps;
static_assert(kTileRows % kRows == 0 && kWarps % kAcross == 0 && kTokens % 8 == 0 && kRows % 16 == 0);
static_assert((kDepth % kGroup == 0 || kGroup % kDepth == 0) && kGroup % 32 == 0 && kSharedBytes <= 227 * 1024);

// A number of four bits in the last bits of one of these is that number more: 128 in bf16, 1,024 in fp16. In bf16 the 128
// is subtracted only from a group's sums. What fp32 loses by that does not show in a bf16 result, unless an activation is
// 1e5 times its neighbors, or so large that 128 times it overflows. In fp16, 1,024 would show, and is subtracted first.
// Where an activation is infinite, the result is not a number.
constexpr uint32_t kMagic = kHalf ? 0x64006400 : 0x43004300;
constexpr float kMore = kHalf ? 0 : 128;
constexpr uint32_t kOnes = kHalf ? 0x3C003C00 : 0x3F803F80;

struct Arguments {
  uint16_t const* a;
  char const* b;
  uint16_t const* scales;
  void const* zeros;
  uint16_t* out;
  int m, n, k;
  long lda, ldb;

  __host__ __device__ int tiles_m() const { return (m + kTokens - 1) / kTokens; }
  __host__ __device__ int tiles_n() const { return (n + kTileRows - 1) / kTileRows; }
  __device__ int steps() const { return (k + kDepth - 1) / kDepth; }
  __device__ int groups() const { return (k + kGroup - 1) / kGroup; }
};

__device__ uint32_t shared(void const* memory) { return uint32_t(__cvta_generic_to_shared(memory)); }

// Copies 16 bytes, or zeros where `inside` is false. `cached`: other warps of the multiprocessor read the same.
__device__ void copy(uint32_t to, void const* from, bool inside, bool cached) {
  int bytes = inside ? 16 : 0;
  if (cached) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
  } else {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
  }
}

__device__ uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

__device__ void multiply(float (&sums)[4], uint32_t const (&left)[4], uint32_t first, uint32_t second) {
#if GEMMDB_FP16
#define GEMMDB_TYPES "f32.f16.f16.f32"
#else
#define GEMMDB_TYPES "f32.bf16.bf16.f32"
#endif
  asm("mma.sync.aligned.m16n8k16.row.col." GEMMDB_TYPES
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(first), "r"(second));
}

__device__ float number(uint32_t bits) {
  if (!kHalf) return __uint_as_float(bits << 16);
  float found;
  asm("{ .reg .b16 half, rest; mov.b32 {half, rest}, %1; cvt.f32.f16 %0, half; }" : "=f"(found) : "r"(bits));
  return found;
}

__device__ uint32_t pair(float first, float second) {
  uint32_t packed;
  if (kHalf) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  }
  return packed;
}

// The numbers `which` and `which` + 4 of a word of eight, kMore too large.
__device__ uint32_t convert(uint32_t word, int which) {
  uint32_t found;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(found) : "r"(word >> 4 * which), "r"(0x000F000F), "r"(kMagic));
  if (kHalf) asm("sub.f16x2 %0, %1, %2;" : "=r"(found) : "r"(found), "r"(kMagic));
  return found;
}

__device__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// What a warp copies. A lane has 16 bytes of every eighth row of the weight, and eight neighbours of every second
// token. A word of the weight is eight neighbours along K; the four lanes that share a row share its groups, too, so
// their words depend on the size of a group. Activations lie in the order in which lanes read them, word by word, those
// of odd tokens in other banks.
struct Copies {
  char const* rows[kTall][2];
  uint16_t const* tokens;
  uint32_t ring;
  long token_step;
  int rows_at, tokens_at, more_tokens, depth, step, last, stage = 0;

  __device__ Copies(Arguments const& product, char* memory, int row, int token, int first, int last, int lane)
      : ring(shared(memory)), token_step(2 * product.lda), depth(product.k), step(first), last(last) {
    int quad = lane % 4;
#pragma unroll
    for (int tall = 0; tall < kTall; ++tall) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int own = min(row + 16 * tall + 8 * half + lane / 4, product.n - 1);
        rows[tall][half] = product.b + own * product.ldb + 16 * quad + long(first) * (kDepth / 2);
      }
    }
    rows_at = 16 * quad;
    int eight = lane % 16, odd = lane / 16;
    int word = kPer == 1 ? eight % 4 : kPer == 2 ? eight / 8 * 2 + eight % 2 : eight / 4;
    int reader = kPer == 1 ? eight / 4 : kPer == 2 ? eight / 2 % 4 : eight % 4;
    tokens = product.a + (token + odd) * product.lda + long(first) * kDepth + 8 * eight;
    tokens_at = odd * 256 + 16 * ((4 * word + reader) ^ 4 * odd);
    more_tokens = product.m - token - odd;
  }

  // Copies the next step, if there is one. Tokens beyond the last keep what was there: nothing of them is stored.
  __device__ void next(int lane) {
    if (step < last) {
      uint32_t to = ring + stage * kStageBytes;
      // With groups of a whole step, K is whole steps.
      bool inside = kPer == 1 || step * (kDepth / 2) + rows_at < depth / 2;
#pragma unroll
      for (int tall = 0; tall < kTall; ++tall) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          copy(to + 16 * lane + (2 * tall + half) * 512, rows[tall][half], inside, false);
          rows[tall][half] += kDepth / 2;
        }
      }
      bool known = kPer == 1 || step * kDepth + 8 * (lane % 16) < depth;
      uint16_t const* from = tokens;
#pragma unroll
      for (int two = 0; two < kTokens; two += 2, from += token_step) {
        if (two < more_tokens) copy(to + kRowBytes + two * 256 + tokens_at, from, known, true);
      }
      tokens += kDepth;
    }
    asm volatile("cp.async.commit_group;");
    ++step;
    if (++stage == kStages) stage = 0;
  }
};

// The scales and zero points of a warp's rows. The four lanes that share rows have those of four steps (or, if groups
// are longer, of four groups) and pass them to each other; those of the four next ones are on their way.
struct Scales {
  uint32_t held[kTall][2][kPer], scales[kTall][2][kPer], zeros[kTall][2][kPer];
  int rows[kTall][2], groups, quad, base;

  __device__ Scales(Arguments const& product, int row, int first, int lane)
      : groups(product.groups()), quad(lane % 4), base(first) {
#pragma unroll
    for (int tall = 0; tall < kTall; ++tall) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows[tall][half] = min(row + 16 * tall + 8 * half + lane / 4, product.n - 1) * groups;
      }
    }
    load(product, first);
  }
  __device__ void load(Arguments const& product, int step) {
    int group = (kLong > 1 ? step / kLong : step * kPer) + quad * kPer;
#pragma unroll
    for (int tall = 0; tall < kTall; ++tall) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int per = 0; per < kPer; ++per) {
          int found = rows[tall][half] + min(group + per, groups - 1);
          scales[tall][half][per] = __ldg(product.scales + found);
          if (kZeros == 1) zeros[tall][half][per] = __ldg(static_cast<uint16_t const*>(product.zeros) + found);
          if (kZeros == 2) zeros[tall][half][per] = __ldg(static_cast<uint8_t const*>(product.zeros) + found);
        }
      }
    }
  }
  // Returns which lane has those of a step.
  __device__ int slot(Arguments const& product, int step, bool initial) {
    int found = kLong > 1 ? step / kLong - base / kLong : step - base;
    if (!initial && found < 4) return found;
#pragma unroll
    for (int tall = 0; tall < kTall; ++tall) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int per = 0; per < kPer; ++per) {
          held[tall][half][per] =
              kZeros ? permute(scales[tall][half][per], zeros[tall][half][per], 0x5410) : scales[tall][half][per];
        }
      }
    }
    base = step;
    load(product, kLong > 1 ? (base / kLong + 4) * kLong : base + 4);
    return 0;
  }
};

// The words of eight rows in a stage that a lane multiplies, in the order of `Copies`.
__device__ void read(uint32_t (&words)[4], char const* row, int quad) {
  if (kPer == 1) {
    uint4 found = *reinterpret_cast<uint4 const*>(row + 16 * quad);
    words[0] = found.x, words[1] = found.y, words[2] = found.z, words[3] = found.w;
  } else if (kPer == 2) {
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      uint2 found = *reinterpret_cast<uint2 const*>(row + 8 * quad + 32 * two);
      words[2 * two] = found.x, words[2 * two + 1] = found.y;
    }
  } else {
#pragma unroll
    for (int word = 0; word < 4; ++word) words[word] = *reinterpret_cast<uint32_t const*>(row + 4 * quad + 16 * word);
  }
}

// Adds the products of a step. `slot`: the lane that has its scales.
__device__ void add(float (&total)[kTall][kWide][4], char const* stage, Scales const& scales, int slot, int lane) {
  int quad = lane % 4, line = lane / 4;
  // Pairs of activations, as `convert` pairs the numbers of a word.
  uint32_t right[4][kWide][4];
  char const* tokens = stage + kRowBytes + line * 256 + 16 * quad;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
#pragma unroll
    for (int wide = 0; wide < kWide; ++wide) {
      uint4 found = *reinterpret_cast<uint4 const*>(tokens + wide * 8 * 256 + 64 * (word ^ line % 2));
      right[word][wide][0] = permute(found.x, found.z, 0x5410);
      right[word][wide][1] = permute(found.x, found.z, 0x7632);
      right[word][wide][2] = permute(found.y, found.w, 0x5410);
      right[word][wide][3] = permute(found.y, found.w, 0x7632);
    }
  }
  // The sum of a group's activations, which zero points multiply.
  float all[kPer][kWide][4] = {};
  uint32_t const ones[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
  for (int word = 0; word < 4; ++word) {
#pragma unroll
    for (int two = 0; two < 2; ++two) {
#pragma unroll
      for (int wide = 0; wide < kWide; ++wide) {
        multiply(all[word * kPer / 4][wide], ones, right[word][wide][2 * two], right[word][wide][2 * two + 1]);
      }
    }
  }
#pragma unroll
  for (int tall = 0; tall < kTall; ++tall) {
    uint32_t words[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) read(words[half], stage + line * 64 + (2 * tall + half) * 512, quad);
#pragma unroll
    for (int per = 0; per < kPer; ++per) {
      // Two sums, so that an instruction need not wait for the one before.
      float sums[2][kWide][4] = {};
#pragma unroll
      for (int word = per * 4 / kPer; word < (per + 1) * 4 / kPer; ++word) {
#pragma unroll
        for (int two = 0; two < 2; ++two) {
          uint32_t left[4];
#pragma unroll
          for (int which = 0; which < 4; ++which) left[which] = convert(words[which % 2][word], 2 * two + which / 2);
#pragma unroll
          for (int wide = 0; wide < kWide; ++wide) {
            multiply(sums[two][wide], left, right[word][wide][2 * two], right[word][wide][2 * two + 1]);
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t both = __shfl_sync(0xffffffff, scales.held[tall][half][per], slot, 4);
        float scale = number(kZeros ? both & 0xffff : both);
        float zero = kMore + (kZeros == 0 ? 8.f : kZeros == 1 ? number(both >> 16) : float(both >> 16));
#pragma unroll
        for (int wide = 0; wide < kWide; ++wide) {
#pragma unroll
          for (int at = 2 * half; at < 2 * half + 2; ++at) {
            float sum = sums[0][wide][at] + sums[1][wide][at] - zero * all[per][wide][at % 2];
            total[tall][wide][at] += scale * sum;
          }
        }
      }
    }
  }
}

// Adds up what all warps along K have in shared memory, and in a cluster those of the other blocks, for its share of the
// tile, and stores it.
__device__ void finish(Arguments const& product, char const* sums, int token, int row, int rank) {
  constexpr int pairs = kTokens * kTileRows / 2, each = (pairs + kSplit - 1) / kSplit;
  for (int at = rank * each + threadIdx.x; at < min((rank + 1) * each, pairs); at += 32 * kWarps) {
    int own_token = at / (kTileRows / 2), own_row = at % (kTileRows / 2) * 2;
    float first = 0, second = 0;
#pragma unroll
    for (int other = 0; other < kSplit; ++other) {
      uint32_t from = shared(sums) + (own_token * kPitch + own_row) * 4;
      if (kSplit > 1) asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(from) : "r"(other));
#pragma unroll
      for (int along = 0; along < kAlong; ++along) {
        float low, high;
        asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                     : "=f"(low), "=f"(high)
                     : "r"(from + along * kTokens * kPitch * 4)
                     : "memory");
        first += low;
        second += high;
      }
    }
    if (token + own_token < product.m && row + own_row < product.n) {
      long place = long(token + own_token) * product.n + row + own_row;
      *reinterpret_cast<uint32_t*>(product.out + place) = pair(first, second);
    }
  }
}

__global__ void __launch_bounds__(32 * kWarps, kBlocks) gemm(Arguments const product) {
  extern __shared__ __align__(128) char memory[];
  int warp = __shfl_sync(0xffffffff, int(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  int across = warp % kAcross, along = warp / kAcross;
  int rank = 0, unit = blockIdx.x / kSplit;
  if (kSplit > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  // Blocks that read the same rows of the weight follow each other.
  int token = unit % product.tiles_m() * kTokens, row = unit / product.tiles_m() * kTileRows;
  int part = rank * kAlong + along, parts = kSplit * kAlong;
  int first = int(long(product.steps()) * part / parts), last = int(long(product.steps()) * (part + 1) / parts);

  char* ring = memory + warp * kStages * kStageBytes;
  // Scales first: behind the weight they would be late.
  Scales scales(product, row + across * kRows, first, lane);
  Copies copies(product, ring, row + across * kRows, token, first, last, lane);
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) copies.next(lane);
  float total[kTall][kWide][4] = {};
  int stage = 0;
  for (int step = first; step < last; ++step) {
    int slot = scales.slot(product, step, step == first);
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncwarp();
    copies.next(lane);
    add(total, ring + stage * kStageBytes, scales, slot, lane);
    if (++stage == kStages) stage = 0;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();

  float* sums = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int tall = 0; tall < kTall; ++tall) {
#pragma unroll
    for (int wide = 0; wide < kWide; ++wide) {
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        int own_token = 8 * wide + lane % 4 * 2 + at % 2, own_row = across * kRows + 16 * tall + 8 * (at / 2) + lane / 4;
        sums[(along * kTokens + own_token) * kPitch + own_row] = total[tall][wide][at];
      }
    }
  }
  if (kSplit > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  finish(product, memory, token, row, rank);
  // A block's memory is there until all have read it.
  if (kSplit > 1) cluster_sync();
}

}  // namespace kernel

// The operands of a product out[m, n] = a[m, k] b[k, n]. `lda`: elements from one row of A to the next; `ldb`: bytes
// from the packed numbers of one column of B to those of the next. `scale`, `zeros`: [n, k / group]. There is no bias.
struct Product {
  void const* a;
  void const* b;
  void const* scale;
  void const* bias;
  void* out;
  int m, n, k;
  long lda, ldb;
  void const* zeros;
};

struct Order {
  int unused[3];
};

struct Workspace {
  void* data;
  size_t bytes;
};

enum Failure { kMisaligned = 1, kIllegal = 2, kLaunch = 5 };

size_t workspace_bytes(Product const&, Order const&) { return 0; }

// Enqueues the product on `stream`; 0, or the Failure that kept it from being enqueued.
int run(Product const& product, Order const&, Workspace const&, cudaStream_t stream) {
  using namespace kernel;
  if (product.m == 0) return 0;
  void const* pointers[] = {product.a, product.b, product.out};
  for (void const* pointer : pointers) {
    if (reinterpret_cast<size_t>(pointer) % 16 != 0) return kMisaligned;
  }
  if (product.lda % 8 != 0 || product.ldb % 16 != 0) return kMisaligned;
  if (product.n % 2 != 0 || product.k % (kPer == 1 ? kDepth : 32) != 0) return kIllegal;
  Arguments arguments{static_cast<uint16_t const*>(product.a), static_cast<char const*>(product.b),
                      static_cast<uint16_t const*>(product.scale), product.zeros,
                      static_cast<uint16_t*>(product.out), product.m, product.n, product.k, product.lda, product.ldb};
  cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(kSplit), 1, 1};
  cudaLaunchConfig_t config = {dim3(arguments.tiles_m() * arguments.tiles_n() * kSplit), dim3(32 * kWarps),
                               size_t(kSharedBytes), stream, &cluster, kSplit > 1 ? 1u : 0u};
  return cudaLaunchKernelEx(&config, gemm, arguments) == cudaSuccess ? 0 : kLaunch;
}

}  // namespace
