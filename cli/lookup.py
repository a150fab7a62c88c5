"""`gemmdb lookup`: the kernel for one problem; `gemmdb explain`: the result of each rung."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress

import typer

from gemmdb import Hit, advice, outcome
from gemmdb.advice import OTHER_DEVICE, Advice, Situation, advise
from gemmdb.cli import terminal
from gemmdb.cli.evidence import brief_facts, config_name, expected_time, full_facts, over_range
from gemmdb.cli.options import ConfirmFlag, InvariantFlag, JsonFlag, ProblemOptions, WideFlag, takes
from gemmdb.cli.output import count, microseconds, note, one_line, say, say_facts, say_hanging, say_json
from gemmdb.devices import detect
from gemmdb.errors import TableError
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import Step, acceptance, answer, disturbed, outdated
from gemmdb.lookup import explain as explain_query
from gemmdb.lookup.acceptance import extern
from gemmdb.lookup.environment import current_catalog
from gemmdb.lookup.lowering import only_aten
from gemmdb.outcome import Kind, Outcome
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog
from gemmdb.table.record import Record

UNKNOWN_TIME = "unknown, timed only while other programs kept the machine busy"


@takes(ProblemOptions)
def lookup(
    options: ProblemOptions, confirm: ConfirmFlag = False, wide: WideFlag = False, json: JsonFlag = False,
    batch_invariant: InvariantFlag = False,
) -> None:  # fmt: skip
    """Look up the kernel for one problem.

    Specify the problem by flags, paste it as gemmdb prints it, or name a line of a workload. The line's ranges apply,
    and its device does too unless --device or --arch overrides it.

    Prints what serves the problem, the rung that hit, the kernel and its expected time; with --wide, all the evidence.
    Nothing is timed, and torch is not needed. The rungs are tried in order until one hits; `gemmdb explain` shows the
    result of each.

    \b
    Examples:
      gemmdb lookup --op mm --m 16 --n 4096 --k 4096 --dtype bf16
      gemmdb lookup --op mixed_mm --m 8 --n 28672 --k 8192 --weight-dtype int8 --device "NVIDIA H200" --json
      gemmdb lookup --op scaled_mm --m 512 --n 28672 --k 8192 --scales row --fast-accum --arch sm90
      gemmdb lookup workload.jsonl:3
      gemmdb lookup workload.jsonl:3 --confirm
      gemmdb lookup --op mm --m 16 --n 4096 --k 4096 --device "NVIDIA H200" --batch-invariant

    \b
    Exit codes: 0 found, 1 a miss, 2 bad usage or bad input.
    """
    catalog = current_catalog()
    query = options.query(catalog)
    hit = _hit(query, catalog, _policy(query, confirm, batch_invariant))
    if json:
        found = {"rung": "miss"} if hit is None else _hit_document(hit, query, catalog)
        say_json("lookup", {**found, **_outcome(query, hit, catalog).document()})
    elif hit is None:
        steps = advice.facts(_steps(query, hit, catalog))
        say_facts([("outcome", str(_outcome(query, hit, catalog)), "yellow"), *steps], hang=not wide)
        text = names.ranged(query.problem.text, query.ranges)
        why = only_aten(query) or "`gemmdb explain` with the same arguments shows why"
        unconfirmed = "" if confirm or batch_invariant else _unconfirmed(query, catalog, None)
        note(unconfirmed or f"no table answers {text}; {why}")
    else:
        known = _hit_facts(hit, query, catalog)
        facts = full_facts(hit.evidence, known) if wide else brief_facts(hit.evidence)
        steps = advice.facts(_steps(query, hit, catalog))
        say_facts([("outcome", str(_outcome(query, hit, catalog))), *known.items(), *facts, *steps], hang=not wide)
        if confirm and not batch_invariant and _is_timed_first(hit, query):
            note("a compile benchmarks this kernel against ATen if that pays off, and serves the faster one")
        elif not (confirm or batch_invariant) and (kernel := _unconfirmed(query, catalog, hit)):
            note(kernel)
    if hit is None:
        raise typer.Exit(1)


def _policy(query: Query, confirm: bool, batch_invariant: bool = False) -> Policy:
    """Return the policy of a compile. Batch invariance confirms nothing."""
    policy = Policy(confirm=confirm and not batch_invariant, batch_invariant=batch_invariant)
    return acceptance.policy_for(query, policy)


def _hit(query: Query, catalog: Catalog, policy: Policy) -> Hit | None:
    return answer(query, catalog, policy, installed(query.device.kind))


def _outcome(query: Query, hit: Hit | None, catalog: Catalog) -> Outcome:
    if hit is None:
        found = outcome.of_hit(None, str(only_aten(query) or ""))
    else:
        found = outcome.of_hit(hit, disturbed=disturbed(hit, query, catalog.tables))
    reason = _never_built(query, catalog) if found.kind is Kind.ATEN_UNKNOWN and query.ranges else ""
    return Outcome(Kind.ATEN_UNKNOWN, reason) if reason else found


def _never_built(query: Query, catalog: Catalog) -> str:
    from gemmdb.generators.measure.candidates import never_built  # Lazy: it imports what builds.

    return never_built(query, catalog)


def _steps(query: Query, hit: Hit | None, catalog: Catalog) -> tuple[Advice, ...]:
    """Return what to do where ATen runs; empty for another kernel."""
    serves = _outcome(query, hit, catalog)
    if not serves.kind.aten:
        return ()
    line = {"problem": query.problem.text, **({"ranges": query.ranges} if query.ranges else {})}
    build = f"echo {shlex.quote(json.dumps(line))} > gemm.jsonl && gemmdb build --arch native --shapes gemm.jsonl"
    reason = advice.refusal(serves) if serves.kind is Kind.ATEN_REFUSED else ""
    if serves.kind is Kind.ATEN_UNKNOWN:
        reason = _never_built(query, catalog)
    if not reason and serves.disturbed:
        return advise(Situation(disturbed=1, command=build))
    narrower = advice.tighter(serves, {} if hit is None else hit.evidence)
    here = query.device.sku == detect.native().sku
    if serves.kind is Kind.ATEN_UNKNOWN and not (here or reason):
        reason = OTHER_DEVICE
    return advise(Situation(
        {reason: 1} if reason else {}, int(serves.kind is Kind.ATEN_UNKNOWN and not reason),
        int(serves.kind is Kind.ATEN_BEST), int(serves.kind is Kind.ATEN_PREDICTED and here),
        build=build, largest=query.problem.m,
        outdated=int(hit is not None and outdated(hit, query.device.kind)),
        tighter=[narrower] if narrower else [],
    ))  # fmt: skip


def _is_timed_first(hit: Hit, query: Query) -> bool:
    """Return whether a compile may benchmark the hit before serving it."""
    doubted = extern.unmeasured(hit.rung, hit.config, hit.evidence)
    return doubted and not acceptance.confirm_rejection(query, Policy(confirm=True))


def _unconfirmed(query: Query, catalog: Catalog, hit: Hit | None) -> str:
    """Return the note about a different kernel that a compile may benchmark first; empty if there is none."""
    if (hit is not None and hit.rung not in acceptance.UNMEASURED_RUNGS) or not Settings.read().confirm:
        return ""
    tried = _hit(query, catalog, _policy(query, True))
    if tried is None or not _is_timed_first(tried, query) or (hit is not None and tried.config == hit.config):
        return ""
    kernel = names.kernel(tried.config)
    return f"a compile may benchmark {kernel} against ATen first, and serves it if faster: --confirm shows it"


def _hit_facts(hit: Hit, query: Query, catalog: Catalog) -> dict[str, str]:
    """Return the facts of a hit. The kernel's text is not shortened, since it is the result."""
    time = UNKNOWN_TIME if disturbed(hit, query, catalog.tables) else microseconds(hit.expected_us)
    at = f" at m={query.problem.m}, others in `kernels`" if hit.branches else ""
    return {
        "rung": hit.rung,
        "kernel": (f"{hit.config.text} (Inductor's default)" if hit.config == ATEN else hit.config.text) + at,
        "expected": time + ("" if hit.config == ATEN else f", {hit.speedup:.2f}x ATen") + over_range(hit, query),
        "table": hit.table,
    }


