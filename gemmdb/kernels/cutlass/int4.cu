// One GEMM for Hopper with an int4 weight that has a scale for each group along K: out = a * ((number - zero) * scale).
// The GEMMDB_ macros before this text choose the kernel.
//
// The weight is the left operand of the matrix unit, from registers, and the activation the right one, from shared
// memory: tiles of the output are transposed as they are stored. The first warp group of a block loads tiles into a
// ring of stages. Each other warp group multiplies 64 rows of the weight's tile, or twice 64, and all tokens of the tile.
// It converts a part of its numbers while the matrix unit multiplies the part before.
//
// The blocks of a cluster each sum a part of the depth (GEMMDB_SPLIT parts). Then each block adds, in order, what all
// have summed for some of the tokens.

#include <cuda.h>

#include <tuple>
#include <utility>

#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/arch/mma_sm90_desc.hpp"
#include "cute/arch/mma_sm90_gmma.hpp"
#include "cute/arch/mma_sm90_gmma_ext.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/reg_reconfig.h"

// Each file has its own: the objects of several kernels are linked together in an AOTInductor package.
namespace {
namespace kernel {

constexpr int kTokens = GEMMDB_TILE_M, kRows = GEMMDB_TILE_N, kDepth = GEMMDB_TILE_K;
constexpr int kSplit = GEMMDB_SPLIT;
constexpr int kGroups = GEMMDB_GROUPS, kWaves = kRows / 64 / kGroups, kThreads = 128 * (kGroups + 1);
// What one thread sums of 64 rows.
constexpr int kSums = kTokens / 2;
// Weights along K that share a scale, and whether there are zero points, in the activation's dtype. Without, all are 8.
constexpr int kGroup = GEMMDB_GROUP;
constexpr bool kZeros = GEMMDB_ZEROS;
constexpr bool kHalf = GEMMDB_FP16;
// Groups of a step, or steps of a group.
constexpr int kPer = kGroup < kDepth ? kDepth / kGroup : 1, kLong = kGroup > kDepth ? kGroup / kDepth : 1;
// What one instruction multiplies is a unit: 64 rows and 16 along K. So many of a step, and so many are in registers:
// an instruction holds its warp up until it has begun, and converting goes on only behind it, so they take turns.
constexpr int kUnits = kDepth / 16 * kWaves, kFragments = 4, kLead = 2;
// Units whose numbers are read at once; they are read that much before they are converted.
constexpr int kPair = 2 * kWaves, kAhead = kLead + kPair;
static_assert(kRows == 64 * kGroups * kWaves && kTokens % 8 == 0 && kTokens <= 256 && kRows <= 256);
static_assert((kDepth == 64 || kDepth == 128) && (kDepth % kGroup == 0 || kGroup % kDepth == 0) && kGroup % 32 == 0);
static_assert(kUnits % kFragments == 0 && kAhead <= kUnits);

constexpr int kTokenBytes = kTokens * kDepth * 2, kRowBytes = kRows * kDepth / 2;
constexpr int kStageBytes = kTokenBytes + kRowBytes;
// Blocks of a cluster that store: each has as many tokens of the tile.
constexpr int owners() {
  int many = kSplit;
  while (kTokens / 8 % many != 0) --many;
  return many;
}
constexpr int kOwners = owners(), kStored = kTokens / kOwners;
constexpr int kPartialBytes = kSplit > 1 ? kSplit * kStored * kRows * 4 : 0;
// The tile that is stored, in parts of 64 columns of the output. Parts of a cluster lie where stages were.
constexpr int kPartBytes = kStored * 128, kOutBytes = kRows / 64 * kPartBytes;
// A stage has two barriers. Tiles begin at multiples of 1,024 bytes, the dynamic memory of a block at any.
constexpr int kStageAll = kStageBytes + 16, kOtherBytes = 1024 + (kSplit > 1 ? 0 : kOutBytes);
constexpr int kMost = (227 * 1024 - kOtherBytes) / kStageAll, kStages = kMost > 24 ? 24 : kMost;
static_assert(kStages >= 2 && (kSplit == 1 || kPartialBytes + kOutBytes <= kStages * kStageBytes));
constexpr int kSharedBytes = kStages * kStageAll + kOtherBytes;
// Tiles along M whose blocks follow each other, which read the same tile of the weight.
constexpr int kBand = 8;

using Full = cutlass::arch::ClusterTransactionBarrier;
using Empty = cutlass::arch::ClusterBarrier;
using cute::SM90::GMMA::Major;
#if GEMMDB_FP16
#define GEMMDB_JOINED(tokens) cute::SM90::GMMA::MMA_64x##tokens##x16_F32F16F16_RS<Major::K, Major::K>
#else
#define GEMMDB_JOINED(tokens) cute::SM90::GMMA::MMA_64x##tokens##x16_F32BF16BF16_RS<Major::K, Major::K>
#endif
#define GEMMDB_MMA(tokens) GEMMDB_JOINED(tokens)
using Mma = GEMMDB_MMA(GEMMDB_TILE_M);

struct Arguments {
  uint16_t const* scales;
  uint16_t const* zeros;
  int m, n, k;

