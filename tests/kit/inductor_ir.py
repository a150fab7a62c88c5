"""What lowerings and the scheduler ask of Inductor's nodes, without a graph around them.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor.dependencies import Dep, MemoryDep, ReadWrites
from torch.utils._ordered_set import OrderedSet


@dataclass(frozen=True)
class Operand:
    """An operand of a template, on a GPU that need not be here."""

    sizes: tuple[int, ...]

    def get_device(self) -> torch.device:
        return torch.device("cuda")

    def get_size(self) -> list[int]:
        return list(self.sizes)


class Template:
    """The output of a template, before anyone has marked it."""


@dataclass(frozen=True)
class SchedulerNode:
    """A node of the scheduler, by what it reads and writes. `template`: whose output it computes, if any."""

    read_writes: ReadWrites
    template: Template | None = None

    @classmethod
    def of(cls, reads: Iterable[Dep] = (), writes: Iterable[Dep] = (), template: Template | None = None) -> Any:
        return cls(ReadWrites(OrderedSet(reads), OrderedSet(writes), OrderedSet()), template)

    def is_template(self) -> bool:
        return self.template is not None

    def get_template_node(self) -> Template | None:
        return self.template


@dataclass(frozen=True)
class Scheduler:
    """A scheduler, whose elements all have `item` bytes."""

    item: int

    def dep_size_hint(self, dep: MemoryDep) -> int:
        return self.item * int(sympy.prod(dep.size))
