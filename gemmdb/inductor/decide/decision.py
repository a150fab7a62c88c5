"""Decision: what was decided for one GEMM of a graph. All steps from the passes to the lowering read it."""

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
    """What to do with one GEMM. `config` None: live tuning or Inductor's search decides.

    `event`: what the journal says of it as decided. What the lowering finds out later is recorded by `outcome` under
    `entry`, which all versions of a decision share. `branches`: as in a Hit. `is_branch`: this is one branch of a
    divided GEMM, which has no journal entry of its own; its rows are the range of M in `query`. `refused`: the tables'
    answer cannot be carried out, and `config` is ATen instead.
    """

    session: Session
    query: Query
    config: Config | None
    event: Event = field(compare=False)
    branches: Branches = ()
    is_branch: bool = False
    refused: bool = False
    entry: object = field(default_factory=object, compare=False, repr=False)

    @property
    def unanswered(self) -> bool:
        """Whether ATen is there for want of an answer: no table has one, or Inductor cannot carry it out."""
        return self.refused or (self.event.rung == "aten" and self.config is not None)

    @property
    def problem(self) -> Problem:
        """The GEMM's problem."""
        return self.query.problem

    def __deepcopy__(self, memo: object) -> Decision:
        # Graphs are copied with their metadata; the session holds open files.
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # A pickled graph must not bring gemmdb along: its decisions are spent.
        return type(None), ()


@dataclass(frozen=True)
class Fused:
    """GEMMs that become one kernel. `decision`: the kernel, for the GEMM with all columns; `members`: the decision for
    each GEMM, in the order of the columns."""

    decision: Decision
    members: tuple[Decision, ...]

    def __deepcopy__(self, memo: object) -> Fused:
        # As a Decision.
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


def decision_of(node: Any) -> Decision | None:
    """The Decision that a pass left on an FX node; None without a node or a Decision."""
    found: Decision | None = node.meta.get(DECISION) if node is not None else None
    return found
