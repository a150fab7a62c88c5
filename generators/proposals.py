"""Configs from a file of vLLM as further candidates of a build. A build checks and times them like all others.

The file was tuned for other kernels with the same tiles, so its configs only say what to try: `grouped` for experts in
bf16 or fp16, or in fp8 with row scales, and `scaled_blocks` for an fp8 linear with scales of 128 x 128.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.generators import vllm_files
from gemmdb.generators.backend import Candidate, Job
from gemmdb.generators.vllm_files import Name, Tile
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem

MAX_PROPOSED = 48
"""Most configs that a file adds to a problem's candidates."""
MAX_GROUP = 16
"""The largest `group_m` of `scaled_blocks`. vLLM's files have up to 64."""
RESIDENT = (1, 2)
"""Programs per multiprocessor that are tried. vLLM's kernel starts one program per tile."""
USUAL_EXPERTS = 4
"""Experts per token that are assumed where M of a file, which counts tokens, is compared with the rows of a GEMM."""
EXPERT_DTYPES = {"": ("bf16", "fp16"), "fp8_w8a8": ("fp8_e4m3",)}
"""The activation's dtypes in gemmdb that a dtype of vLLM stands for."""


@dataclass(frozen=True)
class Proposals:
    """What a file proposes: its configs by M. `name`: what they were tuned for."""

    name: Name
    tiles: Mapping[int, Tile]

    def match(self, problem: Problem) -> bool:
        """Whether the configs were tuned for a GEMM of this problem's weight, on any GPU. Of experts, the gate and the
        GEMM after it match: N is half of the columns of the first, and the depth of the second."""
        name = self.name
        if name.experts is None:
            sizes = problem.n, problem.k
            return problem.op == "scaled_mm" and problem.scales == "block" and sizes == (name.n, name.k)
        if problem.op != "grouped_mm" or problem.ragged != "m" or problem.groups != name.experts:
            return False
        return problem.a.dtype in EXPERT_DTYPES[name.dtype] and (problem.n == 2 * name.n or problem.k == name.n)

    def configs(self, problem: Problem, device: Device) -> list[Config]:
        """Return the legal configs of gemmdb's kernel with these tiles, at most MAX_PROPOSED, those of the nearest M
        first; none for a problem that does not match."""
        if not self.match(problem):
            return []
        ours, experts = (_scaled_blocks, 1) if self.name.experts is None else (_grouped, USUAL_EXPERTS)
        nearest = sorted(self.tiles, key=lambda m: (abs(math.log2(m * experts / max(problem.m, 1))), m))
        tried = dict.fromkeys(config for m in nearest for config in ours(self.tiles[m]))
        return [config for config in tried if not config.rejection(problem, device)][:MAX_PROPOSED]

    def add(self, jobs: Sequence[Job], device: Device) -> list[Job]:
        """Return the jobs with the configs as further candidates."""
        return [self._add(job, device) for job in jobs]

    def check(self, problems: Iterable[Problem]) -> None:
        """Raise InputError if the file proposes nothing for any of these problems."""
        if not any(map(self.match, problems)):
            raise InputError(f"--propose: no GEMM of the shapes has the sizes of {self.name.text}")

    def _add(self, job: Job, device: Device) -> Job:
        known = {candidate.config for candidate in job.candidates}
        new = tuple(Candidate(config) for config in self.configs(job.problem, device) if config not in known)
        return replace(job, candidates=(*job.candidates, *new))


def read(path: Path) -> Proposals:
    """Read the proposals in a file. Raises InputError for an invalid file, one for an op that gemmdb lacks, and one
    without usable configs."""
    name, found = Name.parse(path.name), vllm_files.read(path)
    if name.experts is not None and (name.dtype not in EXPERT_DTYPES or name.block):
        scales = " with block scales" if name.block else ""
        raise InputError(f"{path}: gemmdb has no op for experts in {name.dtype or 'bf16'}{scales}")
    if name.experts is None and (name.dtype, name.block) != ("fp8_w8a8", (SCALE_BLOCK, SCALE_BLOCK)):
        raise InputError(f"{path}: gemmdb has block scales for fp8_w8a8 with block_shape=[128,128] only")
    if not found.tiles:
        reason = next(iter(found.left.values()), "it has none")
        raise InputError(f"{path}: no usable config ({reason})")
    return Proposals(name, found.tiles)


def _scaled_blocks(tile: Tile) -> Iterator[Config]:
    for swap in (0, 1):
        yield from _config(
            "scaled_blocks", block_m=tile.block_m, block_n=tile.block_n, block_k=SCALE_BLOCK,
            group_m=min(tile.group_m, MAX_GROUP), split_k=1, swap=swap, warps=tile.warps, stages=tile.stages,
        )  # fmt: skip


def _grouped(tile: Tile) -> Iterator[Config]:
    for load, swap, resident in product(("pointer", "tma"), (0, 1), RESIDENT):
        yield from _config(
            "grouped", block_m=tile.block_m, block_n=tile.block_n, block_k=tile.block_k, swap=swap, load=load,
            flatten=0, resident=resident, warps=tile.warps, stages=tile.stages,
        )  # fmt: skip


def _config(kernel: str, **values: int | str) -> Iterator[Config]:
    """The config, if all values are in gemmdb's domains."""
    try:
        yield Config.of("triton", kernel, **values)
    except InputError:
        return
