"""What is fuzzed: each target takes bytes, and raises Broken where gemmdb does anything but read or refuse them."""

from __future__ import annotations

import io
import json
import lzma
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.hostile.damage import answers, small
from gemmdb import trust
from gemmdb.errors import GemmdbError, InputError, TableError
from gemmdb.exchange.content import Tally
from gemmdb.exchange.foreign.races import Given
from gemmdb.exchange.formats import FORMATS, export, read
from gemmdb.exchange.share import manifest
from gemmdb.generators.cutlass_archive import Tools, write
from gemmdb.generators.files.pack import pack
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass import archive
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Protocol
from gemmdb.table.reader import Table
from gemmdb.workload import entries

FOLDER = Path(tempfile.mkdtemp(prefix="gemmdb-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
"""Where the files of this process lie; in memory, where that is possible."""
H200 = Device("cuda", "sm90", "NVIDIA H200", 132, 140)
MM = "[('cuda', 'torch.bfloat16', 16, 4096, 4096, 1, 0), ('cuda', 'torch.bfloat16', 4096, 512, 1, 4096, 0)]"
VLLM = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "num_warps": 4, "num_stages": 4}
TILE = {"type": "triton", "time": 0.01, "BLOCK_M": 16, "BLOCK_K": 128, "BLOCK_N": 32, "num_stages": 4, "num_warps": 2}
GOOD = {
    "inductor-log": json.dumps([{"(16, 4096, 512)": [{"type": "cublas", "time": 0.02}, TILE], "kernel_type": "mm"}]),
    "inductor-cache": json.dumps({"cache": {"mm": {MM: {"highest": {f"mm-c{'a' * 50}": 0.02, "triton_mm-x": 0.01}}}}}),
    "tunableop": "Validator,PT_VERSION,2.13.0\nGemmTunableOp_Half_TN,tn_512_16_4096_ld_4096_4096_512,Default,0.02\n",
    "vllm": json.dumps({"16": VLLM, "32": VLLM}),
}
CONFIG = "triton:tile block_k=64 block_m=16 block_n=64 dequant=cast group_m=8 load=pointer reduce=none split_k=1"
TEXTS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "problem": (Problem.parse, Problem.gemm("mixed_mm", m=16, n=4096, k=4096, fusion="scale").text),
    "config": (Config.parse, f"{CONFIG} stages=3 swap=0 warps=4"),
    "device": (Device.parse, Device("cuda", "sm90", "NVIDIA H200", 132, 140).text),
    "protocol": (Protocol.parse, Protocol("graph", "cold", 20, 30).text),
    "toolchain": (Toolchain.parse, Toolchain(torch="2.13.0+cpu", triton="3.6.0", cuda="13.0", source="a%b c").text),
}


class Broken(Exception):
    """gemmdb did what it must not do."""


@dataclass(frozen=True)
class Target:
    """`check` takes the bytes of one case. `seeds`: good bytes to begin with. `share`: of all cases."""

    name: str
    check: Callable[[bytes], None]
    seeds: Sequence[bytes]
    share: float


def refused(read: Callable[[], object], *names: str) -> None:
    """Read something. A GemmdbError of one line, which names the file, is as good as a result."""
    try:
        read()
    except GemmdbError as error:
        said = str(error)
        if "\n" in said or "\x1b" in said or not (any(name in said for name in names) or said.startswith("--")):
            raise Broken(f"not one line that names the file: {said[:200]!r}") from error


