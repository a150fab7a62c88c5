"""Writes an archive of CUTLASS kernels. Those that are alike lie in one block, so that they compress well."""

from __future__ import annotations

import hashlib
import json
import lzma
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.generators.kernels.compiling import FLAGS, LINKED, Tools
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass.archive import INDEX, KINDS, MAX_BYTES, Place
from gemmdb.kernels.cutlass.prebuilt import ARCH

_WHEN = (1980, 1, 1, 0, 0, 0)
"""The date of every member: the same kernels give the same bytes."""


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
        "arch": ARCH, "cuda": tools.cuda, "cutlass": tools.version, "flags": [*FLAGS, "/", *LINKED],
        "source": cutlass.digest("gemm"),
    }  # fmt: skip
    told = {"provenance": provenance, "kernels": {name: asdict(place) for name, place in kernels.items()}}
    index = json.dumps(told, indent=1, sort_keys=True) + "\n"
    _zip({INDEX: _packed(index.encode()), **blocks}, out)


def _blocks(files: Mapping[str, Mapping[str, Path]]) -> Iterator[list[str]]:
    """The names of the kernels of each block. Kernels whose objects have about the same size are alike: in this
    order they compress to two thirds of what they do in the order of their names, and an order by their configs spares
    5% more."""
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
    """As .xz, with a dictionary that has room for all of it and for no more."""
    room = max(len(data), 4096)  # The least that LZMA takes.
    return lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": room}])


def _zip(members: Mapping[str, bytes], out: Path) -> None:
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        with zipfile.ZipFile(part, "w") as archive:
            for name, content in members.items():
                archive.writestr(zipfile.ZipInfo(name, _WHEN), content)
        part.replace(out)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); check its folder") from error
    finally:
        part.unlink(missing_ok=True)
