// A prepared call of cuBLASLt for Inductor's C++ code: one algorithm, fixed layouts, fixed sizes or any number of rows.
// launch.py is the same for Python. The library is the one that torch has loaded. If it cannot run the algorithm,
// torch's own function computes the same product.
#ifndef GEMMDB_CUBLASLT
#define GEMMDB_CUBLASLT

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace {
namespace gemmdb_cublaslt {

// Structures and constants of cublasLt.h, which need not be installed. gemmdb/cublaslt/library.py names them.
struct Algorithm {
  uint64_t data[8];
};

struct Result {
  Algorithm algorithm;
  size_t workspace;
  int32_t state;
  float waves;
  int32_t reserved[4];
};

enum Description {
  TRANSA = 3, TRANSB = 4, EPILOGUE = 7, BIAS_POINTER = 8, A_SCALE_POINTER = 17, B_SCALE_POINTER = 18, FAST_ACCUM = 25,
  BIAS_TYPE = 26, A_SCALE_MODE = 31, B_SCALE_MODE = 32
};
enum Layout { BATCH = 5, BATCH_STRIDE = 6 };
constexpr int32_t INT32 = 10;
constexpr int MAX_DEVICES = 64;
constexpr size_t MAX_OPERATIONS = 64;
constexpr size_t MAX_ROWS = 4096; // The numbers of rows that one call prepares. For more, torch computes the product.

struct Library {
  size_t (*version)();
  int (*create)(void**);
  int (*describe)(void**, int, int);
  int (*forget)(void*);
  int (*set)(void*, int, const void*, size_t);
  int (*layout)(void**, int, uint64_t, uint64_t, int64_t);
  int (*set_layout)(void*, int, const void*, size_t);
  int (*begin)(void*, int, int, int, int, int, int, int, Algorithm*);
  int (*configure)(Algorithm*, int, const void*, size_t);
  int (*check)(void*, void*, void*, void*, void*, void*, const Algorithm*, Result*);
  int (*multiply)(
      void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*, void*, void*,
      const Algorithm*, void*, size_t, void*);

  template <typename F>
  static bool find(void* from, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(from, name));
    return function != nullptr;
  }

  bool load() {
    void* from = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      from = from ? from : dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    }
    return from && find(from, "cublasLtGetVersion", version) && find(from, "cublasLtCreate", create) &&
        find(from, "cublasLtMatmulDescCreate", describe) &&
        find(from, "cublasLtMatmulDescDestroy", forget) && find(from, "cublasLtMatmulDescSetAttribute", set) &&
        find(from, "cublasLtMatrixLayoutCreate", layout) &&
        find(from, "cublasLtMatrixLayoutSetAttribute", set_layout) &&
        find(from, "cublasLtMatmulAlgoInit", begin) &&
        find(from, "cublasLtMatmulAlgoConfigSetAttribute", configure) &&
        find(from, "cublasLtMatmulAlgoCheck", check) && find(from, "cublasLtMatmul", multiply);
  }
};

struct Matrix {
  int dtype; // cudaDataType
  int64_t item; // bytes
  bool by_rows;
  int64_t leading;
  int64_t batch_stride;
  int64_t offset; // elements from the start of the given tensor
};

struct Attribute {
  int number;
  uint64_t value;
  size_t size;
};

// A tensor besides A and B. Its address is part of the operation, except that of a matrix, which each call is given.
// One that the product does not have has no bytes.
struct Extra {
  int64_t item; // bytes
  int64_t offset; // elements from the start of the given tensor
  int64_t dimensions;
  int64_t sizes[2], strides[2];
};

enum Extras { BIAS, SCALE_A, SCALE_B, EXTRAS };

struct Product {
  int64_t m, n, k, batch;
  bool batched; // whether tensors have a dimension for the batch
  Matrix a, b, out;
  int compute; // cublasComputeType
  int scale; // cudaDataType of alpha and beta
  int bias; // cudaDataType of a vector, -1 without one
  int mode_a, mode_b; // cublasLtMatmulMatrixScale of the operands' scales, -1 without scales
  bool fast; // whether sums of fp8 may stay in the matrix unit's accumulator
  bool matrix_bias; // whether the bias is a matrix like the output
  Extra extras[EXTRAS];
  uint32_t epilogue; // cublasLtEpilogue_t
  size_t workspace;
  int algorithm;
  size_t release; // of cuBLASLt where the code was generated: 1301 for 13.1
  int arch; // of the GPU there: 90 for sm90, 0 without one
};