  __host__ __device__ int tiles_m() const { return (m + kTokens - 1) / kTokens; }
  __host__ __device__ int tiles_n() const { return (n + kRows - 1) / kRows; }
  __host__ __device__ int tiles() const { return tiles_m() * tiles_n(); }
  __device__ int steps() const { return (k + kDepth - 1) / kDepth; }
  __device__ int groups() const { return (k + kGroup - 1) / kGroup; }
};

struct Tile {
  int token, row;

  // Blocks follow each other along M, in bands.
  __device__ Tile(Arguments const& product, int unit) {
    int tokens = product.tiles_m(), rows = product.tiles_n();
    int first = unit / (kBand * rows) * kBand, height = min(kBand, tokens - first), within = unit % (kBand * rows);
    token = (first + within % height) * kTokens;
    row = within / height * kRows;
  }
};

struct Ring {
  char* tokens;
  char* rows;
  Full* full;
  Empty* empty;
  int stage = 0, phase = 0;

  __device__ Ring(char* memory)
      : tokens(memory), rows(memory + kStages * kTokenBytes),
        full(reinterpret_cast<Full*>(rows + kStages * kRowBytes)), empty(reinterpret_cast<Empty*>(full + kStages)) {}
  __device__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

__device__ void slice(Arguments const& product, int rank, int& first, int& last) {
  first = kSplit > 1 ? product.steps() * rank / kSplit : 0;
  last = kSplit > 1 ? product.steps() * (rank + 1) / kSplit : product.steps();
}

__device__ void load_tiles(
    CUtensorMap const* tokens, CUtensorMap const* rows, Arguments const& product, Ring ring, int rank) {
  constexpr uint64_t cached = 0x1000000000000000;
  int first, last;
  slice(product, rank, first, last);
  for (int unit = blockIdx.x / kSplit; unit < product.tiles(); unit += gridDim.x / kSplit) {
    Tile tile(product, unit);
    for (int step = first; step < last; ++step, ring.next()) {
      int stage = ring.stage, depth = step * kDepth;
      ring.empty[stage].wait(ring.phase ^ 1);
      ring.full[stage].arrive_and_expect_tx(kStageBytes);
      auto* bar = reinterpret_cast<uint64_t*>(&ring.full[stage]);
      cute::SM90_TMA_LOAD_2D::copy(rows, bar, cached, ring.rows + stage * kRowBytes, depth / 2, tile.row);
#pragma unroll
      for (int part = 0; part < kDepth / 64; ++part) {
        char* memory = ring.tokens + stage * kTokenBytes + part * kTokens * 128;
        cute::SM90_TMA_LOAD_2D::copy(tokens, bar, cached, memory, depth + 64 * part, tile.token);
      }
    }
  }
}

template <size_t... Place>
__device__ void multiply(
    uint32_t const (&left)[4], uint64_t right, float (&sums)[kSums], std::index_sequence<Place...>) {
  Mma::fma(left[0], left[1], left[2], left[3], right, sums[Place]...);
}

// A descriptor's lower half for a tile at `memory`. The upper half says that rows have 128 bytes, swizzled over 1,024
// bytes, which are eight rows.
__device__ uint32_t start(char const* memory) { return (cute::cast_smem_ptr_to_uint(memory) >> 4) | (1u << 16); }
__device__ uint64_t descriptor(uint32_t start) { return (uint64_t((1024 >> 4) | (1u << 30)) << 32) | start; }

__device__ uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

__device__ uint32_t subtract(uint32_t left, uint32_t right) {
  uint32_t result;
  if (kHalf) {
    asm("sub.f16x2 %0, %1, %2;" : "=r"(result) : "r"(left), "r"(right));
  } else {
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(left), "r"(right));
  }
  return result;
}

__device__ uint32_t scaled(uint32_t left, uint32_t right) {
  uint32_t result;
  if (kHalf) {
    asm("mul.f16x2 %0, %1, %2;" : "=r"(result) : "r"(left), "r"(right));
  } else {
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(left), "r"(right));
  }
  return result;
}

// A number of four bits in the last bits of one of these is that number more: 128 in bf16, 1,024 in fp16.
constexpr uint32_t kMagic = kHalf ? 0x64006400 : 0x43004300;

// The scales and zero points of the rows of a thread, twice each, for a step.
struct Scales {
  uint32_t scale[kWaves][2][kPer], zero[kWaves][2][kPer];
};

// Reads scales ahead of the steps. The four lanes that share rows have those of four steps (or, if groups are longer,
// of four groups) and pass them to each other; those of the four next ones are on their way.
struct Reader {
  uint32_t held[kWaves][2][kPer], scales[kWaves][2][kPer], zeros[kWaves][2][kPer];
  int rows[kWaves][2];
  int group, lane, slot;

