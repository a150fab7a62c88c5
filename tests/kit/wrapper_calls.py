"""What Python output code calls: it runs with nothing behind its calls."""

from __future__ import annotations

import ast
import re
from typing import Any
from unittest import mock

_NUMBER = re.compile(r"_\d+(?=\.run$)")
"""Of a Triton kernel: its place in the code."""


def calls(code: str, *inputs: Any) -> list[str]:
    """Every call in order, such as `extern_kernels.mm`, when the code runs on these tensors; those of methods of a
    call's result as `empty_strided_cuda().zero_`."""
    functions = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef))
    function = next(node for node in functions if node.name == "call")
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    recorder = mock.MagicMock(unsafe=True)
    space = {name: getattr(recorder, name) for name in names}
    exec(compile(ast.Module([function], []), "<output code>", "exec"), space)
    owner = [None] if len(function.args.args) == 2 else []
    space["call"](*owner, list(inputs))
    return [_NUMBER.sub("", name) for name, _, _ in recorder.mock_calls]
