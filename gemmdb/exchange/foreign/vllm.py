"""Configs by M in one JSON file, as vLLM and SGLang keep them: `{"16": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, ...}}`.

Such a file has no times. Each config becomes a modelled row: the cost model says how fast it may be, nobody has
measured it, and every answer says so. The file's name says N, K, device and dtype: `N=512,K=7168,device_name=NVIDIA_
H200,dtype=int8_w8a8.json`. Files for mixtures of experts (`E=8,...`) and for scales of blocks (`block_shape=[128,128]`)
are for products that gemmdb has no op for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.work import Setting, tile_of
from gemmdb.errors import InputError
from gemmdb.exchange import files
from gemmdb.exchange.foreign.given import Cursor, Given, run_of
from gemmdb.exchange.importing import Content
from gemmdb.exchange.report import Tally
from gemmdb.generators.modelled import CUDA, PROTOCOL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup.model import uncovered
from gemmdb.table.measurement import Measurement, Status, Times, one_line

KIND = "vllm"
_NAMES = {"BLOCK_SIZE_M": "block_m", "BLOCK_SIZE_N": "block_n", "BLOCK_SIZE_K": "block_k", "GROUP_SIZE_M": "group_m",
          "num_warps": "warps", "num_stages": "stages"}  # fmt: skip
_SIZE = re.compile(r"[1-9]\d{0,9}")
_SPECIFIC: Mapping[str, int] = {"SPLIT_K": 1, "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 1}
"""Parameters that gemmdb's kernel lacks, each with a value that means nothing."""
MOST_ENTRIES = 100_000


def read(path: Path, tally: Tally, given: Given) -> Content:
    """The rows of a file. What its name does not say, `given` must. Raises InputError with file and line."""
    run = run_of(path, KIND, given)
    return Content(_rows(path, tally, _Asked(path, given, _named(path.name)), run["run"]), [run])


class _Asked:
    """The problem of an M, as far as the file's name and the caller say it."""

    def __init__(self, path: Path, given: Given, named: Mapping[str, str]) -> None:
        self.barrier = ""
        dtype = named.get("dtype", "")
        if "E" in named:
            self.barrier = "the file is for a mixture of experts, a product that gemmdb has no op for"
        elif "block_shape" in named:
            self.barrier = "the file is for scales of blocks, whose kernels have other parameters here"
        elif dtype and dtype != "int8_w8a8" and not given.op:
            self.barrier = f"the file is for {dtype}, whose products the cost model does not cover"
        self.n, self.k = (_size(path, name, getattr(given, name.lower()), named.get(name)) for name in ("N", "K"))
        if not self.barrier:
            self.device = given.device_for(path, named.get("device_name", "").replace("_", " ") or None)
        self.words: dict[str, Any] = {"op": given.op or "mm", "dtype": given.dtype, "layout": given.layout or "nt"}
        if dtype == "int8_w8a8" and not given.op:
            self.words |= {"op": "int_mm", "dtype": "int8", "fusion": "scale"}
        elif not self.barrier and given.dtype is None:
            raise InputError(f"--dtype is missing: the name of {path} does not say of which dtype the operands are")

    def problem(self, m: int) -> Problem:
        """Raises InputError."""
        if self.n is None or self.k is None:
            raise InputError(f"{'--n' if self.n is None else '--k'} is missing: the file's name does not say the size")
        words = dict(self.words)
        return Problem.gemm(words.pop("op"), m=m, n=self.n, k=self.k, **words)


def _rows(path: Path, tally: Tally, asked: _Asked, run: str) -> Iterator[Measurement]:
    text = files.whole(path)
    document = files.parse_json(text, path)
    if not isinstance(document, dict) or len(document) > MOST_ENTRIES:
        raise InputError(f"{path}:1: not an object with configs by M, or with more than {MOST_ENTRIES:,}")
    cursor = Cursor(path, text)
    for key, value in document.items():
        where = cursor.at(key)
        if not _SIZE.fullmatch(key):
            if key == "triton_version" and isinstance(value, str):
                continue
            raise InputError(f"{where}: {key[:60]!r} is no M")
        found = _values(where, value)
        if asked.barrier:
            tally.leave(asked.barrier, f"{where} M={key}")
            continue
        try:
            yield from _modelled(where, asked.problem(int(key)), found, tally, asked.device, run)
        except InputError as error:
            raise error if str(error).startswith((where, "--")) else InputError(f"{where}: {error}") from error


def _values(where: str, value: Any) -> dict[str, Any]:
    """The parameters of a config by name: integers, as far as they are known. Raises InputError."""
    if not isinstance(value, dict) or len(value) > 40:
        raise InputError(f"{where}: not a config: {value!r:.60}")
    for name, number in value.items():
        if name in _NAMES and (type(number) is not int or not 0 <= number < 2**31):
            raise InputError(f"{where}: {name} must be an integer, got {number!r:.40}")
    return {"GROUP_SIZE_M": 1, **value}


def _modelled(
    where: str, problem: Problem, value: Mapping[str, Any], tally: Tally, device: Device, run: str
) -> Iterator[Measurement]:
    name = f"{where} {problem.text}"
    if missing := [key for key in _NAMES if key not in value]:
        return tally.leave(f"the config does not say {', '.join(missing)}", name)
    foreign = [key for key, number in value.items() if key not in _NAMES and number != _SPECIFIC.get(key)]
    try:
        config = Config.of("triton", "inductor_mm", **{ours: value[key] for key, ours in _NAMES.items()})
    except InputError:
        return tally.leave("the tile is outside what gemmdb takes", name)
    found = machine(device)
    reason = uncovered(problem) or config.rejection(problem, device)
    tile = tile_of(config)
    if foreign:
        return tally.leave(f"the kernel has no {one_line(', '.join(sorted(foreign)[:4]))[:80]}", name)
    if found is None or tile is None or reason:
        return tally.leave(str(reason or f"the cost model has no figures of {device.sku}"), name)
    setting = Setting.of(problem, found)
    aten_us, us = FITTED.predict_aten(setting), FITTED.predict(setting, tile)
    if us >= aten_us:
        return tally.leave("the cost model expects it to be no faster than ATen", name)
    for one, time in ((ATEN, aten_us), (config, us)):
        times = Times(time, time, time, 1, aten_us)
        yield Measurement(problem, one, device, PROTOCOL, Toolchain(cuda=CUDA), run, Status.OK, times)
    return None


def _named(name: str) -> dict[str, str]:
    """The parts of a file's name, `N=512,K=7168,...`."""
    parts = re.sub(r"\[[^\]]*\]", "[]", name.removesuffix(".json")[:300]).split(",")
    return dict(part.split("=", 1) for part in parts if "=" in part)


def _size(path: Path, name: str, asked: int | None, named: str | None) -> int | None:
    if named is not None and not _SIZE.fullmatch(named):
        raise InputError(f"{path}: {name}={named[:40]} is no size")
    if asked is not None and named is not None and asked != int(named):
        raise InputError(f"{path}: its name says {name}={named}, and --{name.lower()} is {asked}")
    return asked if asked is not None else int(named) if named else None