  // `row`: the first of the thread's rows.
  __device__ Reader(Arguments const& product, int row, int step, int lane) : lane(lane) {
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows[wave][half] = min(row + wave * kGroups * 64 + 8 * half, product.n - 1) * product.groups();
      }
    }
    group = kLong > 1 ? step / kLong : step * kPer;
    load(product);
    slot = 3;
  }
  __device__ void load(Arguments const& product) {
#pragma unroll
    for (int place = 0; place < kPer; ++place) {
      int found = min(group + lane % 4 * kPer + place, product.groups() - 1);
#pragma unroll
      for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          scales[wave][half][place] = __ldg(product.scales + rows[wave][half] + found);
          if (kZeros) zeros[wave][half][place] = __ldg(product.zeros + rows[wave][half] + found);
        }
      }
    }
    group += 4 * kPer;
  }
  // Those of the next step, `step`. `initial`: it is the first step.
  __device__ void next(Arguments const& product, int step, bool initial, Scales& found) {
    if (kLong == 1 || initial || step % kLong == 0) {
      if (++slot == 4) {
        slot = 0;
#pragma unroll
        for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int place = 0; place < kPer; ++place) {
              held[wave][half][place] = kZeros ? permute(scales[wave][half][place], zeros[wave][half][place], 0x5410)
                                               : permute(scales[wave][half][place], 0, 0x1010);
            }
          }
        }
        load(product);
      }
    }
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int place = 0; place < kPer; ++place) {
          uint32_t both = __shfl_sync(0xffffffff, held[wave][half][place], slot, 4);
          found.scale[wave][half][place] = kZeros ? permute(both, both, 0x1010) : both;
          if (kZeros) found.zero[wave][half][place] = permute(both, both, 0x3232);
        }
      }
    }
  }
};

// Two neighbours along K, which are one byte of a word of eight. `selector` takes the lane's byte, and `spread`, 4,097,
// copies it 12 bits up: the compiler must not know the number, or it takes a busier unit than that of multiplications.
__device__ uint32_t convert(uint32_t word, uint32_t scale, uint32_t zero, uint32_t selector, uint32_t spread) {
  uint32_t byte = permute(word, 0, selector), pair;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(pair) : "r"(byte * spread), "r"(0x000F000F), "r"(kMagic));
  pair = subtract(pair, kZeros ? kMagic : kMagic + 0x00080008);
  if (kZeros) pair = subtract(pair, zero);
  return scaled(pair, scale);
}

__device__ void release(Ring const& ring, int stage, int lane) {
  __syncwarp();
  if (lane == 0) ring.empty[stage].arrive();
}