// The arch of a GPU, 0 without a driver.
int arch_of(int32_t device) {
  int (*attribute)(int*, int, int) = nullptr;
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  int major = 0, minor = 0;
  constexpr int MAJOR = 75, MINOR = 76; // CUdevice_attribute
  if (!driver || !Library::find(driver, "cuDeviceGetAttribute", attribute) || attribute(&major, MAJOR, device) ||
      attribute(&minor, MINOR, device)) {
    return 0;
  }
  return 10 * major + minor;
}

using torch::aot_inductor::RAIIAtenTensorHandle;
using Tensor = AtenTensorHandle;
using Torch = AOTITorchError (*)(Tensor out, Tensor a, Tensor b, Tensor bias, Tensor scale_a, Tensor scale_b);
using Places = std::array<uintptr_t, EXTRAS>;

// What is prepared once per device.
struct Ready {
  const Library& library;
  const Product& product;
  void* const handle;
  void *plain = nullptr, *left = nullptr, *right = nullptr, *out = nullptr;
  Algorithm algorithm{};
  union {
    float real;
    int32_t whole;
  } alpha{}, beta{};
  std::atomic<bool> usable{false};
  std::mutex lock;
  std::map<Places, std::shared_ptr<void>> operations;

  Ready(
      const Library& library, void* handle, const Product& product, int32_t device, const Attribute* attributes,
      size_t count)
      : library(library), product(product), handle(handle) {
    if (product.scale == INT32) {
      alpha.whole = 1;
    } else {
      alpha.real = 1;
      beta.real = product.matrix_bias;
    }
    usable = prepare(device, attributes, count);
  }

  // Only where the code was generated is it known that the library may be asked for the algorithm: others can end the
  // process.
  bool prepare(int32_t device, const Attribute* attributes, size_t count) {
    const auto& p = product;
    if (!p.release || library.version() / 100 != p.release || arch_of(device) != p.arch) {
      return false;
    }
    // cuBLASLt's matrices lie by columns, so it computes out^T = b^T @ a^T.
    plain = operation({4096, 4096, 4096}); // Addresses that nothing reads.
    if (!handle || !plain || !describe(p.b, p.k, p.n, left) || !describe(p.a, p.m, p.k, right) ||
        !describe(p.out, p.m, p.n, out) ||
        library.begin(
            handle, p.compute, p.scale, p.b.dtype, p.a.dtype, p.out.dtype, p.out.dtype, p.algorithm, &algorithm)) {
      return false;
    }
    for (size_t i = 0; i < count; ++i) {
      if (library.configure(&algorithm, attributes[i].number, &attributes[i].value, attributes[i].size)) {
        return false;
      }
    }
    Result found{};
    return !library.check(handle, plain, left, right, out, out, &algorithm, &found) && found.workspace <= p.workspace;
  }

  void* operation(const Places& places) const {
    void* made = nullptr;
    if (library.describe(&made, product.compute, product.scale)) {
      return nullptr;
    }
    int32_t transa = !product.b.by_rows, transb = !product.a.by_rows, type = product.bias;
    uint64_t bias = places[BIAS], scale_a = places[SCALE_A], scale_b = places[SCALE_B];
    int32_t mode_a = product.mode_a, mode_b = product.mode_b;
    int8_t fast = product.fast;
    bool failed = library.set(made, TRANSA, &transa, sizeof transa) || library.set(made, TRANSB, &transb, sizeof transb) ||
        library.set(made, EPILOGUE, &product.epilogue, sizeof product.epilogue);
    if (product.bias >= 0) {
      failed = failed || library.set(made, BIAS_TYPE, &type, sizeof type) ||
          library.set(made, BIAS_POINTER, &bias, sizeof bias);
    }
    if (mode_a >= 0) { // The library's A is our B.
      failed = failed || library.set(made, A_SCALE_POINTER, &scale_b, sizeof scale_b) ||
          library.set(made, B_SCALE_POINTER, &scale_a, sizeof scale_a) ||
          library.set(made, FAST_ACCUM, &fast, sizeof fast);
    }
    if (mode_a > 0 || mode_b > 0) { // Older libraries know the default alone.
      failed = failed || library.set(made, A_SCALE_MODE, &mode_b, sizeof mode_b) ||
          library.set(made, B_SCALE_MODE, &mode_a, sizeof mode_a);
    }
    if (failed) {
      library.forget(made);
      return nullptr;
    }
    return made;
  }

