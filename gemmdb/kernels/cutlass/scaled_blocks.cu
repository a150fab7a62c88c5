// One fp8 GEMM for Hopper with block scales: 1 x 128 of A, 128 x 128 of B, applied within the sum. The GEMMDB_ macros
// before this text choose the kernel.
//
// The kernel multiplies a left operand [rows, depth] by a right one [depth, columns], both with depth along memory.
// Without GEMMDB_SWAP these are A and B; with it they are B and A transposed, and tiles are transposed as they are
// stored. In both, `tokens` are the rows of A, and `weight` is B.
//
// The first warp group of a block loads tiles and scales into a ring of stages. Each other warp group multiplies 64
// rows of the left tile, in tiles of 256 rows twice 64. The matrix unit sums the products of one block along depth,
// 128; these sums, times their scales, are added in fp32, because the matrix unit accumulates fp8 with few bits. While
// a warp group adds, the matrix unit works for the other ones, and on the next step of the same one if its registers
// hold two sets of sums.
//
// The blocks of a cluster either share loads (GEMMDB_SHARED: 1, two tiles of rows load one right tile; 2, two tiles of
// columns load one left tile), or each sum a part of the depth (GEMMDB_SPLIT parts); the first one adds the parts in
// order.

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

constexpr bool kSwap = GEMMDB_SWAP;
constexpr int kRows = GEMMDB_TILE_ROWS, kColumns = GEMMDB_TILE_COLUMNS, kDepth = 128;
constexpr int kShared = GEMMDB_SHARED, kSplit = GEMMDB_SPLIT, kCluster = kShared ? 2 : kSplit;
constexpr int kWaves = kRows == 256 ? 2 : 1, kGroups = kRows / 64 / kWaves, kThreads = 128 * (kGroups + 1);
// Sums of a thread in 64 rows.
constexpr int kSums = kColumns / 2;
// Whether registers hold the sums of two steps.
constexpr bool kAhead = kWaves == 1 && kGroups <= 2 && kColumns <= 128;
// Whether scales are read after the multiplication, because registers for those of two steps are not free.
constexpr bool kLate = kSwap && kColumns >= 64;
static_assert(kRows == 64 * kGroups * kWaves && kGroups <= 3 && kColumns % 16 == 0 && !(kShared && kSplit > 1));
// The rows of a weight's tile have one scale, and parts of the depth are joined for one wave.
static_assert(!(kSwap && kRows > 128) && !(kSplit > 1 && kWaves > 1));

// Scales of a stage: of the tile's tokens, then of the weight's block, or of the two that the tile's columns lie in.
constexpr int kTokens = kSwap ? kColumns : kRows, kScales = kTokens + 4;
constexpr int kLeftBytes = kRows * kDepth, kRightBytes = kColumns * kDepth;
constexpr int kStageBytes = kLeftBytes + kRightBytes + kScales * 4;
// The tile that is stored, in parts of as many columns of the output as a swizzled row of shared memory has.
constexpr int kPart = kSwap || kColumns % 64 == 0 ? 64 : kColumns % 32 == 0 ? 32 : 16;
constexpr int kParts = kSwap ? 1 : kColumns / kPart, kPartBytes = 2 * kPart * (kSwap ? kColumns : 64);
constexpr int kOutBytes = kWaves * kGroups * kParts * kPartBytes;
constexpr int kPartialBytes = (kSplit - 1) * kRows * kColumns * 4;
// A stage has two barriers. Tiles begin at multiples of 1,024 bytes, the dynamic memory of a block at any.
constexpr int kStageAll = kStageBytes + 16, kOtherBytes = 1024 + kOutBytes + kPartialBytes;
constexpr int kStages = (227 * 1024 - kOtherBytes) / kStageAll;
static_assert(kStages >= 2);
constexpr int kSharedBytes = kStages * kStageAll + kOtherBytes;
// Tiles along M whose blocks follow each other, which read the same tile of the weight.
constexpr int kBand = 8;

using Full = cutlass::arch::ClusterTransactionBarrier;
using Empty = cutlass::arch::ClusterBarrier;
#define GEMMDB_JOINED(columns) cute::SM90::GMMA::MMA_64x##columns##x32_F32E4M3E4M3_SS_TN<>
#define GEMMDB_MMA(columns) GEMMDB_JOINED(columns)
using Mma = GEMMDB_MMA(GEMMDB_TILE_COLUMNS);

