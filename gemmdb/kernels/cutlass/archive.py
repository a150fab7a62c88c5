"""The file that holds compiled CUTLASS kernels: a ZIP file with an index, and with blocks of many kernels each.

Each kernel is in it twice: as an object, which AOTInductor links into a package, and behind that as a shared library,
which a process loads. Both hold the same machine code, and kernels are much alike, so what is compressed together takes
a third of what it takes apart. The index and the blocks are .xz files, stored: unlike zipfile's own LZMA, which
decompresses all that there is, they are read up to the last byte that is needed, and no further.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmdb.errors import TableError
from gemmdb.key.toolchain import Toolchain, major

KINDS = ("o", "so")
INDEX = "index.json.xz"
NAME = re.compile(r"gemmdb_cutlass_[0-9a-f]{24}")
"""The name of a kernel."""
_BLOCK = re.compile(r"kernels-[0-9]{1,6}\.xz")
MAX_KERNELS = 4096
"""The most kernels of one archive: all of them are checked in half a minute."""
MAX_BYTES = 4 << 20
"""The most bytes of the index or of a block, both as they lie in the file and decompressed. A block of twice the size
would spare a sixth of the archive and more than double the time that a kernel takes to read."""
_MAX_MEMORY = MAX_BYTES + (1 << 20)
"""The most bytes that the decompressor takes for itself: its dictionary is a block."""


@dataclass(frozen=True)
class Place:
    """Where a kernel lies. `block`: a member of the ZIP file. `offset`: of the object in the decompressed block, in
    bytes. `sizes`: the bytes of each kind. `sha256`: of the object with the library behind it."""

    block: str
    offset: int
    sizes: Mapping[str, int]
    sha256: str

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Place:
        """What an entry of the index says. Raises KeyError, TypeError, ValueError or OverflowError if it is malformed
        or outside of any block."""
        sizes = {kind: int(told["sizes"][kind]) for kind in KINDS}
        found = cls(str(told["block"]), int(told["offset"]), sizes, str(told["sha256"]))
        if min(found.offset, *sizes.values()) < 0 or found.end > MAX_BYTES:
            raise ValueError(f"a kernel ends at byte {found.end} of its block")
        if not _BLOCK.fullmatch(found.block):
            raise ValueError(f"{found.block!r} is no name of a block")
        return found

    @property
    def end(self) -> int:
        """Where the kernel ends in the decompressed block, in bytes."""
        return self.offset + sum(self.sizes.values())


@dataclass(frozen=True, eq=False)
class Archive:
    """One archive. `kernels`: by name. `provenance`: what compiled them: `cuda`, the version of nvcc, `cutlass`,
    `flags`, `source`. `costs`: what `prebuilt.cost` said before."""

    path: Path
    kernels: Mapping[str, Place]
    provenance: Mapping[str, Any]
    costs: dict[object, int] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: Path) -> Archive:
        """The archive at `path`, without its kernels. Raises TableError if it is none, or one of an older gemmdb."""
        try:
            found = json.loads(_unpacked(path, INDEX, MAX_BYTES))
            kernels = {name: Place.parse(told) for name, told in found["kernels"].items()}
            provenance = found["provenance"]
            named = len(kernels) <= MAX_KERNELS and all(map(NAME.fullmatch, kernels))
            good = named and isinstance(provenance["cuda"], str)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            raise TableError(f"{path}: its {INDEX} is malformed: {error}") from error
        if not good:
            raise TableError(f"{path}: its {INDEX} is malformed")
        return cls(path, kernels, provenance)

    def read(self, name: str) -> dict[str, bytes]:
        """A kernel by kind. It takes about 7 ms. Raises TableError if it is not what the index says."""
        place = self.kernels[name]
        data = _unpacked(self.path, place.block, place.end)[place.offset :]
        if hashlib.sha256(data).hexdigest() != place.sha256:
            raise TableError(f"{self.path}: {name} is not what {INDEX} says")
        size = place.sizes["o"]
        return {"o": data[:size], "so": data[size:]}

    def runs_with(self, toolchain: Toolchain | None) -> bool:
        """Whether this software loads it: CUDA of the same major version, whose runtime the kernels call. True where
        the software is not known."""
        return toolchain is None or major(toolchain.cuda) == major(str(self.provenance["cuda"]))


def _unpacked(path: Path, member: str, most: int) -> bytes:
    """The first bytes of a member, `most` at most."""
    import lzma  # Imported where they are used: most lookups are not about CUTLASS.
    import struct
    import zipfile

    damage = (
        OSError, ValueError, OverflowError, EOFError, RuntimeError, MemoryError, struct.error, zipfile.BadZipFile,
        lzma.LZMAError,
    )  # fmt: skip
    try:
        with zipfile.ZipFile(path) as opened:
            about = opened.getinfo(member)
            if about.compress_type != zipfile.ZIP_STORED or max(about.compress_size, about.file_size) > MAX_BYTES:
                raise TableError(f"{path}: {member} is too large, or not packed as gemmdb packs it")
            packed = opened.read(about)
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_MEMORY).decompress(packed, most)
    except KeyError as error:
        remedy = "another version of gemmdb made it, or another program; gemmdb kernels build makes one"
        raise TableError(f"{path} has no {member}: {remedy}") from error
    except damage as error:
        raise TableError(f"{path}: {error}") from error
