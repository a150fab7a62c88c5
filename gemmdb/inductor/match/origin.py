"""Where the node of a product comes from in the user's code. Dynamo and export say so in its metadata."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import torch

from gemmdb.workload.origins import Origin, clean

_FRAME = re.compile(r'^\s*File "([^"\n]+)", line (\d+)', re.MULTILINE)
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_INDEX = re.compile(r"\[['\"]?([^\]'\"]*)['\"]?\]")
NEAR = 2
"""How many producers of operands are asked if a pass of Inductor left nothing on the product itself."""


def origin(node: Any) -> Origin:
    """The path of the innermost module, and the innermost source line outside of torch; both may be empty. A product of
    a backward has those of its forward. Never raises."""
    try:
        metas = list(_metas(node))
        module = next(filter(None, map(_module, metas)), "")
        return Origin(clean(module), clean(next(filter(None, map(_source, metas)), "")))
    except Exception:  # Metadata is anybody's.
        return Origin()


def _metas(node: Any) -> Iterator[Mapping[str, Any]]:
    yield node.meta
    if not any(node.meta.get(name) for name in ("nn_module_stack", "fwd_nn_module_stack", "stack_trace")):
        yield from (one.meta for one in node.all_input_nodes[:NEAR])


def _module(meta: Mapping[str, Any]) -> str:
    """The path in the root module: torch spells it `L['self'].layers.0` or `layers.0`."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    path = [str(value[0]) for value in stack.values()][-1:] or [""]
    name = path[0]
    for root in ("L['self']", "L['fn']", "L__self__"):  # `fn` is Dynamo's own name for a module of torch.
        name = name.removeprefix(root)
    if name.startswith("L["):  # A local variable of the compiled function: `L['model'].up`.
        name = _INDEX.sub(r"\1", name[1:], count=1)
    name = _INDEX.sub(r".\1", name.replace("._modules", ""))
    return name.strip(".")


def _source(meta: Mapping[str, Any]) -> str:
    frames = _FRAME.findall(meta.get("stack_trace") or "")
    own = [(path, line) for path, line in frames if not path.startswith(_TORCH)] or frames
    if not own:
        return ""
    path, line = own[-1]
    # Folders of a machine do not belong into a file that is passed on. That of a package tells modules apart.
    parts = PurePath(path).parts[-2 if _is_package(Path(path).parent) else -1 :]
    return f"{'/'.join(parts).lstrip('/')}:{line}"


@functools.lru_cache(maxsize=256)
def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").exists()