struct Arguments {
  float const* token_scales;
  float const* weight_scales;
  int m, n, k;
  // Elements from the scales of a block along K to those of the next, and from those of a block along N to those of the
  // next; scales lie one after the other along M, and along K.
  int token_step, weight_step;

  __host__ __device__ int left() const { return ((kSwap ? n : m) + kRows - 1) / kRows; }
  __host__ __device__ int right() const { return ((kSwap ? m : n) + kColumns - 1) / kColumns; }
  // Tiles of a cluster count as one.
  __host__ __device__ int units() const {
    int down = kShared == 1 ? (left() + 1) / 2 : left(), along = kShared == 2 ? (right() + 1) / 2 : right();
    return down * along;
  }
  __device__ int steps() const { return (k + kDepth - 1) / kDepth; }
};

struct Tile {
  int row, column;

  // The tile of a cluster's block `rank`. Blocks follow each other along M, in bands.
  __device__ Tile(Arguments const& product, int unit, int rank) {
    int down = kShared == 1 ? (product.left() + 1) / 2 : product.left();
    int along = kShared == 2 ? (product.right() + 1) / 2 : product.right();
    int tokens = kSwap ? along : down, others = kSwap ? down : along;
    int first = unit / (kBand * others) * kBand, height = min(kBand, tokens - first), within = unit % (kBand * others);
    int token = first + within % height, other = within / height;
    row = kSwap ? other : token;
    column = kSwap ? token : other;
    if (kShared == 1) row = 2 * row + rank;
    if (kShared == 2) column = 2 * column + rank;
    row *= kRows;
    column *= kColumns;
  }
};

struct Ring {
  char* left;
  char* right;
  float* scales;
  Full* full;
  Empty* empty;
  int stage = 0, phase = 0;

  __device__ Ring(char* memory)
      : left(memory), right(memory + kStages * kLeftBytes),
        scales(reinterpret_cast<float*>(right + kStages * kRightBytes)),
        full(reinterpret_cast<Full*>(scales + kStages * kScales)), empty(reinterpret_cast<Empty*>(full + kStages)) {}
  __device__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

__device__ void slice(Arguments const& product, int rank, int& first, int& last) {
  first = kSplit > 1 ? product.steps() * rank / kSplit : 0;
  last = kSplit > 1 ? product.steps() * (rank + 1) / kSplit : product.steps();
}

__device__ void load_tiles(
    CUtensorMap const* left, CUtensorMap const* right, Arguments const& product, Ring ring, int rank) {
  constexpr uint64_t cached = 0x1000000000000000;
  int first, last;
  slice(product, rank, first, last);
  for (int unit = blockIdx.x / kCluster; unit < product.units(); unit += gridDim.x / kCluster) {
    Tile tile(product, unit, rank);
    for (int step = first; step < last; ++step, ring.next()) {
      int stage = ring.stage, depth = step * kDepth;
      ring.empty[stage].wait(ring.phase ^ 1);
      ring.full[stage].arrive_and_expect_tx(kLeftBytes + kRightBytes);
      auto* bar = reinterpret_cast<uint64_t*>(&ring.full[stage]);
      char* rows = ring.left + stage * kLeftBytes;
      char* columns = ring.right + stage * kRightBytes;
      if (kShared == 2) {
        cute::SM90_TMA_LOAD_MULTICAST_2D::copy(
            left, bar, 3, cached, rows + rank * kLeftBytes / 2, depth, tile.row + rank * kRows / 2);
      } else {
        cute::SM90_TMA_LOAD_2D::copy(left, bar, cached, rows, depth, tile.row);
      }
      if (kShared == 1) {
        cute::SM90_TMA_LOAD_MULTICAST_2D::copy(
            right, bar, 3, cached, columns + rank * kRightBytes / 2, depth, tile.column + rank * kColumns / 2);
      } else {
        cute::SM90_TMA_LOAD_2D::copy(right, bar, cached, columns, depth, tile.column);
      }
    }
  }
}

// A warp copies the scales of each stage. The copies arrive at the stage's barrier by themselves.
__device__ void load_scales(Arguments const& product, Ring ring, int rank, int lane) {
  int first, last;
  slice(product, rank, first, last);
  auto copy = [](uint32_t to, float const* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(inside ? 4 : 0));
  };
  for (int unit = blockIdx.x / kCluster; unit < product.units(); unit += gridDim.x / kCluster) {
    Tile tile(product, unit, rank);
    int left = product.m - (kSwap ? tile.column : tile.row) - lane;
    int block = (kSwap ? tile.row : tile.column) / 128 + lane;
    float const* tokens = product.token_scales + (long(first) * product.token_step + product.m - left);
    bool has_block = block * 128 < product.n;
    float const* weight = product.weight_scales + (has_block ? long(block) * product.weight_step + first : 0);
    for (int step = first; step < last; ++step, ring.next()) {
      ring.empty[ring.stage].wait(ring.phase ^ 1);
      uint32_t scales = cute::cast_smem_ptr_to_uint(ring.scales + ring.stage * kScales + lane);
#pragma unroll
      for (int place = 0; place < kTokens; place += 32) {
        if (kTokens % 32 == 0 || place + lane < kTokens) copy(scales + 4 * place, tokens + place, place < left);
      }
      if (lane < 2) copy(scales + 4 * kTokens, weight, has_block);
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
          cute::cast_smem_ptr_to_uint(&ring.full[ring.stage])));
      tokens += product.token_step;
      ++weight;
    }
  }
}