  bool describe(const Matrix& matrix, int64_t rows, int64_t columns, void*& made) const {
    if (matrix.by_rows) {
      std::swap(rows, columns);
    }
    int32_t batch = static_cast<int32_t>(product.batch);
    int64_t apart = matrix.batch_stride;
    if (library.layout(&made, matrix.dtype, rows, columns, matrix.leading)) {
      return false;
    }
    return batch == 1 ||
        (!library.set_layout(made, BATCH, &batch, sizeof batch) &&
         !library.set_layout(made, BATCH_STRIDE, &apart, sizeof apart));
  }

  // A descriptor with the extras at these addresses. One that another thread may be using never changes; it lives until
  // its last call has returned.
  std::shared_ptr<void> remembered(const Places& places) {
    std::lock_guard<std::mutex> held(lock);
    auto known = operations.find(places);
    if (known != operations.end()) {
      return known->second;
    }
    if (operations.size() >= MAX_OPERATIONS) {
      operations.clear();
    }
    auto forget = library.forget;
    std::shared_ptr<void> made(operation(places), [forget](void* one) {
      if (one) {
        forget(one);
      }
    });
    operations.emplace(places, made);
    return made;
  }

  int run(const char* a, const char* b, const Places& places, char* to, void* workspace, void* stream) {
    const bool described = !product.matrix_bias && places != Places{};
    const void* added = product.matrix_bias ? reinterpret_cast<const void*>(places[BIAS]) : to;
    std::shared_ptr<void> made;
    if (described) {
      made = remembered(places);
      if (!made) {
        return -1;
      }
    }
    return library.multiply(
        handle, described ? made.get() : plain, &alpha, b, left, a, right, &beta, added, out, to, out, &algorithm,
        workspace, product.workspace, stream);
  }
};

class Call {
 public:
  template <size_t count>
  Call(const Product& product, const Attribute (&attributes)[count], Torch fallback)
      : Call(product, attributes, count, fallback) {}

  Call(const Product& product, const Attribute* attributes, size_t count, Torch fallback)
      : product(product), attributes(attributes), count(count), fallback(fallback) {}