// Adds up a tile, or a slice of it: 64 rows, or twice 64.
__device__ void sum(
    float (&total)[kWaves][kSums], Ring& ring, Arguments const& product, Tile const& tile, int first, int last,
    int group, int warp, int lane) {
  constexpr auto places = std::make_index_sequence<kSums>();
  int row = 64 * group + 16 * warp + lane / 4;
  Reader reader(product, tile.row + row, first, lane);
  Scales scales;
  uint32_t right = start(ring.tokens);
  // Where the engine has put 16 bytes of a row: rows of 64 bytes are swizzled over 512, rows of 32 over 256.
  uint32_t words = cute::cast_smem_ptr_to_uint(ring.rows) + row * (kDepth / 2);
  uint32_t swizzle = 16 * (kDepth == 128 ? lane / 8 % 4 : lane / 16 % 2);
  uint32_t selector = 0x4440 + lane % 4, spread;
  asm volatile("mov.u32 %0, 4097;" : "=r"(spread));

  // Of two times 32 along K.
  uint32_t raw[2][kWaves][2][4];
  auto read = [&](int stage, int part) {
    uint32_t from = words + stage * kRowBytes + ((16 * part) ^ swizzle);
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t(&four)[4] = raw[part % 2][wave][half];
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3])
                     : "r"(from + (wave * kGroups * 64 + 8 * half) * (kDepth / 2)));
      }
    }
  };
  uint32_t fragments[kFragments][4];
  auto fill = [&](int unit) {
    int sixteen = unit / kWaves, wave = unit % kWaves, place = kPer > 1 ? sixteen * 16 / kGroup : 0;
#pragma unroll
    for (int word = 0; word < 2; ++word) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        fragments[unit % kFragments][2 * word + half] =
            convert(raw[sixteen / 2 % 2][wave][half][sixteen % 2 * 2 + word], scales.scale[wave][half][place],
                    scales.zero[wave][half][place], selector, spread);
      }
    }
  };
  auto fence = [&] {
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
      for (int place = 0; place < kSums; ++place) cute::warpgroup_fence_operand(total[wave][place]);
    }
  };

#pragma unroll
  for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
    for (int place = 0; place < kSums; ++place) total[wave][place] = 0;
  }
  reader.next(product, first, true, scales);
  ring.full[ring.stage].wait(ring.phase);
#pragma unroll
  for (int unit = 0; unit < kAhead; ++unit) {
    if (unit % kPair == 0) read(ring.stage, unit / kPair);
    if (unit >= kPair) fill(unit - kPair);
  }
  int before = 0;
  for (int step = first; step < last; ++step) {
    int stage = ring.stage;
    uint32_t side = right + (stage * kTokenBytes >> 4);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      int sixteen = unit / kWaves, later = (unit + kLead) % kUnits, ahead = (unit + kAhead) % kUnits;
      fence();
      cute::warpgroup_arrive();
      multiply(fragments[unit % kFragments], descriptor(side + (sixteen / 4 * kTokens * 128 >> 4) + 2 * (sixteen % 4)),
               total[unit % kWaves], places);
      cute::warpgroup_commit_batch();
      if (ahead == 0) {
        // Behind the last step, what is read and converted is not used.
        ring.next();
        if (step + 1 < last) ring.full[ring.stage].wait(ring.phase);
      }
      if (later == 0) reader.next(product, step + 1, false, scales);
      if (ahead % kPair == 0) read(ring.stage, ahead / kPair);
      // The fragments that are filled next have been multiplied.
      cute::warpgroup_wait<kFragments - kLead>();
      if (unit == kFragments - kLead - 1 && step > first) release(ring, before, lane);
      fill(later);
    }
    before = stage;
  }
  cute::warpgroup_wait<0>();
  fence();
  release(ring, before, lane);
}

// Each block sends all owners what it has summed for them, which an owner adds.
__device__ void join(
    float const (&total)[kWaves][kSums], float (&joined)[kWaves][kStored / 2], char* partials, int rank, int group,
    int thread) {
  constexpr int fours = kStored / 8;
  auto place = [&](int sender, int wave, int four) {
    return (((sender * kGroups + group) * kWaves + wave) * fours + four) * 128 + thread;
  };
  uint32_t local = cute::cast_smem_ptr_to_uint(partials);
#pragma unroll
  for (int owner = 0; owner < kOwners; ++owner) {
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(owner));
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
      for (int four = 0; four < fours; ++four) {
        float const* sums = total[wave] + 4 * (owner * fours + four);
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote + 16 * place(rank, wave, four)),
                     "f"(sums[0]), "f"(sums[1]), "f"(sums[2]), "f"(sums[3])
                     : "memory");
      }
    }
  }
  cute::cluster_arrive();
  cute::cluster_wait();
  if (rank >= kOwners) return;