template <size_t... Place>
__device__ void multiply(
    uint64_t left, uint64_t right, float (&sums)[kSums], cute::SM90::GMMA::ScaleOut scale,
    std::index_sequence<Place...>) {
  Mma::fma(left, right, sums[Place]..., scale);
}

// A descriptor's lower half for a tile at `memory`. The upper half says that rows have 128 bytes, swizzled over 1,024
// bytes, which are eight rows.
__device__ uint32_t start(char const* memory) { return (cute::cast_smem_ptr_to_uint(memory) >> 4) | (1u << 16); }
__device__ uint64_t descriptor(uint32_t start) { return (uint64_t((1024 >> 4) | (1u << 30)) << 32) | start; }

// The scales of one step that a thread needs: of two tokens in each eight columns with GEMMDB_SWAP, of its two rows
// without; and of the weight, for the first and for the second block of scales that the tile's columns lie in.
struct Scales {
  float tokens[kSwap ? kColumns / 4 : 2], weight, further;

  __device__ void read(float const* scales, int block, int warp, int lane) {
    weight = scales[kTokens];
    further = !kSwap && 128 % kColumns ? scales[kTokens + 1] : 0;
    if (kSwap) {
#pragma unroll
      for (int eight = 0; eight < kColumns / 8; ++eight) {
        float2 pair = *reinterpret_cast<float2 const*>(scales + 8 * eight + lane % 4 * 2);
        tokens[2 * eight] = pair.x;
        tokens[2 * eight + 1] = pair.y;
      }
    } else {
      int row = 64 * block + 16 * warp + lane / 4;
      tokens[0] = scales[row];
      tokens[1] = scales[row + 8];
    }
  }
  // Keeps what follows from the scales behind this place: the multiplications do not wait for them.
  __device__ void fence() {
    cute::warpgroup_fence_operand(weight);
    cute::warpgroup_fence_operand(further);
  }
};

__device__ void add(float (&total)[kSums], float const (&sums)[kSums], Scales const& scales, int border) {
  float rows[4];
  if (!kSwap) {
    rows[0] = scales.tokens[0] * scales.weight;
    rows[1] = scales.tokens[1] * scales.weight;
    rows[2] = scales.tokens[0] * scales.further;
    rows[3] = scales.tokens[1] * scales.further;
  }
#pragma unroll
  for (int eight = 0; eight < kColumns / 8; ++eight) {
    bool beyond = 128 % kColumns && 8 * eight >= border;
    float scale[4];
    if (kSwap) {
      scale[0] = scale[2] = scales.tokens[2 * eight] * scales.weight;
      scale[1] = scale[3] = scales.tokens[2 * eight + 1] * scales.weight;
    } else {
      scale[0] = scale[1] = beyond ? rows[2] : rows[0];
      scale[2] = scale[3] = beyond ? rows[3] : rows[1];
    }
#pragma unroll
    for (int place = 0; place < 4; ++place) total[4 * eight + place] += sums[4 * eight + place] * scale[place];
  }
}

