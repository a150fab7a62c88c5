"""The call of C++ output code, compiled with a program in torch's place, and a library in cuBLASLt's."""

from __future__ import annotations

import json
import os
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

from kit.cublaslt import built

from gemmdb import cublaslt
from gemmdb.cublaslt import launch

HEADER = resources.files(cublaslt).joinpath("launch.h").read_text()
PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <new>

struct AtenTensorOpaque { char* data; };
using AtenTensorHandle = AtenTensorOpaque*;
using AOTITorchError = int;
#define AOTI_TORCH_ERROR_CODE_CHECK(call) if (call) std::abort()

int aoti_torch_get_device_index(AtenTensorHandle, int* found) { *found = 0; return 0; }
int aoti_torch_get_data_ptr(AtenTensorHandle one, void** found) { *found = one->data; return 0; }
long viewed[3][3] = {}, views = 0; // Of the last call with torch: A, B, the bias; rows, columns, offset.
int aoti_torch__reinterpret_tensor(
    AtenTensorHandle one, long, const long* sizes, const long*, long offset, AtenTensorHandle* made) {
  long* view = viewed[views++ % 3];
  view[0] = sizes[0], view[1] = sizes[1], view[2] = offset;
  *made = one;
  return 0;
}
void aoti_torch_warn(const char*, const char*, int, const char*) { std::puts("warned"); }
namespace torch { namespace aot_inductor {
struct RAIIAtenTensorHandle {
  AtenTensorHandle held = nullptr;
  RAIIAtenTensorHandle() = default;
  explicit RAIIAtenTensorHandle(AtenTensorHandle held) : held(held) {}
  AtenTensorHandle get() const { return held; }
};
} }

long live = 0, with_torch = 0;
void* operator new(size_t size) { ++live; return std::malloc(size); }
void operator delete(void* one) noexcept { live -= one != nullptr; std::free(one); }
void operator delete(void* one, size_t) noexcept { operator delete(one); }

LAUNCH

MAIN
"""
LIMITED = r"""
int main(int count, char** paths) {
  void* library = dlopen(paths[1], RTLD_NOW | RTLD_GLOBAL);
  int* calls = static_cast<int*>(dlsym(library, "calls"));
  static const gemmdb_cublaslt::Attribute attributes[] = {{1, 601, 4}};
  constexpr int N = 1, K = 2;
  constexpr int FP32 = 0, COMPUTE_FP32 = 68;
  gemmdb_cublaslt::Product product{
      1, N, K, 1, false, {FP32, 4, true, K, 0, 0}, {FP32, 4, true, N, 0, 0}, {FP32, 4, true, N, 0, 0}, COMPUTE_FP32,
      FP32, -1, -1, -1, false, false, {}, 1, 0, 66, 1301, 0};
  static gemmdb_cublaslt::Rows run(product, attributes, [](auto...) { ++with_torch; return 0; });
  static char a[4 * (LIMIT + 100) * K], b[4 * K * N], out[4 * (LIMIT + 100) * N];
  AtenTensorOpaque x{a}, w{b}, y{out};
  auto all = [&](int first, int last) {
    for (int rows = first; rows <= last; ++rows) run(rows, &x, &w, &y, nullptr, {});
  };
  all(1, LIMIT);
  all(1, LIMIT);
  long before = live, prepared = *calls;
  all(LIMIT + 1, LIMIT + 100);
  all(LIMIT + 1, LIMIT + 100);
  std::printf("{\"prepared\": %ld, \"others\": %ld, \"kept\": %ld}\n", prepared, with_torch, live - before);
}
"""

WITH_A_MATRIX = r"""
int main(int count, char** paths) {
  static const gemmdb_cublaslt::Attribute attributes[] = {{1, 601, 4}};
  constexpr int N = 5, K = 2, FP32 = 0, COMPUTE_FP32 = 68;
  gemmdb_cublaslt::Product product{
      16, N, K, 1, false, {FP32, 4, true, K, 0, 0}, {FP32, 4, true, N, 0, 0}, {FP32, 4, true, N, 0, 0}, COMPUTE_FP32,
      FP32, -1, -1, -1, false, true, {{4, 2 * N, 2, {16, N}, {N, 1}}}, 1, 0, 66, 1301, 0};
  static gemmdb_cublaslt::Rows run(product, attributes, [](auto...) { ++with_torch; return 0; });
  static char memory[64];
  AtenTensorOpaque x{memory}, w{memory}, y{memory}, c{memory};
  run(7, &x, &w, &y, nullptr, {&c});
  const long* bias = viewed[2];
  std::printf("{\"with_torch\": %ld, \"bias\": [%ld, %ld, %ld]}\n", with_torch, bias[0], bias[1], bias[2]);
}
"""


def ran(tmp_path: Path, main: str, *arguments: Path) -> Any:
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(PROGRAM.replace("LAUNCH", HEADER).replace("MAIN", main).replace("LIMIT", str(launch.MAX_ROWS)))
    flags = ["-std=c++17", "-O0", str(source), "-o", str(program), "-ldl", "-pthread"]
    subprocess.run([os.environ.get("CXX", "c++"), *flags], check=True)
    done = subprocess.run([program, *arguments], check=True, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout.splitlines()[-1])


def test_numbers_of_rows_beyond_the_limit_take_no_memory(tmp_path: Path) -> None:
    """Torch computes them, and nothing of such a call stays."""
    found = ran(tmp_path, LIMITED, built(tmp_path))
    assert found == {"prepared": 2 * launch.MAX_ROWS, "others": 200, "kept": 0}


def test_torch_gets_a_matrix_to_add_with_the_rows_of_the_call(tmp_path: Path) -> None:
    """Where there is no library; the code was generated for 16 rows."""
    assert ran(tmp_path, WITH_A_MATRIX) == {"with_torch": 1, "bias": [7, 5, 10]}
