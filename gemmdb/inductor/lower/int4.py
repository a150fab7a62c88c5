"""Lower GEMMs with an int4 weight: our kernels, ATen's GEMM of a tiled weight, or a dequantized weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.decide import outcome
from gemmdb.inductor.decide.decision import Decision, decision_of
from gemmdb.inductor.decide.legality import rejection
from gemmdb.inductor.lower import branches, cutlass, emit, inductor_ops, triton
from gemmdb.inductor.lower.adapter import composed, inlining, ir_view, state, symbolic, templates
from gemmdb.inductor.match import ops
from gemmdb.inductor.match.spelling import SPELLING, Spelling
from gemmdb.kernels.aten import DEQUANTISED
from gemmdb.kernels.triton import names as triton_names
from gemmdb.key.int4 import TILED, Int4Format


@dataclass(frozen=True)
class Weight:
    """The tensors of an int4 weight in Inductor's IR, and their format. `zeros`: None if the weight has no zero points.
    `sizes`: N and K."""

    packed: Any
    scale: Any
    zeros: Any
    groups: Int4Format
    sizes: tuple[Any, Any]

    @classmethod
    def of(cls, a: Any, packed: Any, scale: Any, zeros: Any, group: int, packing: str) -> Weight:
        """Return the weight described by the arguments of `gemmdb::int4_mm`."""
        columns = ops.int4_columns(packed.get_size(), packing)
        return cls(packed, scale, zeros, ops.int4_format(zeros, group, packing), (columns, a.get_size()[1]))

    @property
    def parts(self) -> list[Any]:
        """The tensors that the weight has."""
        return [one for one in (self.packed, self.scale, self.zeros) if one is not None]

    @property
    def tensors(self) -> list[Any]:
        """Materialize the weight's tensors, so our kernels read them as words. Raises Refused if that is not
        possible."""
        return [_whole(templates.settled(one)) for one in self.parts]

    def dequantised(self, dtype: torch.dtype) -> Any:
        """Return the weight [K, N] as `dtype`, computed at every call."""
        return composed.int4_weight(self.packed, self.scale, self.zeros, self.groups, self.sizes, dtype)

    def constant(self, dtype: torch.dtype, order: Any) -> Any:
        """Return the weight [K, N] as a constant of `dtype`, its rows beside the columns of the activation that they
        multiply; None unless its tensors are constants."""
        given = self.parts if order is None else [*self.parts, order]

        def computed(packed: Any, scale: Any, *rest: Any) -> torch.Tensor:
            zeros = rest[0] if self.zeros is not None else None
            found = ops.dequantised(packed, scale, zeros, self.groups, dtype)
            if order is not None:
                found = found.index_select(1, torch.argsort(rest[-1]))
            return found.t().contiguous() if self.groups.along_n else found

        made = ir_view.computed_constant(given, computed)
        if made is None or self.groups.along_n:
            return made
        return state.lowering_of(torch.ops.aten.permute.default)(made, [1, 0])


def register() -> None:
    """Register the lowering of our own operator. Idempotent."""
    state.register_own(ops.overload("int4_mm"), lower)


def lower(a: Any, packed: Any, scale: Any, zeros: Any, group: int, packing: str, order: Any = None) -> Any:
    """Lower `gemmdb::int4_mm`. The output code never calls our operator."""
    decision = decision_of(state.current_node())
    weight = Weight.of(a, packed, scale, zeros, group, packing)
    result = outcome.attempt(decision, lambda decision: decided(decision, _ordered(a, order), weight))
    if result is not None:
        return result
    if packing in TILED:
        return plain(a, weight)
    with outcome.fallback(decision) if decision is not None else state.only_aten():
        return plain(a, weight, order, state.current_node().meta.get(SPELLING))


def plain(a: Any, weight: Weight, order: Any = None, spelling: Spelling | None = None) -> Any:
    """Lower the GEMM without gemmdb: ATen's GEMM for a tiled weight, else with a dequantized weight, as the program
    computes it if its `spelling` is known. That of constants is a constant, as default mode has it."""
    if weight.groups.packing in TILED:
        return composed.tiled_gemm(a, weight.packed, weight.groups.size, weight.scale)
    constant = weight.constant(a.get_dtype(), order)
    if constant is not None:
        return inductor_ops.mm(a, constant, None)
    if spelling is not None:
        return inlining.lowered(spelling.graph, [a, *weight.parts], spelling.constants)
    return inductor_ops.mm(_ordered(a, order), weight.dequantised(a.get_dtype()), None)


def _ordered(a: Any, order: Any) -> Any:
    """Return the activation with its columns in the order of the weight's rows."""
    return a if order is None else state.lowering_of(torch.ops.aten.index.Tensor)(a, [None, order])


def decided(decision: Decision, a: Any, weight: Weight) -> Any:
    """Lower the GEMM as decided. None if ATen was chosen, or, with a note in the journal, if the decided config is not
    possible."""
    if decision.branches:
        tensors = (a, weight.packed, weight.scale, weight.zeros, weight.groups.size, weight.groups.packing)
        return branches.lower(decision, tensors, {})
    config = decision.config
    if config is None or (config.backend, config.kernel) == ("aten", "default"):
        return None
    refusal = rejection(config, decision.query)
    if refusal is not None:
        outcome.refuse(decision, refusal)
        return None
    if config.spec is DEQUANTISED:
        with state.only_aten():
            return inductor_ops.mm(a, weight.dequantised(a.get_dtype()), None)
    try:
        return _generated(decision, a, weight)
    except cutlass.Unavailable as error:
        return decided(emit.without_cutlass(decision, decision.problem, error), a, weight)
    except triton.Refused as error:
        outcome.refuse(decision, str(error))
        return None


def _generated(decision: Decision, a: Any, weight: Weight) -> Any:
    """Lower the GEMM to our CUDA or Triton kernel. Raises Refused, Unavailable if there is no CUDA kernel, or what
    Inductor raises if it cannot generate the kernel."""
    config, problem = decision.config, decision.problem
    assert config is not None
    operands = [activation(a), *weight.tensors]
    sizes = (a.get_size()[0], weight.sizes[0])
    if not symbolic.addressable(sizes, operands):
        raise triton.Refused("offsets are 32 bits wide")
    if config.backend == "cutlass":
        nodes = dict(zip(("a", "b", "scale", "zeros"), operands, strict=False))
        return cutlass.int4(config, problem, nodes, (*sizes, a.get_size()[1]), decision.session.policy)
    names = {**triton_names(config, problem), "ACC_TYPE": "tl.float32"}
    kernel = triton.template_kernel(config, names, problem, decision.query.ranges)
    return templates.gemm(kernel, operands, (a.get_dtype(), sizes), templates.Epilogue())


def activation(a: Any) -> Any:
    """Return the activation [M, K] in memory. Raises Refused unless K is the contiguous dimension."""
    settled = templates.settled(a, row_major=True)
    if symbolic.number(settled.get_stride()[1]) != 1 and symbolic.number(settled.get_size()[1]) != 1:
        raise triton.Refused("K is not the contiguous dimension of the activations")
    return settled


def _whole(part: Any) -> Any:
    """Return a weight's tensor, 16-byte aligned and contiguous, so it can be read as words."""
    aligned = ir_view.aligned(part)
    if aligned is None:
        raise triton.Refused("the weight may not be 16-byte aligned")
    if not ir_view.is_whole(aligned):
        raise triton.Refused("the weight is not contiguous")
    return aligned