__device__ void release(Ring const& ring, int stage, int lane) {
  __syncwarp();
  if (kShared) {
    if (lane < 2) ring.empty[stage].arrive(lane);
  } else if (lane == 0) {
    ring.empty[stage].arrive();
  }
}

// Adds up a tile, or a slice of it: the 64 rows of a group, and in a second wave 64 more.
__device__ void sum(
    float (&total)[kWaves][kSums], Ring& ring, int steps, int border, int group, int warp, int lane) {
  constexpr auto places = std::make_index_sequence<kSums>();
  uint32_t first = start(ring.left + group * 64 * kDepth), second = start(ring.right);
  auto issue = [&](float(&sums)[kSums], Scales& scales, int stage, int phase, int wave) {
    uint32_t left = first + ((stage * kLeftBytes + wave * kGroups * 64 * kDepth) >> 4);
    uint32_t right = second + (stage * kRightBytes >> 4);
    if (wave == 0) ring.full[stage].wait(phase);
    if (!kLate) scales.read(ring.scales + stage * kScales, wave * kGroups + group, warp, lane);
#pragma unroll
    for (int place = 0; place < kSums; ++place) cute::warpgroup_fence_operand(sums[place]);
    cute::warpgroup_arrive();
#pragma unroll
    for (int part = 0; part < kDepth / 32; ++part) {
      auto scale = part ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero;
      multiply(descriptor(left + 2 * part), descriptor(right + 2 * part), sums, scale, places);
    }
    cute::warpgroup_commit_batch();
  };
  auto finish = [&](float(&sums)[kSums], Scales& scales, int stage, int wave) {
#pragma unroll
    for (int place = 0; place < kSums; ++place) cute::warpgroup_fence_operand(sums[place]);
    if (kLate) scales.read(ring.scales + stage * kScales, wave * kGroups + group, warp, lane);
    scales.fence();
    if (wave == kWaves - 1) release(ring, stage, lane);
    add(total[wave], sums, scales, border);
  };
#pragma unroll
  for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
    for (int place = 0; place < kSums; ++place) total[wave][place] = 0;
  }
  float sums[kSums];
  Scales scales;
  if constexpr (!kAhead) {
    for (int step = 0; step < steps; ++step, ring.next()) {
#pragma unroll
      for (int wave = 0; wave < kWaves; ++wave) {
        issue(sums, scales, ring.stage, ring.phase, wave);
        cute::warpgroup_wait<0>();
        finish(sums, scales, ring.stage, wave);
      }
    }
    return;
  }
  if (steps == 0) return;
  float others[kSums];
  Scales further;
  int stage = ring.stage, later;
  issue(sums, scales, stage, ring.phase, 0);
  ring.next();
  int step = 1;
  for (; step + 1 < steps; step += 2) {
    later = ring.stage;
    issue(others, further, later, ring.phase, 0);
    ring.next();
    cute::warpgroup_wait<1>();
    finish(sums, scales, stage, 0);
    stage = ring.stage;
    issue(sums, scales, stage, ring.phase, 0);
    ring.next();
    cute::warpgroup_wait<1>();
    finish(others, further, later, 0);
  }
  if (step < steps) {
    later = ring.stage;
    issue(others, further, later, ring.phase, 0);
    ring.next();
    cute::warpgroup_wait<1>();
    finish(sums, scales, stage, 0);
    cute::warpgroup_wait<0>();
    finish(others, further, later, 0);
  } else {
    cute::warpgroup_wait<0>();
    finish(sums, scales, stage, 0);
  }
}

// Sends the sums of all blocks but the first to the first, which adds them. All threads of the warp groups call it.
__device__ void join(float (&total)[kSums], char* partials, int rank, int group, int thread) {
  auto place = [&](int sender, int four) {
    return ((sender * kGroups + group) * (kSums / 4) + four) * 128 + thread;
  };
  if (rank > 0) {
    uint32_t local = cute::cast_smem_ptr_to_uint(partials), remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(remote) : "r"(local));
#pragma unroll
    for (int four = 0; four < kSums / 4; ++four) {
      asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote + 16 * place(rank - 1, four)),
                   "f"(total[4 * four]), "f"(total[4 * four + 1]), "f"(total[4 * four + 2]), "f"(total[4 * four + 3])
                   : "memory");
    }
  }
  cute::cluster_arrive();
  cute::cluster_wait();
  if (rank > 0) return;
