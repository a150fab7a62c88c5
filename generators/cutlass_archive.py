"""Ahead-of-time compilation of CUTLASS kernels into the archive that ships with the tables. Needs nvcc, but no GPU."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import subprocess
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.files import replacing
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass import entry, prebuilt
from gemmdb.kernels.cutlass.archive import INDEX, KINDS, MAX_BYTES, Place
from gemmdb.kernels.cutlass.prebuilt import ARCH
from gemmdb.kernels.menus.cutlass import every_int4, every_int4_stream, every_scaled_blocks
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog

SCALES = (("fp32", "fp32"), ("bf16", "bf16"), ("fp32", ""), ("bf16", ""))
"""Dtypes of row and column scales in quantized programs, torchao's first; none for a missing vector."""
INT4 = tuple(
    Problem.gemm("mixed_mm", m=64, n=4096, k=4096, weight_dtype="int4", packing="low-first", group=group, zeros=zeros)
    for group, zeros in ((128, "none"), (64, "none"))
)
"""Weights whose kernels are all compiled in advance, of any size."""
FLAGS = (*cutlass.FLAGS, "-Xcompiler=-fPIC,-fvisibility=hidden")
STRIPPED = ("objcopy", "--strip-symbol=_ZSt21ios_base_library_initv")
"""<iostream> of GCC 13 and later names this symbol and does not use it. No older libstdc++ has it: with it, Ubuntu
22.04, Debian 12 and RHEL 9 load no kernel."""
LINKED = ("-shared", "-cudart", "shared", "-Xlinker", "-s")
"""A library calls torch's loaded CUDA runtime, by its name with the major version."""
LIMIT_S = 1800
"""Timeout of one compilation in seconds. A kernel takes a minute, and longer when several compile on few processors."""
_WHEN = (1980, 1, 1, 0, 0, 0)
"""Fixed timestamp of every member: the same kernels give the same bytes."""


def wanted(catalog: Catalog) -> dict[str, entry.Unit]:
    """Return, by name, the units to compile for the verdicts of all tables of a catalog: measured ones first, by
    frequency, then variants with scales and a bias that problems do not specify, then all kernels for block scales,
    and for INT4."""
    picks = list(_picks(catalog))
    counts = Counter(tuple(cutlass.macros(config, problem).items()) for config, problem in picks)
    measured = sorted(counts, key=lambda one: (-counts[one], one))
    fused = (cutlass.macros(config, one, vectors) for config, problem in picks for one, vectors in _fused(problem))
    blocks = (cutlass.scaled_blocks.macros(config) for config in every_scaled_blocks())
    every = (*every_int4(), *every_int4_stream())
    int4 = (cutlass.macros(config, weight) for weight in INT4 for config in every)
    units = [prebuilt.unit(macros) for macros in (*map(dict, measured), *fused, *blocks, *int4)]
    return {unit.name: unit for unit in units}


def _picks(catalog: Catalog) -> Iterator[tuple[Config, Problem]]:
    """Yield every problem whose verdict is a CUTLASS kernel, with its config."""
    serves_cutlass = Policy(compile_cost=10, captured=True)
    for table in catalog.tables:
        for problem, device in table.decided():
            hit = answer(Query(problem, device), catalog, serves_cutlass, None)
            if hit is not None and hit.config.backend == "cutlass":
                yield hit.config, problem


def _fused(problem: Problem) -> Iterator[tuple[Problem, cutlass.Vectors]]:
    """Yield the scales and biases that programs may use with a scaled problem."""
    if problem.fusion != "scale":
        return
    if problem.spec.dequantises:
        yield problem, cutlass.Vectors("fp32")
        return
    outs = (problem.out, "fp32")  # A program may continue in fp32, for example with a SiLU.
    for (columns, rows), out, bias in product(SCALES, outs, ("", "bf16")):
        yield replace(problem, out=out), cutlass.Vectors(columns, rows, bias)


