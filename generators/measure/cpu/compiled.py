"""A candidate compiled by Inductor as in a user's program, and the generated function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch._inductor.compile_fx as inductor
import torch._inductor.config as inductor_config

from gemmdb.errors import GemmdbError
from gemmdb.generators.measure.program import Product
from gemmdb.inductor import force
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class Compiled:
    """`function` takes the list of the graph's arguments and empties it; `order` says which input each of them is."""

    function: Callable[[list[Any]], Sequence[torch.Tensor]]
    order: tuple[int, ...]

    def arguments(self, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """The list to call `function` with."""
        return [inputs[position] for position in self.order]

    def __call__(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The product of these inputs."""
        return self.function(self.arguments(inputs))[0]


class _Capture:
    """Replaces Inductor's innermost compile step; keeps the code that it returns and the arguments of the calls."""

    def __init__(self) -> None:
        self.graphs: list[tuple[Any, list[Any]]] = []

    def compile(self, graph: Any, inputs: Any, **options: Any) -> Any:
        """Compile as Inductor does and note each call of the result."""
        code = inductor.compile_fx_inner(graph, inputs, **options)

        def run(arguments: list[Any]) -> Any:
            self.graphs.append((code, list(arguments)))
            return code(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def compile_candidate(problem: Problem, product: Product, config: Config) -> Compiled:
    """Compile the product with `config` as `torch.compile` would, with freezing where the weight is constant.

    Raises GemmdbError if Inductor saw another problem or did not take this config, and whatever Inductor raises.
    """
    capture = _Capture()
    torch._dynamo.reset()
    JOURNAL.clear()
    # A cached graph would hide what is compiled. The cache of compiled C++ is keyed by source and stays on.
    patches = {"freezing": problem.constant, "fx_graph_cache": False}

    def backend(graph: Any, inputs: Any) -> Any:
        return inductor.compile_fx(graph, inputs, inner_compile=capture.compile)

    with (
        torch.no_grad(),
        inductor_config.patch(patches),
        functorch_config.patch(enable_autograd_cache=False),
        force(config),
    ):
        torch.compile(product, backend=backend, dynamic=False, fullgraph=True)(*product.inputs)
    if len(capture.graphs) != 1:
        raise GemmdbError(f"compiled to {len(capture.graphs)} graphs, not one")
    _check(problem, config)
    code, arguments = capture.graphs[0]
    return Compiled(code.current_callable, tuple(_position(tensor, product.inputs) for tensor in arguments))


def _check(problem: Problem, config: Config) -> None:
    if JOURNAL.errors:
        raise GemmdbError(f"the lowering failed: {JOURNAL.errors[0]}")
    seen = JOURNAL.events
    if [event.problem for event in seen] != [problem.text]:
        raise GemmdbError(f"Inductor sees another problem: {', '.join(event.problem for event in seen) or 'none'}")
    if seen[0].note or seen[0].config != config.text:
        raise GemmdbError(seen[0].note or f"Inductor took {seen[0].config}")


def _position(tensor: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> int:
    for position, known in enumerate(inputs):
        if known is tensor or (known.data_ptr() == tensor.data_ptr() and known.shape == tensor.shape):
            return position
    raise GemmdbError("the graph takes an argument that is no input of the product")