#pragma unroll
  for (int sender = 0; sender < kSplit - 1; ++sender) {
#pragma unroll
    for (int four = 0; four < kSums / 4; ++four) {
      float4 found = reinterpret_cast<float4 const*>(partials)[place(sender, four)];
      total[4 * four] += found.x;
      total[4 * four + 1] += found.y;
      total[4 * four + 2] += found.z;
      total[4 * four + 3] += found.w;
    }
  }
}

__device__ uint32_t pair(float first, float second) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

// Stores 64 rows of a tile, which the copy engine reads from shared memory.
__device__ void store(
    float const (&total)[kSums], CUtensorMap const* out, char* memory, int row, int column, int group, int warp,
    int lane) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    constexpr int columns = kSwap ? kColumns : kPart;
#pragma unroll
    for (int sixteen = 0; sixteen < columns / 16; ++sixteen) {
      float const* sums = total + part * columns / 2 + 8 * sixteen;
      uint32_t packed[4] = {
          pair(sums[0], sums[1]), pair(sums[2], sums[3]), pair(sums[4], sums[5]), pair(sums[6], sums[7])};
      // The place of a row of eight: `line` in shared memory, and 16 bytes within it.
      int below = 16 * warp + lane / 8 % 2 * 8, beside = 16 * sixteen + lane / 16 * 8;
      int line = (kSwap ? beside : below) + lane % 8, eight = (kSwap ? below : beside) / 8;
      eight ^= kPart == 64 ? line % 8 : kPart == 32 ? line / 2 % 4 : line / 4 % 2;
      uint32_t address = cute::cast_smem_ptr_to_uint(memory + part * kPartBytes + line * 2 * kPart + 16 * eight);
      if (kSwap) {
        asm volatile("stmatrix.sync.aligned.x4.trans.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                     "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3]));
      } else {
        asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                     "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3]));
      }
    }
  }
  cute::tma_store_fence();
  asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
  if (warp == 0 && lane == 0) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      int across = kSwap ? row : column + part * kPart, down = kSwap ? column : row;
      cute::SM90_TMA_STORE_2D::copy(out, memory + part * kPartBytes, across, down);
    }
    cute::tma_store_arrive();
  }
}

