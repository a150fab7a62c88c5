// One GEMM for Hopper out of CUTLASS's collective builders; the GEMMDB_ macros before this text choose the kernel.
//
// The kernel multiplies a left operand [rows, depth] by a right one [depth, columns]. Without GEMMDB_SWAP these are A and
// B; with it they are B and A transposed, and the kernel writes the transpose of the product: the output is the same
// memory seen as column-major. Everything below speaks of left, right, rows and columns; `run` translates.

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/numeric_types.h"

// Each file has its own: the objects of several kernels are linked together in an AOTInductor package.
namespace {
namespace kernel {

using cute::Int;
using Left = GEMMDB_LEFT;
using Right = GEMMDB_RIGHT;
using Out = GEMMDB_OUT;
using Accumulator = GEMMDB_ACCUMULATOR;
using Compute = GEMMDB_COMPUTE;
using Tile = cute::Shape<Int<GEMMDB_TILE_ROWS>, Int<GEMMDB_TILE_COLUMNS>, Int<GEMMDB_TILE_DEPTH>>;
using Cluster = cute::Shape<Int<GEMMDB_CLUSTER_ROWS>, Int<GEMMDB_CLUSTER_COLUMNS>, Int<1>>;

using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
using LeftLayout = cute::conditional_t<GEMMDB_LEFT_ALONG_DEPTH, RowMajor, ColumnMajor>;
using RightLayout = cute::conditional_t<GEMMDB_RIGHT_ALONG_DEPTH, ColumnMajor, RowMajor>;
using OutLayout = cute::conditional_t<GEMMDB_SWAP, ColumnMajor, RowMajor>;

// Elements of the 16 bytes that the tensor copy engine moves at least.
template <class Element>
constexpr int vector = 128 / cutlass::sizeof_bits<Element>::value;

// What is applied to the accumulator, in fp32 except for a bare int32 product: times the scales, plus the bias.
namespace fusion = cutlass::epilogue::fusion;
constexpr auto round = cutlass::FloatRoundStyle::round_to_nearest;
template <template <class> class Function, class... Children>
using Node = fusion::Sm90EVT<fusion::Sm90Compute<Function, Compute, Compute, round>, Children...>;
template <class Element>
using OnePerRow = fusion::Sm90ColBroadcast<0, Tile, Element, Compute>;
template <class Element>
using OnePerColumn = fusion::Sm90RowBroadcast<0, Tile, Element, Compute>;
template <class Element, bool AlongN>
using Vector = cute::conditional_t<AlongN != bool(GEMMDB_SWAP), OnePerColumn<Element>, OnePerRow<Element>>;

#if GEMMDB_SCALE
using ColumnsScaled = Node<cutlass::multiplies, Vector<GEMMDB_SCALE_TYPE, true>, fusion::Sm90AccFetch>;
#else
using ColumnsScaled = fusion::Sm90AccFetch;
#endif
#if GEMMDB_ROW_SCALE
using Scaled = Node<cutlass::multiplies, Vector<GEMMDB_ROW_SCALE_TYPE, false>, ColumnsScaled>;
#else
using Scaled = ColumnsScaled;
#endif

#if GEMMDB_BIAS == 0  // none
using Source = void;
using Biased = Scaled;
#elif GEMMDB_BIAS == 3  // full
using Source = GEMMDB_BIAS_TYPE;
using Biased = Node<cutlass::plus, fusion::Sm90SrcFetch<Source>, Scaled>;
#else  // 1: one per column of the product, 2: one per row
using Source = void;
using Biased = Node<cutlass::plus, Vector<GEMMDB_BIAS_TYPE, GEMMDB_BIAS == 1>, Scaled>;
#endif

using Converted = fusion::Sm90Compute<cutlass::epilogue::thread::Identity, Out, Compute, round>;
using Fusion = fusion::Sm90EVT<Converted, Biased>;

#if GEMMDB_COOPERATIVE
using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecializedCooperative;
#else
using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecialized;
#endif
using Scheduler =
    cute::conditional_t<GEMMDB_STREAM_K, cutlass::gemm::StreamKScheduler, cutlass::gemm::PersistentScheduler>;

template <class Element>
constexpr int source_vector = vector<Element>;
template <>
constexpr int source_vector<void> = vector<Out>;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, Accumulator, Compute,
    Source, OutLayout, source_vector<Source>, Out, OutLayout, vector<Out>, EpilogueSchedule, Fusion>::CollectiveOp;
using Stages =
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Left, LeftLayout, vector<Left>, Right, RightLayout,
    vector<Right>, Accumulator, Tile, Cluster, Stages, MainloopSchedule>::CollectiveOp;
using Kernel =
    cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, Scheduler>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

}  // namespace kernel

// The operands of a product out[m, n] = a[m, k] b[k, n]. `lda`, `ldb`: elements from one row, or column, to the next.
// `scale` has a number for each column, `row_scale` one for each row.
struct Product {
  void const* a;
  void const* b;
  void const* scale;
  void const* bias;
  void* out;
  int m, n, k;
  long lda, ldb;
  void const* row_scale = nullptr;
};

// `split`: parts of the sum over k, 0 leaves that to stream-K. `swizzle`: tiles that share operands in L2.
// `raster`: 0 leaves the order of tiles to CUTLASS, 1 goes along m, 2 along n.
struct Order {
  int split, swizzle, raster;
};

struct Workspace {
  void* data;
  size_t bytes;
};

enum Failure { kMisaligned = 1, kIllegal = 2, kWorkspace = 3, kInitialize = 4, kLaunch = 5 };

template <class Stride>
Stride stepping(long leading) {
  Stride stride{};
  if constexpr (cute::is_static<cute::remove_cvref_t<decltype(cute::get<0>(stride))>>::value) {
    cute::get<1>(stride) = leading;
  } else {
    cute::get<0>(stride) = leading;
  }
  return stride;
}

int multiprocessors() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

typename kernel::Fusion::Arguments fused(Product const& product) {
  using namespace kernel;
#if GEMMDB_SCALE
  typename ColumnsScaled::Arguments columns{{static_cast<GEMMDB_SCALE_TYPE const*>(product.scale)}, {}, {}};
#else
  typename ColumnsScaled::Arguments columns{};
#endif
#if GEMMDB_ROW_SCALE
  typename Scaled::Arguments scaled{{static_cast<GEMMDB_ROW_SCALE_TYPE const*>(product.row_scale)}, columns, {}};
#else
  typename Scaled::Arguments scaled = columns;
#endif
#if GEMMDB_BIAS == 0
  typename Biased::Arguments biased = scaled;
#elif GEMMDB_BIAS == 3
  typename Biased::Arguments biased{{}, scaled, {}};
#else
  typename Biased::Arguments biased{{static_cast<GEMMDB_BIAS_TYPE const*>(product.bias)}, scaled, {}};
#endif
  return {biased, {}};
}

typename kernel::Gemm::Arguments arguments(Product const& product, Order const& order) {
  using namespace kernel;
  constexpr bool swap = GEMMDB_SWAP;
  typename Gemm::Arguments found{cutlass::gemm::GemmUniversalMode::kGemm};
  int rows = swap ? product.n : product.m, columns = swap ? product.m : product.n;
  found.problem_shape = {rows, columns, product.k, 1};
  found.mainloop.ptr_A = static_cast<Left const*>(swap ? product.b : product.a);
  found.mainloop.ptr_B = static_cast<Right const*>(swap ? product.a : product.b);
  found.mainloop.dA = stepping<typename Kernel::StrideA>(swap ? product.ldb : product.lda);
  found.mainloop.dB = stepping<typename Kernel::StrideB>(swap ? product.lda : product.ldb);
  found.epilogue.thread = fused(product);
  found.epilogue.ptr_D = static_cast<Out*>(product.out);
  found.epilogue.dD = stepping<typename Kernel::StrideD>(product.n);
#if GEMMDB_BIAS == 3
  found.epilogue.ptr_C = static_cast<GEMMDB_BIAS_TYPE const*>(product.bias);
  found.epilogue.dC = stepping<typename Kernel::StrideC>(product.n);
#endif
  using Raster = cutlass::gemm::kernel::detail::RasterOrderOptions;
  bool along_rows = (order.raster == 1) != swap;
  found.scheduler.raster_order =
      order.raster == 0 ? Raster::Heuristic : (along_rows ? Raster::AlongM : Raster::AlongN);
  found.scheduler.max_swizzle_size = order.swizzle;
#if GEMMDB_STREAM_K
  using Decomposition = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamKParams::DecompositionMode;
  found.scheduler.splits = order.split == 0 ? 1 : order.split;
  found.scheduler.decomposition_mode = order.split == 0 ? Decomposition::StreamK : Decomposition::SplitK;
#endif
  found.hw_info.sm_count = multiprocessors();
  return found;
}

// Bytes of workspace that `run` needs; 0 for a kernel that does not split.
size_t workspace_bytes(Product const& product, Order const& order) {
  return kernel::Gemm::get_workspace_size(arguments(product, order));
}

// Enqueues the product on `stream`; 0, or the Failure that kept it from being enqueued.
int run(Product const& product, Order const& order, Workspace const& workspace, cudaStream_t stream) {
  void const* pointers[] = {product.a, product.b, product.scale, product.row_scale, product.bias, product.out};
  for (void const* pointer : pointers) {
    if (reinterpret_cast<size_t>(pointer) % 16 != 0) return kMisaligned;
  }
  auto found = arguments(product, order);
  if (kernel::Gemm::can_implement(found) != cutlass::Status::kSuccess) return kIllegal;
  if (kernel::Gemm::get_workspace_size(found) > workspace.bytes) return kWorkspace;
  kernel::Gemm gemm;
  // Zeroes the counters of a split kernel, on the stream: that has to happen before every run.
  if (gemm.initialize(found, workspace.data, stream) != cutlass::Status::kSuccess) return kInitialize;
  return gemm.run(stream) == cutlass::Status::kSuccess ? 0 : kLaunch;
}

}  // namespace
