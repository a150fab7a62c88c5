"""`gemmdb lookup`: the kernel for one problem."""

from __future__ import annotations

import typer

import gemmdb
from gemmdb.cli.options import JsonFlag, ProblemOptions, takes
from gemmdb.cli.output import evidence_facts, microseconds, note, say, say_facts, say_json
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config


@takes(ProblemOptions)
def lookup(options: ProblemOptions, json: JsonFlag = False) -> None:
    """Look up the kernel for one problem.

    Prints the kernel, its expected time and the rung of the ladder that answered. Nothing is timed, and torch is not
    needed. The rungs are tried in order, and each may decline; `gemmdb explain` shows what each one said.

    \b
    Examples:
      gemmdb lookup --op mm --m 16 --n 4096 --k 4096 --dtype bf16
      gemmdb lookup --op mixed_mm --m 8 --n 28672 --k 8192 --weight-dtype int8 --device "NVIDIA H200" --json
      gemmdb lookup --op scaled_mm --m 512 --n 28672 --k 8192 --scales row --fast-accum --arch sm90

    \b
    Exit codes: 0 found, 1 a miss, 2 bad usage or bad input.
    """
    problem = options.problem()
    hit = gemmdb.lookup(problem)
    if json:
        say_json({"rung": "miss"} if hit is None else hit.as_dict())
    elif hit is None:
        say("miss")
        note(f"no table answers {problem.text}; `gemmdb explain` with the same flags says why")
    else:
        say_facts(hit_facts(hit))
    if hit is None:
        raise typer.Exit(1)


def hit_facts(hit: Hit) -> list[tuple[str, str]]:
    """The facts of a hit as pairs of name and value, for people."""
    facts = [
        ("rung", hit.rung),
        ("kernel", kernel_text(hit.config)),
        ("expected", f"{microseconds(hit.expected_us)}, {hit.speedup:.2f}x ATen"),
        ("table", hit.table),
    ]
    return [*facts, *evidence_facts(hit.evidence, but=(name for name, _ in facts))]


def kernel_text(config: Config) -> str:
    """The config as text, with a note if it is ATen's default."""
    return f"{config.text} (what Inductor takes by default)" if config == ATEN else config.text