#pragma unroll
  for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
    for (int four = 0; four < fours; ++four) {
      float4 sums = reinterpret_cast<float4 const*>(partials)[place(0, wave, four)];
#pragma unroll
      for (int sender = 1; sender < kSplit; ++sender) {
        float4 found = reinterpret_cast<float4 const*>(partials)[place(sender, wave, four)];
        sums.x += found.x;
        sums.y += found.y;
        sums.z += found.z;
        sums.w += found.w;
      }
      joined[wave][4 * four] = sums.x;
      joined[wave][4 * four + 1] = sums.y;
      joined[wave][4 * four + 2] = sums.z;
      joined[wave][4 * four + 3] = sums.w;
    }
  }
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

// Stores 64 columns of the output, which the copy engine reads from shared memory.
__device__ void store(
    float const* sums, CUtensorMap const* out, char* memory, int token, int row, int group, int warp,
    int lane) {
  // The place of a row of eight: `line` in shared memory, a token, and 16 bytes within it, of eight weights.
#pragma unroll
  for (int eight = 0; eight < kStored / 8; eight += 2) {
    bool both = eight + 1 < kStored / 8;
    int line = 8 * eight + (both ? lane / 16 * 8 : 0) + lane % 8;
    int beside = (2 * warp + lane / 8 % 2) ^ line % 8;
    uint32_t address = cute::cast_smem_ptr_to_uint(memory) + line * 128 + beside * 16;
    uint32_t first = pair(sums[4 * eight], sums[4 * eight + 1]);
    uint32_t second = pair(sums[4 * eight + 2], sums[4 * eight + 3]);
    if (both) {
      int further = 4 * eight + 4 < kStored / 2 ? 4 * eight + 4 : 0;
      asm volatile("stmatrix.sync.aligned.x4.trans.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(first),
                   "r"(second), "r"(pair(sums[further], sums[further + 1])),
                   "r"(pair(sums[further + 2], sums[further + 3]))
                   : "memory");
    } else {
      asm volatile("stmatrix.sync.aligned.x2.trans.m8n8.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first),
                   "r"(second)
                   : "memory");
    }
  }
  cute::tma_store_fence();
  asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
  if (warp == 0 && lane == 0) {
    cute::SM90_TMA_STORE_2D::copy(out, memory, row, token);
    cute::tma_store_arrive();
  }
}