def _text(parse: Callable[[str], Any], data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    try:
        found = parse(text)
    except InputError as error:
        if "\n" in str(error):
            raise Broken("more than one line") from error
        return
    if found.text != text:
        raise Broken(f"{text!r} is read as {found.text!r}")


def _file(read: Callable[[Path], object], data: bytes) -> None:
    path = FOLDER / "file"
    path.write_bytes(data)
    refused(lambda: read(path), str(path))


def _imported(kind: str, path: Path) -> object:
    given = Given("NVIDIA H200", "13.0", op="mm", dtype="bf16", n=7168, k=2048, resolve=lambda name: H200)
    return list(read(path, kind, Tally(), given if FORMATS[kind].read_foreign else None).rows)


def _manifest(data: bytes) -> None:
    refused(lambda: manifest.parse(data, "there"), "there")


def _table(whole: bytes, pairs: Sequence[tuple[Problem, Device]], data: bytes) -> None:
    """A table in which a statement changed a value. `data`: table, column and value, one a line; sound files else."""
    path = FOLDER / "table.db"
    path.unlink(missing_ok=True)
    path.write_bytes(whole)
    table, _, rest = data.partition(b"\n")
    column, _, value = rest.partition(b"\n")
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        name = names[sum(table) % len(names)]
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
        chosen = columns[sum(column) % len(columns)]
        try:
            db.execute(f"UPDATE OR REPLACE {name} SET {chosen} = ?", (_value(value),))
            db.commit()
        except (sqlite3.Error, OverflowError):
            return

    def read() -> None:
        with Table.open(path) as opened:
            list(answers(opened, pairs, [[] for _ in pairs]))
            for read in (opened.devices, opened.summary, opened.provenance, lambda: list(opened.pairs())):
                try:
                    read()
                except TableError:
                    continue

    refused(read, str(path))


def _value(data: bytes) -> Any:
    """Any value of SQLite that the first byte asks for."""
    kind, rest = data[:1], data[1:]
    if kind == b"i":
        return int.from_bytes(rest[:8], "big", signed=True)
    if kind == b"f":
        try:
            return float(rest)
        except ValueError:
            return 0.0
    return rest.decode(errors="replace") if kind == b"t" else rest


def _archives() -> list[Target]:
    """An archive of two kernels, of which the bytes are mutated, or the index."""
    path = FOLDER / "kernels.zip"
    files: dict[str, dict[str, Path]] = {}
    for name in ("gemmdb_cutlass_" + 24 * letter for letter in "ab"):
        files[name] = {kind: FOLDER / f"{name}.{kind}" for kind in archive.KINDS}
        for kind, file in files[name].items():
            file.write_bytes(f"{name} {kind} ".encode() * 99)
    write(files, Tools("nvcc", "13.0", FOLDER, "4.2.0"), path)
    with zipfile.ZipFile(path) as opened:
        index = lzma.decompress(opened.read(archive.INDEX))
    return [
        Target("archive", partial(_file, _kernels), [path.read_bytes()], 0.03),
        Target("index of an archive", partial(_index, path.read_bytes()), [index], 0.03),
    ]


def _kernels(path: Path) -> None:
    opened = archive.Archive.open(path)
    for name in opened.kernels:
        opened.read(name)


def _index(whole: bytes, data: bytes) -> None:
    """The archive `whole` with `data` as its index."""
    path = FOLDER / "file"
    with zipfile.ZipFile(io.BytesIO(whole)) as good, zipfile.ZipFile(path, "w") as made:
        for name in good.namelist():
            made.writestr(name, lzma.compress(data) if name == archive.INDEX else good.read(name))
    refused(lambda: _kernels(path), str(path))


def targets() -> list[Target]:
    """All targets, with their seeds."""
    found = [Target(name, partial(_text, parse), [text.encode()], 0.1) for name, (parse, text) in TEXTS.items()]
    plain = small(FOLDER / "plain.db")
    pack(plain, FOLDER / "packed.db")
    good = {kind: text.encode() for kind, text in GOOD.items()}
    for kind in ("csv", "jsonl"):
        export(plain, FOLDER / kind, kind)
        good[kind] = b"".join((FOLDER / kind).read_bytes().splitlines(keepends=True)[:6])
    export(plain, FOLDER / "parquet", "parquet")
    good["parquet"] = (FOLDER / "parquet").read_bytes()
    found += [Target(kind, partial(_file, partial(_imported, kind)), [data], 0.06) for kind, data in good.items()]
    lines = [
        entries.Entry(Problem.gemm("mm", m=16, n=64, k=64), 2, 3, "", (("m", 2, None),)).line,
        json.dumps({"uncovered": "conv", "origins": [{"module": "a", "source": "b"}]}),
    ]
    found.append(Target("workload", partial(_file, entries.read), ["\n".join(lines).encode()], 0.08))
    listing = b"ab" * 32 + b"  x.db\n# a comment\n"
    found.append(Target("digests", partial(_file, trust.listed), [listing], 0.03))
    shipped = (Path(__file__).parents[2] / "tables" / trust.MANIFEST).read_bytes()
    found.append(Target("manifest", _manifest, [shipped[:200], b'{"schema_version": 1, "tables": []}'], 0.03))
    for name in ("plain", "packed"):
        path = FOLDER / f"{name}.db"
        with Table.open(path) as table:
            pairs = list(table.pairs())[::10]
        seeds = [b"a\nb\nt" + b"x" * 9, b"c\nd\ni" + bytes(8), b"e\nf\nf1e9", b"g\nh\nb\x00\xff"]
        found.append(Target(f"{name} table", partial(_table, path.read_bytes(), pairs), seeds, 0.01))
    return [*found, *_archives()]
