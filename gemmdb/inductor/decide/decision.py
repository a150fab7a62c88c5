"""Decision: the config chosen for one GEMM of a graph. All steps from the passes to the lowering read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmdb.hit import Branches
    from gemmdb.inductor.decide.session import Session
    from gemmdb.inductor.observe.journal import Event
    from gemmdb.kernels.config import Config
    from gemmdb.key.problem import Problem, Query

DECISION = "gemmdb_decision"
"""Node metadata: the Decision that the lowering carries out."""


@dataclass(frozen=True)
class Decision:
    """The decision for one GEMM. `config` None: live tuning or Inductor's search decides.

    `event`: its journal event at decision time. `outcome` records later results of the lowering under `entry`, which
    all versions of a decision share. `branches`: as in a Hit. `is_branch`: one branch of a GEMM that is split by M; it
    has no separate journal entry, and its rows are the range of M in `query`. `refused`: the config from the tables
    cannot be lowered, and `config` is ATen instead. `instead`: the decision for a config that has to be confirmed,
    unless it is. `engine_op`: the engine's operator whose call the GEMM is; its config is compared with that operator
    instead of ATen. `reorders`: the GEMM takes the columns of its activation in an order, which costs time that no row
    has. `respelled`: the GEMM was rewritten from a spelling of which default mode does not make what ATen stands for in
    the tables.
    """

    session: Session
    query: Query
    config: Config | None
    event: Event = field(compare=False)
    branches: Branches = ()
    is_branch: bool = False
    refused: bool = False
    instead: Decision | None = field(default=None, compare=False, repr=False)
    engine_op: str = ""
    reorders: bool = False
    respelled: bool = False
    entry: object = field(default_factory=object, compare=False, repr=False)

    @property
    def only_timed(self) -> bool:
        """Whether its config is served only if this compile timed it: rows compare something else."""
        return bool(self.engine_op) or self.reorders

    @property
    def timed_here(self) -> bool:
        """Whether this compile timed its config, or need not."""
        return self.event.rung == "forced" or "confirmed" in self.event.evidence

    @property
    def unanswered(self) -> bool:
        """Whether `config` is ATen because no table hits or Inductor cannot lower the hit."""
        return self.refused or (self.event.rung == "aten" and self.config is not None)

    @property
    def problem(self) -> Problem:
        """The problem of the GEMM."""
        return self.query.problem

    def __deepcopy__(self, memo: object) -> Decision:
        # Graphs are copied with their metadata; the session holds open files.
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # A pickled graph must not depend on gemmdb: its decisions are already carried out.
        return type(None), ()


@dataclass(frozen=True)
class Fused:
    """GEMMs fused into one kernel. `decision`: for the GEMM with all columns; `members`: the decision for each GEMM, in
    column order."""

    decision: Decision
    members: tuple[Decision, ...]

    def __deepcopy__(self, memo: object) -> Fused:
        # As for a Decision.
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


def decision_of(node: Any) -> Decision | None:
    """Return the Decision that a pass stored on an FX node; None without a node or a Decision."""
    found: Decision | None = node.meta.get(DECISION) if node is not None else None
    return found
