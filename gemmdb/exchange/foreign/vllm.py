"""vLLM's and SGLang's JSON files with configs by M: `{"16": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, ...}}`.

Such a file has no times. Each config becomes a modelled row: its time comes from the cost model, not from a
measurement, and every lookup shows that. The file's name contains N, K, device and dtype:
`N=512,K=7168,device_name=NVIDIA_H200,dtype=int8_w8a8.json`. No cost model covers mixtures of experts (`E=8,...`) and
block scales (`block_shape=[128,128]`): their configs become candidates of a build (`gemmdb.generators.proposals`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.work import Setting, tile_of
from gemmdb.errors import InputError
from gemmdb.exchange.content import Content, Tally
from gemmdb.exchange.foreign import races
from gemmdb.exchange.foreign.races import Given
from gemmdb.generators import vllm_files
from gemmdb.generators.modelled import CUDA, PROTOCOL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup.ranking import uncovered
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Measurement, Status, Times, one_line

KIND = "vllm"
_NAMES = {"BLOCK_SIZE_M": "block_m", "BLOCK_SIZE_N": "block_n", "BLOCK_SIZE_K": "block_k", "GROUP_SIZE_M": "group_m",
          "num_warps": "warps", "num_stages": "stages"}  # fmt: skip
_SIZE = re.compile(r"[1-9]\d{0,9}")
_SPECIFIC: Mapping[str, int] = {"SPLIT_K": 1, "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 1}
"""Parameters that gemmdb's kernel lacks, each with its neutral value."""
MAX_ENTRIES = 100_000
_MEASURE = "`gemmdb tune -- python PROGRAM.py` measures the program's GEMMs"
_PROPOSE = "`gemmdb build --propose FILE` times its configs with the other candidates"
_MOST_GROUP = 16
"""The largest `group_m` of gemmdb's kernel."""


def read(path: Path, tally: Tally, given: Given) -> Content:
    """Read the rows of a file. `given` must supply what the file's name omits. Raises InputError with file and line."""
    named = vllm_files.words(path.name)
    n, k = (_size(path, name, getattr(given, name.lower()), named.get(name)) for name in ("N", "K"))
    run, configs = given.run(path, KIND), _configs(path)
    if rejected := _rejection(named, given):
        for where, m, _ in configs:
            tally.leave(rejected.reason, f"{where} M={m}")
        return Content([], [run])
    device = given.device_for(path, named.get("device_name", "").replace("_", " ") or None)
    words: dict[str, Any] = {"op": given.op or "mm", "dtype": given.dtype, "layout": given.layout or "nt"}
    if named.get("dtype") == "int8_w8a8" and not given.op:
        words |= {"op": "int_mm", "dtype": "int8", "fusion": "scale"}
    elif given.dtype is None:
        raise InputError(f"--dtype is missing: the name of {path} does not contain the dtype")
    if n is None or k is None:
        raise InputError(f"{'--n' if n is None else '--k'} is missing: the name of {path} does not contain it")
    return Content(_rows(configs, {**words, "n": n, "k": k}, tally, device, run["run"]), [run])


def _rejection(named: Mapping[str, str], given: Given) -> Rejected | None:
    """Return why nothing from a file with this name can be imported."""
    dtype = named.get("dtype", "")
    if "E" in named or "block_shape" in named:
        what = "experts" if "E" in named else "block scales"
        return Rejected(f"the file is for {what} and has no times, and no cost model predicts them; {_PROPOSE}")
    if dtype and dtype != "int8_w8a8" and not given.op:
        return Rejected(f"the file is for {dtype[:40]}, which the cost model does not cover; {_MEASURE}")
    return None


def _configs(path: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield (`FILE:LINE`, M, parameters) for each config. Raises InputError."""
    found, cursor = races.document(path)
    if not isinstance(found, dict) or len(found) > MAX_ENTRIES:
        raise InputError(f"{path}:1: not an object with configs by M, or more than {MAX_ENTRIES:,} of them")
    for key, value in found.items():
        where = cursor.at(key)
        if _SIZE.fullmatch(key):
            yield where, int(key), _values(where, value)
        elif key != "triton_version" or not isinstance(value, str):
            raise InputError(f"{where}: {key[:60]!r} is not an M")


def _rows(
    configs: Iterable[tuple[str, int, dict[str, Any]]], words: dict[str, Any], tally: Tally, device: Device, run: str
) -> Iterator[Measurement]:
    for where, m, values in configs:
        try:
            problem = Problem.gemm(m=m, **words)
            found = _modelled(problem, values, device)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        if isinstance(found, Rejected):
            tally.leave(found.reason, f"{where} {problem.text}")
            continue
        config, us, aten_us = found
        for one, time in ((ATEN, aten_us), (config, us)):
            times = Times(time, time, time, 1, aten_us)
            yield Measurement(problem, one, device, PROTOCOL, Toolchain(cuda=CUDA), run, Status.OK, times)


def _values(where: str, value: Any) -> dict[str, Any]:
    """Return the known parameters of a config by name, all integers. Raises InputError."""
    if not isinstance(value, dict) or len(value) > 40:
        raise InputError(f"{where}: not a config: {value!r:.60}")
    for name, number in value.items():
        if name in _NAMES and (type(number) is not int or not 0 <= number < 2**31):
            raise InputError(f"{where}: {name} must be an integer, got {number!r:.40}")
    return {"GROUP_SIZE_M": 1, **value}


def _modelled(problem: Problem, values: Mapping[str, Any], device: Device) -> tuple[Config, float, float] | Rejected:
    """Return the config for these parameters, with the cost model's microseconds for it and for ATen."""
    if missing := [key for key in _NAMES if key not in values]:
        return Rejected(f"the config lacks {', '.join(missing)}")
    ours = {name: values[key] for key, name in _NAMES.items()}
    if ours["group_m"] > _MOST_GROUP >= -(-problem.m // max(ours["block_m"], 1)):
        ours["group_m"] = _MOST_GROUP  # All rows of tiles are one group either way.
    config = races.template_config("inductor_mm", **ours)
    if isinstance(config, Rejected):
        return config
    if foreign := sorted(key for key in values if key not in _NAMES and values[key] != _SPECIFIC.get(key)):
        return Rejected(f"the kernel has no {one_line(', '.join(foreign[:4]))[:80]}")
    found, tile = machine(device), tile_of(config)
    reason = uncovered(problem) or config.rejection(problem, device)
    if found is None or tile is None or reason:
        return Rejected(str(reason or f"the cost model has no figures for {device.sku}"))
    setting = Setting.of(problem, found)
    us, aten_us = FITTED.predict(setting, tile), FITTED.predict_aten(setting)
    if us >= aten_us:
        return Rejected("the cost model expects it to be no faster than ATen")
    return config, us, aten_us


def _size(path: Path, name: str, given: int | None, named: str | None) -> int | None:
    if named is not None and not _SIZE.fullmatch(named):
        raise InputError(f"{path}: {name}={named[:40]} is not a size")
    if given is not None and named is not None and given != int(named):
        raise InputError(f"{path}: its name contains {name}={named}, but --{name.lower()} is {given}")
    return given if given is not None else int(named) if named else None
