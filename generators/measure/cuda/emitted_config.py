"""Configs that are measured as the code Inductor emits for them, and the digest that names that code.

Imports no torch: planning a measurement does not need it, and neither do processes that compile other artifacts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class Emitted(Config):
    """A config to be measured as the code that Inductor emits for it. It equals no other config."""

    @classmethod
    def code_of(cls, config: Config) -> Emitted:
        """`config` as emitted code."""
        return cls(config.backend, config.kernel, config.params)

    @property
    def plain(self) -> Config:
        """The config itself."""
        return Config(self.backend, self.kernel, self.params)


def only_emitted(config: Config) -> bool:
    """Whether `config` is measured as emitted code: because it is an `Emitted`, or because only Inductor can make
    it."""
    return isinstance(config, Emitted) or config.spec.emitted


def digest(problem: Problem, config: Config) -> str:
    """32 hexadecimal digits that name the emitted code of a config for a problem."""
    return hashlib.sha256(f"emitted {problem.text} {config.text}".encode()).hexdigest()[:32]
