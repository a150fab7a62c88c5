"""What the builders of programs share. Imports torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree

from benchmarks.programs.program import Built, Compile, Step

STIRRED = 0.05
"""The standard deviation of the noise of `stirred`."""


@contextmanager
def making(device: str, dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """Inside, new parameters are drawn from the same seed, in `dtype` and on `device`."""
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def stirred(model: torch.nn.Module) -> torch.nn.Module:
    """The model with noise on all parameters that begin as one constant: biases, the weights of normalisations, the
    scales of residual branches. Else a bias that is lost, or a branch that is wrong, would change nothing."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_meta and parameter.numel() > 1 and parameter.min() == parameter.max():
                parameter.add_(torch.randn_like(parameter), alpha=STIRRED)
    return model


def first(outputs: Any) -> Any:
    """The first output of a model."""
    return outputs if isinstance(outputs, torch.Tensor) else outputs[0]


def of_model(model: torch.nn.Module, inputs: Mapping[str, Any], exact: bool = True) -> Built:
    """The program that calls `model` with keyword arguments. `exact`: an fp32 copy of the model is the reference."""

    def step(compile: Compile) -> Step:
        run = compile(model)
        return lambda: first(run(**inputs))

    def reference() -> Any:
        return first(copy.deepcopy(model).float()(**_pytree.tree_map(widened, dict(inputs))))

    return Built(step, reference if exact else None)


def widened(value: Any) -> Any:
    """A floating-point tensor in fp32; anything else as it is."""
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def tokens(vocabulary: int, *sizes: int, device: str) -> torch.Tensor:
    """Random tokens of an int64 tensor with these sizes."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocabulary, sizes, generator=generator).to(device)


def noise(*sizes: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Normal random numbers."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(1)).to(device, dtype)


def same(function: Callable[..., Any]) -> Callable[..., Any]:
    """The Compile that compiles nothing."""
    return function
