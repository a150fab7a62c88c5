"""Our passes in Inductor's pass slots, next to those from the user or a framework."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass

from gemmdb.devices import detect
from gemmdb.inductor.lower.adapter import patches, state
from gemmdb.phases import PHASES


@functools.cache
def code_digest() -> str:
    """Digest of the sources that choose and lower, and of the cost model's data. It keeps another version of gemmdb
    from getting old graphs from the cache."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sources(package := Path(__file__).parents[3]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def sources(package: Path) -> list[Path]:
    """Return the library files in `package`, without the command line, `tune`, the offline phase and the tables. The
    excluded files do not affect gemmdb's result for a graph with an existing table."""
    others = ("cli", "generators", "tables", "tune", "__pycache__")
    parts = (path for path in package.iterdir() if path.name not in others)
    files = (file for part in parts for file in (part.rglob("*") if part.is_dir() else [part]))
    return sorted(file for file in files if file.is_file() and "__pycache__" not in file.parts)


_MATMUL = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction",
           "allow_fp16_accumulation", "allow_tf32", "fp32_precision")  # fmt: skip


def surroundings() -> str:
    """Return the inputs of a lookup besides the graph: the devices with the number of threads (the C++ template
    hard-codes it) and torch's settings of precision and determinism. Inductor's own key lacks most of these."""
    devices = [detect.cpu(torch.get_num_threads()).text]
    if torch.cuda.is_initialized() and (gpu := detect.cuda(torch.cuda.current_device())):
        devices.append(gpu.text)
    matmul, mkldnn = torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)
    settings = {name: _setting(functools.partial(getattr, matmul, name, None)) for name in _MATMUL}
    settings["fp32"] = _setting(torch.get_float32_matmul_precision)
    settings["mkldnn"] = _setting(lambda: getattr(mkldnn, "fp32_precision", None))
    settings["deterministic"] = str(state.deterministic())
    return " ".join((*devices, *(f"{name}={value}" for name, value in settings.items())))


def _setting(read: Callable[[], object]) -> str:
    try:
        return str(read())
    except RuntimeError:
        # torch forbids reading an old switch once its new one is set
        return "mixed"


class GraphPass(CustomGraphPass):  # type: ignore[misc]
    """One of our passes, wrapped for Inductor. Its uuid is part of every compile-cache key."""

    def __init__(self, body: Any) -> None:
        self.body = body

    def __call__(self, graph: Any) -> None:
        # A backward may be compiled after `disable()`. Its decisions still need our lowerings.
        patches.apply()
        with PHASES("passes"):
            self.body(graph)

    @PHASES("key")
    def uuid(self) -> Any | None:
        """Our code, policy, tables, and the devices and settings that lookups depend on; None: do not cache."""
        identity = self.body.identity
        if identity is None:
            return None
        return f"{type(self.body).__name__} {code_digest()} {identity} {surroundings()}"

    def __deepcopy__(self, memo: Any) -> GraphPass:
        # Inductor sometimes copies its config, and the session holds open files.
        return self


class Chain(CustomGraphPass):  # type: ignore[misc]
    """The user's pass followed by ours. Before torch 2.13 a slot holds only one pass."""

    def __init__(self, user: Any, ours: GraphPass) -> None:
        self.user, self.ours = user, ours

    def __call__(self, graph: Any) -> None:
        self.user(graph)
        self.ours(graph)

    def uuid(self) -> Any | None:
        """Both uuids; None, which bypasses the cache, if the user's pass has none."""
        uuids = (self.user.uuid() if isinstance(self.user, CustomGraphPass) else None, self.ours.uuid())
        return None if None in uuids else uuids

    def __deepcopy__(self, memo: Any) -> Chain:
        return self


_Aware: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", CustomGraphPass)


class AwareChain(Chain, _Aware):  # type: ignore[misc]
    """A Chain whose first pass takes a flag for inference graphs."""

    def __call__(self, graph: Any, is_inference: bool = False) -> None:
        self.user(graph, is_inference)
        self.ours(graph)


def _takes_lists() -> bool:
    # torch 2.13 and later
    return hasattr(custom_graph_pass, "get_custom_graph_passes")


def compose(user: Any, ours: GraphPass) -> Any:
    """Return the value of a pass slot that holds `user` (None, a pass, or a list of passes): theirs first, then
    ours."""
    if user is None:
        return ours
    if _takes_lists():
        return [*(user if isinstance(user, (list, tuple)) else [user]), ours]
    aware = _Aware is not CustomGraphPass and isinstance(user, _Aware)
    return AwareChain(user, ours) if aware else Chain(user, ours)


def holds_ours(slot: Any) -> bool:
    """Whether `slot` already holds one of our passes."""
    if isinstance(slot, (list, tuple)):
        return any(holds_ours(item) for item in slot)
    return isinstance(slot, (GraphPass, Chain))


def in_force(slot: str) -> Any | None:
    """Return the body of our pass in `slot` of the compile in progress, None in a compile without gemmdb."""
    held = getattr(inductor_config, slot)
    for one in held if isinstance(held, (list, tuple)) else [held]:
        ours = one.ours if isinstance(one, Chain) else one
        if isinstance(ours, GraphPass):
            return ours.body
    return None


def frozen() -> bool:
    """Return whether the compile in progress is frozen."""
    return bool(getattr(in_force("post_grad_custom_post_pass"), "frozen", False))


SETTLED: Mapping[str, Any] = {
    "max_autotune": False, "max_autotune_gemm": False, "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False, "benchmark_fusion": False, "benchmark_combo_kernel": False,
    "triton.multi_kernel": 0, "triton.mix_order_reduction_autotune_split_size": False,
    # One launch configuration for each kernel, of Inductor's own heuristics. That of a reduction changes its sums.
    "triton.autotune_pointwise": False, "test_configs.force_filter_reduction_configs": True,
    "dynamic_scale_rblock": False,
}  # fmt: skip
"""What a frozen compile sets in Inductor's config: a search would decide by times. Not Inductor's `deterministic`: it
also fuses less, and takes the first of CUTLASS's kernels without their workspace."""


def patches_for(bodies: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the config patches `given`, with `bodies` (our passes by slot) added to the passes that the user set there
    or in the config; those of a frozen session also switch Inductor's searches off. Return `given` unchanged if our
    passes are already active."""
    added: dict[str, Any] = {}
    for slot, body in bodies.items():
        user = (given or {}).get(slot, getattr(inductor_config, slot))
        if holds_ours(user):
            return dict(given) if given else None
        added[slot] = compose(user, GraphPass(body))
        added |= _settled() if getattr(body, "frozen", False) else {}
    return {**(given or {}), **added}


@functools.cache
def _settled() -> dict[str, Any]:
    """Return what of SETTLED this torch knows."""
    known = inductor_config.get_config_copy()
    return {name: value for name, value in SETTLED.items() if name in known}
