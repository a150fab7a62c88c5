"""`gemmdb explain`: the answer of every rung of the ladder to one problem."""

from __future__ import annotations

from contextlib import suppress

import typer

from gemmdb.cli import terminal
from gemmdb.cli.lookup import hit_facts
from gemmdb.cli.options import ConfirmFlag, JsonFlag, ProblemOptions, WideFlag, takes
from gemmdb.cli.output import count, evidence_facts, one_line, say, say_facts, say_hanging, say_json
from gemmdb.errors import TableError
from gemmdb.inductor.decide.legality import only_aten
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import Step, confirmable
from gemmdb.lookup import explain as explain_query
from gemmdb.lookup.environment import current_catalog
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.table.record import Record


@takes(ProblemOptions)
def explain(
    options: ProblemOptions, confirm: ConfirmFlag = False, wide: WideFlag = False, json: JsonFlag = False
) -> None:
    """Show what every rung says about one problem, and why.

    All rungs are shown, also those after the one that answers. The arguments are the same as for `gemmdb lookup`. What
    was timed for this very problem under load only, while other programs kept the machine busy, is counted: it cannot
    win against ATen. Of a miss it says whether ATen is the only kernel: then no build can change it.

    \b
    Examples:
      gemmdb explain --op mm --m 16 --n 4096 --k 4096 --dtype bf16
      gemmdb explain --op int_mm --m 32 --n 4096 --k 4096 --arch sm90 --json
      gemmdb explain workload.jsonl:3
      gemmdb explain workload.jsonl:3 --confirm --wide

    \b
    Exit codes: 0 a rung answers, 1 none does, 2 bad usage or bad input.
    """
    catalog = current_catalog()
    query = options.query(catalog)
    policy = confirmable.applied(query, Policy(confirm=confirm))
    steps = explain_query(query, catalog, policy, installed(query.device.kind))
    loads = _loads(query, catalog)
    answer = next((step.rung for step in steps if step.hit is not None), "miss")
    alone = str(only_aten(query) or "") if answer == "miss" else ""
    if json:
        marked = {"under_load": list(map(_load_document, loads)), "only_aten": alone}
        say_json("explain", {**_document(query, catalog, steps, answer), **marked})
    else:
        for name, value in _question(query, catalog, wide):
            # A problem is there to be copied, as one line.
            say_hanging(f"{name:<7} ", value, "bold", hang=name != "problem" and not wide)
        for step in steps:
            _say_step(step, step.rung == answer, wide)
            if step.rung == "exact":
                say_facts((("  under load", _load(one)) for one in loads), hang=not wide)
        say_hanging("answer:", "; ".join(filter(None, (answer, alone))), "yellow" if answer == "miss" else "green")
    if answer == "miss":
        raise typer.Exit(1)


def _question(query: Query, catalog: Catalog, wide: bool) -> list[tuple[str, str]]:
    named = ", ".join(str(table.path) if wide else table.path.name for table in catalog.tables)
    device = query.device
    return [
        ("problem", names.ranged(query.problem.text, query.ranges)),
        ("device", f"{device.sku} ({device.arch}, {device.units} units)"),
        ("tables", named or "none"),
    ]


def _say_step(step: Step, answers: bool, wide: bool) -> None:
    style = "green" if answers else "cyan" if step.hit is not None else "yellow"
    if wide:
        say(f"{terminal.painted(f'{step.rung}:', style)} {one_line(step.reason)}")
        found = hit_facts(step.hit) if step.hit is not None else []
        found += evidence_facts(step.evidence, but=[name for name, _ in found])
    else:
        from gemmdb.cli import brief  # Only people who read the short form wait for it.

        say_hanging(f"{step.rung}:", one_line(step.reason), style)
        found = list(brief.facts(step.hit, step.evidence))
    say_facts(((f"  {name}", value) for name, value in found), hang=not wide)


def _loads(query: Query, catalog: Catalog) -> list[tuple[str, Record]]:
    """The tables, by name, in which something was timed for this very problem under load only."""
    found = []
    for table in catalog.tables:
        # The ladder goes on without a broken table, after a warning, and so does this.
        with suppress(TableError):
            found.append((table.path.name, table.record(query.problem, query.device)))
    return [(name, known) for name, known in found if known and known.under_load]


def _load(one: tuple[str, Record]) -> str:
    table, known = one
    kernels, timed = known.under_load - {ATEN}, len({time.config for time in known.measured} - {ATEN})
    text = f"{len(kernels)} of {count(timed, 'kernel')} in {table}, which cannot win" if kernels else f"ATen in {table}"
    text += ", and ATen" if kernels and ATEN in known.under_load else ""
    return f"{text}: build again when the machine is quiet"


def _load_document(one: tuple[str, Record]) -> dict[str, object]:
    table, known = one
    configs = sorted(config.text for config in known.under_load)
    return {"table": table, "configs": configs, "timed": len({time.config for time in known.measured})}


def _document(query: Query, catalog: Catalog, steps: list[Step], answer: str) -> dict[str, object]:
    return {
        "problem": query.problem.text,
        "ranges": query.ranges,
        "device": query.device.text,
        "tables": [str(table.path) for table in catalog.tables],
        "steps": [
            {
                "rung": step.rung,
                "reason": step.reason,
                "evidence": step.evidence,
                "hit": None if step.hit is None else step.hit.as_dict(),
            }
            for step in steps
        ],
        "answer": answer,
    }
