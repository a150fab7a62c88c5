"""vLLM's JSON files of tuned configs by M: their names, and the configs in them.

    E=8,N=7168,device_name=NVIDIA_H200.json                                            a layer of experts
    N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json     an fp8 linear with block scales

vLLM finds a file by its name alone. Of experts, E is their number on one GPU, N the columns of the gate on one GPU, and
M the number of tokens before each goes to several experts. The file does not name the hidden size or how many experts a
token has. A config is used as it is for the nearest M in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.files import read_bounded, replacing
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import one_line

KEYS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
"""vLLM's names of a Tile's fields, in order."""
NEUTRAL = {"SPLIT_K": 1, "num_ctas": 1}
"""Further parameters that some versions write, with the only value that has no effect."""
BLOCKS, MAX_GROUP, WARPS, MAX_STAGES = (16, 32, 64, 128, 256, 512), 128, (1, 2, 4, 8, 16, 32), 8
MAX_BYTES, MAX_ENTRIES, MAX_KEYS = 2**20, 1000, 40
"""Largest file, and most configs and parameters of one. vLLM's own files hold at most 50 configs."""
_SIZE = re.compile(r"[1-9]\d{0,8}")
_NAME = re.compile(
    rf"(?:E={_SIZE.pattern},)?N={_SIZE.pattern}(?:,K={_SIZE.pattern})?,device_name=[^,=\[\]/\\]{{1,100}}"
    rf"(?:,dtype=[a-z0-9_]{{1,40}})?(?:,block_shape=\[{_SIZE.pattern}, ?{_SIZE.pattern}\])?\.json"
)
_COMMA = re.compile(r",(?![^\[]*\])")
"""A comma outside of brackets."""
MAX_NAME = 300
"""Most characters of a name that are looked at."""
_DEVICE = re.compile(r"[^,=\[\]\\\x00-\x1f]{1,100}")


@dataclass(frozen=True)
class Tile:
    """A config of vLLM's Triton kernels: a tile in elements, how many rows of tiles run together, warps, stages."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    warps: int
    stages: int

    @property
    def values(self) -> dict[str, int]:
        """The parameters under vLLM's names."""
        return dict(zip(KEYS, astuple(self), strict=True))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Tile | Rejected:
        """Return the config with these parameters under vLLM's names, or why vLLM's kernels on NVIDIA GPUs do not take
        them."""
        if missing := [key for key in KEYS if key not in values]:
            return Rejected(f"the config lacks {', '.join(missing)}")
        for key, value in values.items():
            if key not in KEYS and value != NEUTRAL.get(key):
                return Rejected(f"the kernel has no {one_line(key)[:40]}")
        tile = cls(*(values[key] for key in KEYS))
        domains = (BLOCKS, BLOCKS, BLOCKS, range(1, MAX_GROUP + 1), WARPS, range(1, MAX_STAGES + 1))
        for key, value, domain in zip(KEYS, astuple(tile), domains, strict=True):
            if type(value) is not int or value not in domain:
                return Rejected(f"{key} is out of range")
        return tile


@dataclass(frozen=True)
class Name:
    """The name of a file. `device`: the GPU as torch names it, or as the file does. `n`, `k`: sizes in elements; `k` is
    None for experts, `experts` None for a linear. `dtype`: vLLM's word, empty for bf16 and fp16. `block`: columns and
    rows of the weight with one scale. Raises InputError for sizes or words that no file name has."""

    device: str
    n: int
    k: int | None = None
    experts: int | None = None
    dtype: str = ""
    block: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if (self.k is None) == (self.experts is None):
            raise InputError("a file of vLLM has either K or E in its name")
        if not _DEVICE.fullmatch(self.device):
            raise InputError(f"not a device name for vLLM: {one_line(self.device)[:60]!r}")
        if not _NAME.fullmatch(self.text):
            raise InputError(f"not a file name of vLLM: {one_line(self.text)[:120]!r}")

    @property
    def text(self) -> str:
        """The file name that vLLM's loader looks for. It has one name for all of the H200's variants, for experts."""
        device = re.sub(r"[\s/]+", "_", self.device)
        if self.experts is not None and "H200" in device.split("_"):
            device = "NVIDIA_H200"
        first = f"N={self.n},K={self.k}" if self.experts is None else f"E={self.experts},N={self.n}"
        dtype = f",dtype={self.dtype}" if self.dtype else ""
        block = f",block_shape=[{self.block[0]},{self.block[1]}]" if self.block else ""
        return f"{first},device_name={device}{dtype}{block}.json"

    @classmethod
    def parse(cls, text: str) -> Name:
        """Parse a file name. Raises InputError."""
        if not _NAME.fullmatch(text):
            shown, usual = one_line(text)[:120], "E=8,N=7168,device_name=NVIDIA_H200.json"
            raise InputError(f"{shown!r} is not the name of a file of vLLM, such as {usual}")
        part = words(text)
        numbers = {key: int(part[word]) for word, key in (("N", "n"), ("K", "k"), ("E", "experts")) if word in part}
        block = tuple(map(int, part["block_shape"].strip("[]").split(","))) if "block_shape" in part else None
        return cls(part["device_name"], dtype=part.get("dtype", ""), block=block, **numbers)  # type: ignore[arg-type]


def words(name: str) -> dict[str, str]:
    """Return the words of a file name by key, such as `N` and `device_name`, unchecked: a file of anyone's may have any
    of them. `Name.parse` takes the names that vLLM looks for."""
    parts = _COMMA.split(name.removesuffix(".json")[:MAX_NAME])
    return dict(part.split("=", 1) for part in parts if "=" in part)


@dataclass(frozen=True)
class Tuned:
    """The configs in a file by M, and why others are left out, by M."""

    tiles: Mapping[int, Tile]
    left: Mapping[int, Rejected]


def write(folder: Path, name: Name, tiles: Mapping[int, Tile]) -> Path:
    """Write a file that every version of vLLM reads: nothing but configs by M, in ascending order. The file is replaced
    as a whole. Returns its path. Raises InputError without configs."""
    if not tiles:
        raise InputError(f"{name.text}: there is no config to write")
    path = folder / name.text
    document = {str(m): tiles[m].values for m in sorted(tiles)}
    with replacing(path) as part:
        part.write_text(json.dumps(document, indent=4) + "\n", encoding="utf-8")
    return path


def read(path: Path) -> Tuned:
    """Read the configs of a file, which may come from anyone. Raises InputError for anything but configs by M."""
    document = _document(path)
    tiles, left = dict[int, Tile](), dict[int, Rejected]()
    for key, value in document.items():
        if key == "triton_version" and isinstance(value, str):
            continue
        if not _SIZE.fullmatch(key):
            raise InputError(f"{path}: {one_line(key)[:60]!r} is not an M")
        if not isinstance(value, dict) or len(value) > MAX_KEYS:
            raise InputError(f"{path}: M={key}: not a config: {one_line(repr(value))[:60]}")
        for name in KEYS:
            if name in value and type(value[name]) is not int:
                raise InputError(f"{path}: M={key}: {name} must be an integer, got {one_line(repr(value[name]))[:40]}")
        tile = Tile.of(value)
        if isinstance(tile, Rejected):
            left[int(key)] = tile
        else:
            tiles[int(key)] = tile
    return Tuned(tiles, left)


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_bounded(path, MAX_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not JSON ({one_line(str(error))[:120]})") from error
    if not isinstance(found, dict) or len(found) > MAX_ENTRIES:
        raise InputError(f"{path}: not an object with configs by M, or more than {MAX_ENTRIES:,} of them")
    return found
