"""`gemmdb lookup`: the kernel for one problem."""

from __future__ import annotations

import typer

from gemmdb import ladder
from gemmdb.api import current_catalog
from gemmdb.cli.options import ConfirmFlag, JsonFlag, ProblemOptions, WideFlag, takes
from gemmdb.cli.output import evidence_facts, microseconds, note, say, say_facts, say_json
from gemmdb.hit import Hit
from gemmdb.inductor.legality import only_aten
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import installed
from gemmdb.ladder import confirmable
from gemmdb.settings import Policy


@takes(ProblemOptions)
def lookup(
    options: ProblemOptions, confirm: ConfirmFlag = False, wide: WideFlag = False, json: JsonFlag = False
) -> None:
    """Look up the kernel for one problem.

    Name the problem by flags, or paste it as gemmdb prints it, or name a line of a workload. The line's ranges count,
    and its device, unless --device or --arch names one.

    Prints the kernel, its expected time and the rung of the ladder that answered; with --wide all of the evidence.
    Nothing is timed, and torch is not needed. The rungs are tried in order, and each may decline; `gemmdb explain`
    shows what each one said.

    \b
    Examples:
      gemmdb lookup --op mm --m 16 --n 4096 --k 4096 --dtype bf16
      gemmdb lookup --op mixed_mm --m 8 --n 28672 --k 8192 --weight-dtype int8 --device "NVIDIA H200" --json
      gemmdb lookup --op scaled_mm --m 512 --n 28672 --k 8192 --scales row --fast-accum --arch sm90
      gemmdb lookup workload.jsonl:3
      gemmdb lookup workload.jsonl:3 --confirm

    \b
    Exit codes: 0 found, 1 a miss, 2 bad usage or bad input.
    """
    catalog = current_catalog()
    query = options.query(catalog)
    policy = confirmable.applied(query, Policy(confirm=confirm))
    hit = ladder.lookup(query, catalog, policy, installed(query.device.kind))
    if json:
        say_json("lookup", {"rung": "miss"} if hit is None else hit.as_dict())
    elif hit is None:
        say("miss")
        text = names.ranged(query.problem.text, query.ranges)
        why = only_aten(query) or "`gemmdb explain` with the same arguments says why"
        note(f"no table answers {text}; {why}")
    else:
        say_facts(hit_facts(hit) if wide else _brief(hit), hang=not wide)
        if said := _confirmed(hit, query, policy):
            note(said)
    if hit is None:
        raise typer.Exit(1)


def _confirmed(hit: Hit, query: Query, policy: Policy) -> str:
    """What a compile that confirms answers does about this one; empty if nothing."""
    if hit.rung not in confirmable.RUNGS:
        return ""
    if policy.confirm:
        return "" if hit.config == ATEN else "a compile times this kernel beside ATen, and serves the faster one"
    if "held_back" not in hit.evidence or confirmable.objection(query, Policy(confirm=True)):
        return ""
    return "a compile times a kernel beside ATen first, and may serve it: --confirm answers as it does"


def _brief(hit: Hit) -> list[tuple[str, str]]:
    """The facts of a hit with short evidence. The kernel's text is whole: it is what was asked for."""
    from gemmdb.cli import brief  # A miss need not wait for it.

    return [*_answer(hit), *brief.facts(None, hit.evidence)]


def hit_facts(hit: Hit) -> list[tuple[str, str]]:
    """The facts of a hit as pairs of name and value, for people."""
    facts = _answer(hit)
    return [*facts, *evidence_facts(hit.evidence, but=(name for name, _ in facts))]


def _answer(hit: Hit) -> list[tuple[str, str]]:
    return [
        ("rung", hit.rung),
        ("kernel", kernel_text(hit.config)),
        ("expected", f"{microseconds(hit.expected_us)}, {hit.speedup:.2f}x ATen"),
        ("table", hit.table),
    ]


def kernel_text(config: Config) -> str:
    """The config as text, with a note if it is ATen's default."""
    return f"{config.text} (what Inductor takes by default)" if config == ATEN else config.text