def _hit_document(hit: Hit, query: Query, catalog: Catalog) -> dict[str, object]:
    """Return the JSON of a hit: no expected time where it was taken only on a busy machine."""
    found = hit.as_dict()
    return {**found, "expected_us": None} if disturbed(hit, query, catalog.tables) else found


@takes(ProblemOptions)
def explain(
    options: ProblemOptions, confirm: ConfirmFlag = False, wide: WideFlag = False, json: JsonFlag = False,
    batch_invariant: InvariantFlag = False,
) -> None:  # fmt: skip
    """Show the result of every rung for one problem, and why.

    All rungs are shown, including those after the first hit. The arguments are the same as for `gemmdb lookup`. It also
    counts kernels that were timed for this exact problem only under load, while other programs kept the machine busy:
    they cannot win against ATen. For a miss, it reports whether ATen is the only kernel, in which case no build can
    change it.

    \b
    Examples:
      gemmdb explain --op mm --m 16 --n 4096 --k 4096 --dtype bf16
      gemmdb explain --op int_mm --m 32 --n 4096 --k 4096 --arch sm90 --json
      gemmdb explain workload.jsonl:3
      gemmdb explain workload.jsonl:3 --confirm --wide

    \b
    Exit codes: 0 a hit, 1 a miss, 2 bad usage or bad input.
    """
    catalog = current_catalog()
    query = options.query(catalog)
    policy = _policy(query, confirm, batch_invariant)
    steps = explain_query(query, catalog, policy, installed(query.device.kind))
    loads = _under_load(query, catalog)
    answers = next((step for step in steps if step.hit is not None), None)
    rung = answers.hit.rung if answers and answers.hit else "miss"
    serves = _outcome(query, answers.hit if answers else None, catalog)
    alone = str(only_aten(query) or "") if rung == "miss" else ""
    if json:
        known = {"answer": rung, "under_load": list(map(_load_document, loads)), "only_aten": alone}
        say_json("explain", {**_document(query, catalog, steps), **known, **serves.document()})
    else:
        _say_query(query, catalog, wide)
        for step in steps:
            _say_step(step, step is answers, wide, query, catalog)
            if step.rung == "exact":
                say_facts((("  under load", _load_text(one)) for one in loads), hang=not wide)
        said = f"{serves}, from rung {rung}{' for the range' * bool(query.symbolic)}" if answers else str(serves)
        say_hanging("answer:", said, "green" if answers else "yellow")
        for _, text in advice.facts(_steps(query, answers.hit if answers else None, catalog)):
            say_hanging("next:", text, "bold", hang=not wide)
    if rung == "miss":
        raise typer.Exit(1)