  // The tensors hold the operands and extras at the offsets of the product. `workspace` and each extra may be null.
  void operator()(Tensor a, Tensor b, Tensor out, Tensor workspace, const std::array<Tensor, EXTRAS>& extras) {
    int32_t device = 0;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(out, &device));
    Ready* ready = device < MAX_DEVICES ? on(device < 0 ? 0 : device) : nullptr; // A CPU has no number.
    if (ready && ready->usable.load(std::memory_order_relaxed)) {
      Places places{};
      for (int i = 0; i < EXTRAS; ++i) {
        const Extra& extra = product.extras[i];
        places[i] = extras[i] ? reinterpret_cast<uintptr_t>(address(extras[i])) + extra.offset * extra.item : 0;
      }
      const char* first = address(a) + product.a.offset * product.a.item;
      const char* second = address(b) + product.b.offset * product.b.item;
      char* space = workspace ? address(workspace) : nullptr;
      if (!ready->run(first, second, places, address(out), space, stream(device))) {
        return;
      }
      ready->usable = false;
    }
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
      aoti_torch_warn("gemmdb", __FILE__, __LINE__, "ATen computes a product that was compiled for cuBLASLt");
    }
    with_torch(a, b, extras, out);
  }

  // Computes the product with torch's function. Prepares nothing.
  void with_torch(Tensor a, Tensor b, const std::array<Tensor, EXTRAS>& extras, Tensor out) const {
    RAIIAtenTensorHandle first = view(a, product.a, product.m, product.k);
    RAIIAtenTensorHandle second = view(b, product.b, product.k, product.n);
    RAIIAtenTensorHandle others[EXTRAS];
    for (int i = 0; i < EXTRAS; ++i) {
      if (extras[i]) {
        const Extra& extra = product.extras[i];
        Tensor made = nullptr;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(
            extras[i], extra.dimensions, extra.sizes, extra.strides, extra.offset, &made));
        others[i] = RAIIAtenTensorHandle(made);
      }
    }
    AOTI_TORCH_ERROR_CODE_CHECK(fallback(
        out, first.get(), second.get(), others[BIAS].get(), others[SCALE_A].get(), others[SCALE_B].get()));
  }

 private:
  const Product product;
  const Attribute* attributes;
  const size_t count;
  const Torch fallback;
  std::atomic<Ready*> ready[MAX_DEVICES]{};

  // What is prepared for a device stays until the process ends, because CUDA may be gone before it is destroyed.
  Ready* on(int32_t device) {
    if (Ready* found = ready[device].load(std::memory_order_acquire)) {
      return found;
    }
    static std::mutex lock;
    std::lock_guard<std::mutex> held(lock);
    if (Ready* found = ready[device].load(std::memory_order_acquire)) {
      return found;
    }
    static Library library{};
    static const bool loaded = library.load();
    static void* handles[MAX_DEVICES]{};
    if (!loaded) {
      return nullptr;
    }
    if (!handles[device] && library.create(&handles[device])) {
      handles[device] = nullptr;
    }
    Ready* made = new Ready(library, handles[device], product, device, attributes, count);
    ready[device].store(made, std::memory_order_release);
    return made;
  }

  static char* address(Tensor tensor) {
    void* found = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor, &found));
    return static_cast<char*>(found);
  }

  static void* stream(int32_t device) {
    void* found = nullptr;
#ifdef USE_CUDA // As in torch's header, which declares the function.
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &found));
#endif
    return found;
  }

  RAIIAtenTensorHandle view(Tensor tensor, const Matrix& matrix, int64_t rows, int64_t columns) const {
    const int64_t sizes[] = {product.batch, rows, columns};
    const int64_t strides[] = {
        matrix.batch_stride, matrix.by_rows ? matrix.leading : 1, matrix.by_rows ? 1 : matrix.leading};
    const int skipped = product.batched ? 0 : 1;
    Tensor made = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(
        aoti_torch__reinterpret_tensor(tensor, 3 - skipped, sizes + skipped, strides + skipped, matrix.offset, &made));
    return RAIIAtenTensorHandle(made);
  }
};

// The same for any number of rows. Rows of A follow each other, so that nothing else depends on it.
class Rows {
 public:
  template <size_t count>
  Rows(const Product& product, const Attribute (&attributes)[count], Torch fallback)
      : product(product), attributes(attributes), count(count), fallback(fallback) {}

  void operator()(
      int64_t rows, Tensor a, Tensor b, Tensor out, Tensor workspace, const std::array<Tensor, EXTRAS>& extras) {
    if (Call* call = at(rows)) {
      (*call)(a, b, out, workspace, extras);
      return;
    }
    Call(with(rows), attributes, count, fallback).with_torch(a, b, extras, out);
  }

 private:
  const Product product;
  const Attribute* attributes;
  const size_t count;
  const Torch fallback;
  std::mutex lock;
  std::map<int64_t, std::unique_ptr<Call>> calls;

  Product with(int64_t rows) const {
    Product made = product;
    made.m = rows;
    if (made.matrix_bias) {
      made.extras[BIAS].sizes[0] = rows;
    }
    return made;
  }

  Call* at(int64_t rows) {
    std::lock_guard<std::mutex> held(lock);
    auto known = calls.find(rows);
    if (known != calls.end()) {
      return known->second.get();
    }
    if (calls.size() >= MAX_ROWS) {
      return nullptr;
    }
    return calls.emplace(rows, new Call(with(rows), attributes, count, fallback)).first->second.get();
  }
};

} // namespace gemmdb_cublaslt
} // namespace

#endif