__global__ void __launch_bounds__(kThreads, 1) gemm(
    __grid_constant__ CUtensorMap const left, __grid_constant__ CUtensorMap const right,
    __grid_constant__ CUtensorMap const out, Arguments const product) {
  extern __shared__ char raw[];
  char* memory = raw + (1024 - cute::cast_smem_ptr_to_uint(raw) % 1024) % 1024;
  char* stored = memory;
  char* partials = stored + kOutBytes;
  Ring ring(partials + kPartialBytes);
  // The same in all lanes, which the compiler cannot see: descriptors are numbers of a warp.
  int warp = __shfl_sync(0xffffffff, int(threadIdx.x / 32), 0), lane = threadIdx.x % 32, group = warp / 4 - 1;
  warp %= 4;
  int rank = kCluster > 1 ? int(cute::block_rank_in_cluster()) : 0;
  if (threadIdx.x == 0) {
    cute::prefetch_tma_descriptor(&left);
    cute::prefetch_tma_descriptor(&right);
    cute::prefetch_tma_descriptor(&out);
    for (int stage = 0; stage < kStages; ++stage) {
      ring.full[stage].init(1 + 32);
      ring.empty[stage].init(4 * kGroups * (kShared ? 2 : 1));
    }
    cutlass::arch::fence_barrier_init();
  }
  if (kCluster > 1) {
    cute::cluster_arrive_relaxed();
    cute::cluster_wait();
  }
  __syncthreads();
  if (group < 0) {
    if (kGroups > 1) cutlass::arch::warpgroup_reg_dealloc<kGroups == 2 ? 56 : 32>();
    if (warp == 0 && lane == 0) load_tiles(&left, &right, product, ring, rank);
    if (warp == 1) load_scales(product, ring, rank, lane);
    if (kSplit > 1) {
      __syncwarp();
      cute::cluster_arrive();
      cute::cluster_wait();
    }
  } else {
    if (kGroups > 1) cutlass::arch::warpgroup_reg_alloc<kGroups == 2 ? 224 : 160>();
    int first, last;
    slice(product, rank, first, last);
    for (int unit = blockIdx.x / kCluster; unit < product.units(); unit += gridDim.x / kCluster) {
      Tile tile(product, unit, rank);
      float total[kWaves][kSums];
      sum(total, ring, last - first, 128 - tile.column % 128, group, warp, lane);
      if (kSplit > 1) join(total[0], partials, rank, group, 32 * warp + lane);
      if (kSplit > 1 && rank > 0) continue;
      // The copy engine has read the tile before.
      if (warp == 0 && lane == 0) cute::tma_store_wait<0>();
      asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
#pragma unroll
      for (int wave = 0; wave < kWaves; ++wave) {
        int block = wave * kGroups + group;
        store(total[wave], &out, stored + block * kParts * kPartBytes, tile.row + 64 * block, tile.column, group, warp,
              lane);
      }
    }
    if (warp == 0 && lane == 0) cute::tma_store_wait<0>();
  }
  if (kShared) {
    // A block's memory is written by the other one until both are done.
    __syncwarp();
    cute::cluster_arrive();
    cute::cluster_wait();
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

// The operands of a product out[m, n] = a[m, k] b[k, n]. `lda`, `ldb`: elements from one row of A, and from one column
// of B, to the next. `scale`: those of B, `row_scale`: those of A. There is no bias.
struct Product {
  void const* a;
  void const* b;
  void const* scale;
  void const* bias;
  void* out;
  int m, n, k;
  long lda, ldb;
  void const* row_scale;
};

// Elements from the scales of a block along K to those of the next for A, and from those of a block along N to those of
// the next for B. A's scales lie one after the other along M, and B's along K.
struct Order {
  int token_step, weight_step, unused;
};

struct Workspace {
  void* data;
  size_t bytes;
};

enum Failure { kMisaligned = 1, kIllegal = 2, kLaunch = 5 };

size_t workspace_bytes(Product const&, Order const&) { return 0; }

// Enqueues the product on `stream`; 0, or the Failure that kept it from being enqueued.
int run(Product const& product, Order const& order, Workspace const&, cudaStream_t stream) {
  using namespace kernel;
  void const* pointers[] = {product.a, product.b, product.out};
  for (void const* pointer : pointers) {
    if (reinterpret_cast<size_t>(pointer) % 16 != 0) return kMisaligned;
  }
  Arguments arguments{static_cast<float const*>(product.row_scale), static_cast<float const*>(product.scale),
                      product.m, product.n, product.k, order.token_step, order.weight_step};
  constexpr auto bytes = CU_TENSOR_MAP_DATA_TYPE_UINT8, pairs = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  constexpr auto wide = CU_TENSOR_MAP_SWIZZLE_128B;
  constexpr auto stored =
      kPart == 64 ? wide : kPart == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B;
  // A block loads half of what it shares.
  constexpr int rows = kShared == 2 ? kRows / 2 : kRows, columns = kShared == 1 ? kColumns / 2 : kColumns;
  CUtensorMap tokens, weight, out;
  auto [m, n, k] = std::tuple(product.m, product.n, product.k);
  if (!describe(&tokens, bytes, 1, product.a, m, k, product.lda, kSwap ? columns : rows, kDepth, wide) ||
      !describe(&weight, bytes, 1, product.b, n, k, product.ldb, kSwap ? rows : columns, kDepth, wide) ||
      !describe(&out, pairs, 2, product.out, m, n, n, kSwap ? kColumns : 64, kPart, stored)) {
    return kIllegal;
  }
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  int units = arguments.units(), room = kSplit > 1 ? units : processors / kCluster;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(kCluster), 1, 1};
  // Without the attribute, since a cluster of one block changes which blocks run near each other: tiles that share an
  // operand then take up to 1.6 times as long.
  cudaLaunchConfig_t config = {dim3((units < room ? units : room) * kCluster), dim3(kThreads), size_t(kSharedBytes),
                               stream, &cluster, kCluster > 1 ? 1u : 0u};
  auto failure = cudaLaunchKernelEx(
      &config, gemm, kSwap ? weight : tokens, kSwap ? tokens : weight, out, arguments);
  return failure == cudaSuccess ? 0 : kLaunch;
}

}  // namespace