def _say_query(query: Query, catalog: Catalog, wide: bool) -> None:
    device = query.device
    # One line, so that the problem can be copied.
    say_hanging("problem ", names.ranged(query.problem.text, query.ranges), "bold", hang=False)
    say_hanging("device  ", f"{device.sku} ({device.arch}, {device.units} units)", "bold", hang=not wide)
    tables = ", ".join(str(table.path) if wide else table.path.name for table in catalog.tables)
    say_hanging("tables  ", tables or "none", "bold", hang=not wide)


def _say_step(step: Step, answers: bool, wide: bool, query: Query, catalog: Catalog) -> None:
    style = "green" if answers else "cyan" if step.hit is not None else "yellow"
    if wide:
        say(f"{terminal.painted(f'{step.rung}:', style)} {one_line(step.reason)}")
        known = _hit_facts(step.hit, query, catalog) if step.hit is not None else {}
        found = [*known.items(), *full_facts(step.evidence, known)]
    else:
        say_hanging(f"{step.rung}:", one_line(step.reason), style)
        hit = step.hit
        served = {} if hit is None else {
            "kernel": config_name(hit.config.text),
            "expected": UNKNOWN_TIME if disturbed(hit, query, catalog.tables) else expected_time(hit, query),
        }  # fmt: skip
        found = [*served.items(), *brief_facts(step.evidence, hit is not None)]
    say_facts(((f"  {name}", value) for name, value in found), hang=not wide)


def _under_load(query: Query, catalog: Catalog) -> list[tuple[str, Record]]:
    """Return the tables, by name, in which kernels were timed for this exact problem only under load."""
    found = []
    for table in catalog.tables:
        with suppress(TableError):  # The lookup continues without a broken table, after a warning.
            found.append((table.path.name, table.record(query.problem, query.device)))
    return [(name, record) for name, record in found if record and record.under_load]


def _load_text(one: tuple[str, Record]) -> str:
    table, record = one
    kernels, timed = record.under_load - {ATEN}, len({time.config for time in record.measured} - {ATEN})
    text = f"{len(kernels)} of {count(timed, 'kernel')} in {table}, which cannot win" if kernels else f"ATen in {table}"
    text += ", and ATen" if kernels and ATEN in record.under_load else ""
    return f"{text}: build again when the machine is quiet"


def _load_document(one: tuple[str, Record]) -> dict[str, object]:
    table, record = one
    configs = sorted(config.text for config in record.under_load)
    return {"table": table, "configs": configs, "timed": len({time.config for time in record.measured})}


def _document(query: Query, catalog: Catalog, steps: Sequence[Step]) -> dict[str, object]:
    return {
        "problem": query.problem.text, "ranges": query.ranges, "device": query.device.text,
        "tables": [str(table.path) for table in catalog.tables],
        "steps": [
            {
                "rung": one.rung, "reason": one.reason, "evidence": one.evidence,
                "hit": one.hit and _hit_document(one.hit, query, catalog),
            }
            for one in steps
        ],
    }  # fmt: skip
