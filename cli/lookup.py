"""`gemmdb lookup`: the kernel for one problem."""

from __future__ import annotations

import typer

from gemmdb.cli.options import ConfirmFlag, JsonFlag, ProblemOptions, WideFlag, takes
from gemmdb.cli.output import evidence_facts, microseconds, note, say, say_facts, say_json
from gemmdb.hit import Hit
from gemmdb.inductor.decide.legality import only_aten
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import answer, confirmable
from gemmdb.lookup.environment import current_catalog
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog

CONFIRMED = "a compile times this kernel beside ATen where that repays, and serves the faster one"


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
    hit = _asked(query, catalog, confirm)
    if json:
        say_json("lookup", {"rung": "miss"} if hit is None else hit.as_dict())
    elif hit is None:
        say("miss")
        text = names.ranged(query.problem.text, query.ranges)
        why = only_aten(query) or "`gemmdb explain` with the same arguments says why"
        note(("" if confirm else _unconfirmed(query, catalog, None)) or f"no table answers {text}; {why}")
    else:
        say_facts(hit_facts(hit) if wide else _brief(hit), hang=not wide)
        if said := _confirmed(hit, query) if confirm else _unconfirmed(query, catalog, hit):
            note(said)
    if hit is None:
        raise typer.Exit(1)


def _asked(query: Query, catalog: Catalog, confirm: bool) -> Hit | None:
    policy = confirmable.applied(query, Policy(confirm=confirm))
    return answer(query, catalog, policy, installed(query.device.kind))


def _timed_first(hit: Hit, query: Query) -> bool:
    """Whether a compile times the answer before it serves it, where that repays."""
    doubted = hit.rung in confirmable.RUNGS and hit.config != ATEN
    return doubted and not confirmable.objection(query, Policy(confirm=True))


def _confirmed(hit: Hit, query: Query) -> str:
    """What a compile does with the answer, if it is one that is timed first; else empty."""
    return CONFIRMED if _timed_first(hit, query) else ""


def _unconfirmed(query: Query, catalog: Catalog, hit: Hit | None) -> str:
    """What a compile may try that times kernels first, if it is another kernel than the answer without that; else
    empty."""
    if (hit is not None and hit.rung not in confirmable.RUNGS) or not Settings.read().confirm:
        return ""
    tried = _asked(query, catalog, True)
    if tried is None or not _timed_first(tried, query) or (hit is not None and tried.config == hit.config):
        return ""
    kernel = names.kernel(tried.config)
    return f"a compile may time {kernel} beside ATen first, and serves it if it is faster: --confirm shows it"


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