__global__ void __launch_bounds__(kThreads, 1) gemm(
    __grid_constant__ CUtensorMap const tokens, __grid_constant__ CUtensorMap const rows,
    __grid_constant__ CUtensorMap const out, Arguments const product) {
  extern __shared__ char raw[];
  char* memory = raw + (1024 - cute::cast_smem_ptr_to_uint(raw) % 1024) % 1024;
  char* stored = kSplit > 1 ? memory + kPartialBytes : memory;
  char* partials = memory;
  Ring ring(kSplit > 1 ? memory : memory + kOutBytes);
  // The same in all lanes, which the compiler cannot see: descriptors are numbers of a warp.
  int warp = __shfl_sync(0xffffffff, int(threadIdx.x / 32), 0), lane = threadIdx.x % 32, group = warp / 4 - 1;
  warp %= 4;
  int rank = kSplit > 1 ? int(cute::block_rank_in_cluster()) : 0;
  if (threadIdx.x == 0) {
    cute::prefetch_tma_descriptor(&tokens);
    cute::prefetch_tma_descriptor(&rows);
    cute::prefetch_tma_descriptor(&out);
    for (int stage = 0; stage < kStages; ++stage) {
      ring.full[stage].init(1);
      ring.empty[stage].init(4 * kGroups);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (group < 0) {
    if constexpr (kGroups > 1) cutlass::arch::warpgroup_reg_dealloc<kGroups == 2 ? 40 : kGroups == 3 ? 32 : 24>();
    if (warp == 0 && lane == 0) load_tiles(&tokens, &rows, product, ring, rank);
    if (kSplit > 1) {
      __syncwarp();
      cute::cluster_arrive();
      cute::cluster_wait();
      cute::cluster_arrive();
      cute::cluster_wait();
    }
  } else {
    if constexpr (kGroups > 1) {
      cutlass::arch::warpgroup_reg_alloc<kGroups == 4 ? 112 : kGroups == 3 ? 160 : 232>();
    }
    int first, last;
    slice(product, rank, first, last);
    for (int unit = blockIdx.x / kSplit; unit < product.tiles(); unit += gridDim.x / kSplit) {
      Tile tile(product, unit);
      float total[kWaves][kSums];
      sum(total, ring, product, tile, first, last, group, warp, lane);
      if constexpr (kSplit > 1) {
        // All blocks have read their stages, where sums are sent now.
        cute::cluster_arrive();
        cute::cluster_wait();
        float joined[kWaves][kStored / 2];
        join(total, joined, partials, rank, group, 32 * warp + lane);
        if (rank < kOwners) {
#pragma unroll
          for (int wave = 0; wave < kWaves; ++wave) {
            int block = wave * kGroups + group;
            store(joined[wave], &out, stored + block * kPartBytes, tile.token + rank * kStored, tile.row + 64 * block,
                  group, warp, lane);
          }
        }
      } else {
        // The copy engine has read the tile before.
        if (warp == 0 && lane == 0) cute::tma_store_wait<0>();
        asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
#pragma unroll
        for (int wave = 0; wave < kWaves; ++wave) {
          int block = wave * kGroups + group;
          store(total[wave], &out, stored + block * kPartBytes, tile.token, tile.row + 64 * block, group, warp, lane);
        }
      }
    }
    if (warp == 0 && lane == 0) cute::tma_store_wait<0>();
  }
}

// The tensor map of a matrix with rows along memory, for boxes of a size; false where the driver refuses it.
bool describe(
    CUtensorMap* map, CUtensorMapDataType type, int bytes, void const* data, int rows, int columns, long leading,
    int box_rows, int box_columns, CUtensorMapSwizzle swizzle) {
  static auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows)}, strides[] = {cuuint64_t(leading * bytes)};
  cuuint32_t boxes[] = {cuuint32_t(box_columns), cuuint32_t(box_rows)}, steps[] = {1, 1};
  return encode && encode(map, type, 2, const_cast<void*>(data), sizes, strides, boxes, steps,
                          CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
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
  Arguments arguments{static_cast<uint16_t const*>(product.scale), static_cast<uint16_t const*>(product.zeros),
                      product.m, product.n, product.k};
  constexpr auto bytes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  constexpr auto floats = kHalf ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  constexpr auto wide = CU_TENSOR_MAP_SWIZZLE_128B;
  constexpr auto packed = kDepth == 128 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B;
  // Each block has a step.
  if (product.k <= (kSplit - 1) * kDepth) return kIllegal;
  CUtensorMap tokens, rows, out;
  auto [m, n, k] = std::tuple(product.m, product.n, product.k);
  if (!describe(&tokens, floats, 2, product.a, m, k, product.lda, kTokens, 64, wide) ||
      !describe(&rows, bytes, 1, product.b, n, k / 2, product.ldb, kRows, kDepth / 2, packed) ||
      !describe(&out, floats, 2, product.out, m, n, n, kStored, 64, wide)) {
    return kIllegal;
  }
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  int tiles = arguments.tiles(), room = kSplit > 1 ? tiles : processors;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(kSplit), 1, 1};
  // Without the attribute, since a cluster of one block changes which blocks run near each other: tiles that share an
  // operand then take up to 1.6 times as long.
  cudaLaunchConfig_t config = {dim3((tiles < room ? tiles : room) * kSplit), dim3(kThreads), size_t(kSharedBytes),
                               stream, &cluster, kSplit > 1 ? 1u : 0u};
  return cudaLaunchKernelEx(&config, gemm, tokens, rows, out, arguments) == cudaSuccess ? 0 : kLaunch;
}

}  // namespace