@dataclass(frozen=True)
class Tools:
    """Build tools: nvcc and its version, the headers of CUTLASS and their version."""

    nvcc: str
    cuda: str
    headers: Path
    version: str

    @classmethod
    def find(cls) -> Tools:
        """Return this machine's tools. Raises InputError if one is missing."""
        nvcc, headers = cutlass.compiler(), cutlass.headers()
        if nvcc is None:
            raise InputError("nvcc was not found: install the CUDA toolkit, or set CUDACXX")
        if headers is None:
            raise InputError("CUTLASS's headers were not found: pip install 'gemmdb[cutlass]'")
        release = re.search(r"V(\d+\.\d+\.\d+)", _run([nvcc, "--version"]))
        version = (headers / "cutlass" / "version.h").read_text()
        numbers = [re.search(rf"#define CUTLASS_{part} (\d+)", version) for part in ("MAJOR", "MINOR", "PATCH")]
        if release is None or not all(numbers):
            raise InputError(f"the version of {nvcc} or of the headers in {headers} is unknown")
        return cls(nvcc, release[1], headers, ".".join(number[1] for number in numbers if number))

    @property
    def digest(self) -> str:
        """Digest of the versions and flags."""
        text = "\n".join((self.cuda, self.version, *FLAGS, *STRIPPED, *LINKED))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def compiled(unit: entry.Unit, tools: Tools, folder: Path) -> dict[str, Path]:
    """Return the files of a unit by kind, compiling only those missing from `folder`. Raises InputError with the first
    line of nvcc's output if it fails."""
    paths = {kind: folder / f"{unit.name}.{kind}" for kind in KINDS}
    if all(path.exists() for path in paths.values()):
        return paths
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as place:
        source, made, library = Path(place, "kernel.cu"), Path(place, "kernel.o"), Path(place, "kernel.so")
        source.write_text(unit.source)
        _run([tools.nvcc, *FLAGS, f"-I{tools.headers}", "-c", str(source), "-o", str(made)])
        _run([*STRIPPED, str(made)])
        _run([tools.nvcc, *LINKED, str(made), "-o", str(library)])
        made.replace(paths["o"])
        library.replace(paths["so"])
    return paths


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or [""]
        raise InputError(f"{command[0]} ended with {done.returncode}: {lines[0][:300]}")
    return done.stdout


def _cache(tools: Tools) -> Path:
    """Return the folder of kernels that these tools have compiled."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "gemmdb" / "kernels" / tools.digest


def build(
    units: Mapping[str, entry.Unit], tools: Tools, jobs: int, done: Callable[[int, int], None]
) -> dict[str, dict[str, Path]]:
    """Compile the units missing from the cache, in order, `jobs` in parallel. Returns all files by name and kind.
    `done` receives the number of kernels compiled and the total. Raises InputError if one fails; finished kernels stay
    in the cache, even after Ctrl-C."""
    folder = _cache(tools)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Path]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(compiled, unit, tools, folder): name for name, unit in units.items()}
        try:
            for future in as_completed(waiting):
                found[waiting[future]] = future.result()
                done(len(found), len(units))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: found[name] for name in units}


def ready(units: Mapping[str, entry.Unit], tools: Tools) -> list[str]:
    return [name for name in units if all((_cache(tools) / f"{name}.{kind}").exists() for kind in KINDS)]


def write(files: Mapping[str, Mapping[str, Path]], tools: Tools, out: Path) -> None:
    """Write the archive of these files, by name and kind, to `out`, which is replaced. Raises InputError if it cannot
    be written, or if a kernel is larger than a block."""
    kernels: dict[str, Place] = {}
    blocks: dict[str, bytes] = {}
    for number, names in enumerate(_blocks(files)):
        block, data = f"kernels-{number}.xz", b""
        for name in names:
            parts = {kind: files[name][kind].read_bytes() for kind in KINDS}
            both = b"".join(parts.values())
            sizes = {kind: len(part) for kind, part in parts.items()}
            kernels[name] = Place(block, len(data), sizes, hashlib.sha256(both).hexdigest())
            data += both
        blocks[block] = _packed(data)
    provenance = {
        "arch": ARCH, "cuda": tools.cuda, "cutlass": tools.version, "flags": [*FLAGS, "/", *STRIPPED, "/", *LINKED],
        "source": cutlass.sources(),
    }  # fmt: skip
    document = {"provenance": provenance, "kernels": {name: asdict(place) for name, place in kernels.items()}}
    index = json.dumps(document, indent=1, sort_keys=True) + "\n"
    _zip({INDEX: _packed(index.encode()), **blocks}, out)


def _blocks(files: Mapping[str, Mapping[str, Path]]) -> Iterator[list[str]]:
    """Yield the kernel names of each block. Kernels with objects of similar size are similar: in this order they
    compress to two thirds of the size in name order; ordering by config saves another 5%."""
    sizes = {name: {kind: files[name][kind].stat().st_size for kind in KINDS} for name in files}
    block: list[str] = []
    full = 0
    for name in sorted(files, key=lambda name: (sizes[name]["o"], name)):
        size = sum(sizes[name].values())
        if size > MAX_BYTES:
            raise InputError(f"{name} has {size:,} bytes, and a kernel of an archive {MAX_BYTES:,} at most")
        if full + size > MAX_BYTES:
            yield block
            block, full = [], 0
        block.append(name)
        full += size
    if block:
        yield block


def _packed(data: bytes) -> bytes:
    """Compress to .xz with a dictionary just large enough for all of the data."""
    room = max(len(data), 4096)  # LZMA's minimum.
    return lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": room}])


def _zip(members: Mapping[str, bytes], out: Path) -> None:
    with replacing(out) as part, zipfile.ZipFile(part, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, _WHEN), content)
