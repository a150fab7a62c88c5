"""The ways in which a program is compiled, and the state that each has for itself. Imports torch when one is used."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.programs.program import Program

INDUCTOR = "inductor"
FOLDERS = {
    "TORCHINDUCTOR_CACHE_DIR": INDUCTOR, "TRITON_CACHE_DIR": "triton", "XDG_DATA_HOME": "data",
    "XDG_CACHE_HOME": "cache",
}  # fmt: skip
"""The variables that name the caches and the user's table, with the names of their folders."""
NOTE = 160
"""Characters of a product's note that a result keeps."""
UNSET = (
    "GEMMDB_USER_TABLE", "GEMMDB_ON_MISS", "GEMMDB_CONFIRM", "GEMMDB_DISABLE",
    # An installed package is compiled. Without .pyc files each process would compile gemmdb's sources: 0.15 to 0.3 s.
    "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip
"""The variables that a measuring process does not inherit."""


@dataclass(frozen=True)
class Way:
    """One way. `autotuned`: with max-autotune. `gemmdb`: with gemmdb enabled, this `on_miss` and this `confirm` (None:
    its defaults). `beside`: other ways stay compiled in the same process, so gemmdb is a backend and not enabled, or
    enabled only while the program's own backend compiles."""

    name: str
    autotuned: bool = False
    gemmdb: bool = False
    on_miss: str | None = None
    confirm: bool | None = None
    beside: bool = False

    def options(self, program: Program) -> dict[str, Any]:
        """The arguments of torch.compile."""
        found = dict(program.options)
        if self.autotuned:
            found["mode"] = "max-autotune" if found.get("mode") == "reduce-overhead" else "max-autotune-no-cudagraphs"
        if self.gemmdb and self.beside and callable(own_backend := found.get("backend")):
            found["backend"] = functools.partial(self._compiled_by, own_backend)
        elif self.gemmdb and self.beside:
            found["backend"] = "gemmdb"
            if own := self._own():
                found["options"] = {**found.get("options", {}), **own}
        return found

    def _compiled_by(self, backend: Callable[..., Any], graph: Any, inputs: Any, **how: Any) -> Any:
        """What the program's own backend makes of a graph while gemmdb is enabled: an engine compiles its pieces."""
        import gemmdb.inductor
        from gemmdb.settings import Policy

        gemmdb.inductor.enable(on_miss=self.on_miss, policy=Policy(confirm=self.confirm))
        try:
            return backend(graph, inputs, **how)
        finally:
            gemmdb.inductor.disable()

    def _own(self) -> dict[str, Any]:
        """gemmdb's options of torch.compile, as far as they differ from the defaults."""
        from gemmdb.settings import Policy

        confirm = {} if self.confirm is None else {"gemmdb.policy": Policy(confirm=self.confirm)}
        return confirm | ({} if self.on_miss is None else {"gemmdb.on_miss": self.on_miss})

    def enter(self, folder: Path | None = None) -> None:
        """Make the caches under `folder` those of this process, if there is one, and switch gemmdb on or off. Nothing
        of an earlier way is kept in memory."""
        import torch
        from torch._inductor.utils import clear_caches

        import gemmdb.inductor

        torch._dynamo.reset()
        if folder:
            os.environ.update(self.environment(folder))
        clear_caches()
        gemmdb.inductor.disable()
        gemmdb.inductor.reset_stats()
        self.enable()

    def enable(self) -> None:
        """Switch gemmdb on, if this way has it. In a new process that imports it."""
        if self.gemmdb:
            import gemmdb.inductor
            from gemmdb.settings import Policy

            # The step is captured in a CUDA graph, so the host's time does not count.
            policy = Policy(confirm=self.confirm, captured=True)
            gemmdb.inductor.enable(on_miss=self.on_miss, policy=policy)

    def inductor_cache(self, folder: Path) -> Path:
        """The cache of Inductor of this way."""
        return folder / self.name / INDUCTOR

    def environment(self, folder: Path) -> dict[str, str]:
        """The variables of this way."""
        return {name: str(folder / self.name / part) for name, part in FOLDERS.items()}


WAYS = {
    way.name: way
    for way in (
        Way("default"),
        Way("max-autotune", autotuned=True),
        Way("gemmdb", gemmdb=True),
        Way("gemmdb-aten", gemmdb=True, on_miss="aten"),
        Way("gemmdb-unconfirmed", gemmdb=True, confirm=False),
    )
}


def base_environment(environ: Mapping[str, str], gpu: str, compilers: int) -> dict[str, str]:
    """The environment of a measuring process: one GPU, this number of Inductor's compilers, no downloads, gemmdb as it
    is installed. GEMMDB_TABLES stays."""
    kept = {name: value for name, value in environ.items() if name not in UNSET}
    kept["TORCHINDUCTOR_COMPILE_THREADS"] = str(compilers)
    return {**kept, "CUDA_VISIBLE_DEVICES": gpu, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def statistics_of(way: Way) -> dict[str, Any]:
    """What gemmdb did since `enter`; empty if it is off."""
    if not way.gemmdb:
        return {}
    import gemmdb.inductor

    found = gemmdb.inductor.stats()
    wanted = ("problem", "rung", "config", "expected_us", "speedup_vs_aten", "count")
    found["products"] = [
        {**{name: one[name] for name in wanted}, "note": one["note"][:NOTE], **_of_range(one)}
        for one in found["products"]
    ]
    return found


def _of_range(product: Mapping[str, Any]) -> dict[str, Any]:
    """What serves a symbolic number of rows: the largest rows and the config of each part; empty for one kernel."""
    parts = product["evidence"].get("kernels", ())
    return {"kernels": [[part["m"][-1], part["config"]] for part in parts]} if parts else {}
