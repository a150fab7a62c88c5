"""Files whose every text tries to become markup or script."""

from __future__ import annotations

import json
from pathlib import Path

from gemmdb.key.device import Device
from gemmdb.table.writer import Store
from gemmdb.workload.entries import Entry
from kit.lab import cpp, problem, rows

ATTACK = "</script><img src=x onerror=\"window.owned=1\"><a href='javascript:owned=1'>x</a>%{x}&lt;b&gt;"
DEVICE = Device("cpu", "cpu", ATTACK, 2, isa="</style><script>")

RUN = {
    "command": [ATTACK, "\u2028\u2029\u202e"],
    "started": ATTACK,
    "request": {"shapes": ATTACK},
    ATTACK: {"x": [ATTACK]},
}


def table(folder: Path) -> Path:
    """A table of such a device, measured by such runs."""
    path = folder / "hostile.db"
    with Store.open(path) as store:
        store.begin_run(RUN)
        for m in (1, 16, 64):
            store.add(rows(problem(m), {cpp(threads_m=1): 0.5}, device=DEVICE, torch=ATTACK[:30]))
        store.refresh()
    return path


def workload(folder: Path) -> Path:
    """A workload of such a device, with such a GEMM, under such a name."""
    path = folder / "<img src=x onerror=owned=1>&\udcff.jsonl"
    lines = [Entry(problem(m), count=2, calls=m, device=DEVICE.text).line for m in (1, 16, 64)]
    path.write_text("\n".join([*lines, json.dumps({"uncovered": ATTACK})]))
    return path


def comparison(folder: Path) -> Path:
    """A comparison in which every text is such a one."""
    path = folder / "hostile.json"
    texts = dict.fromkeys(("problem", "config", "rung", "note"), ATTACK)
    one = {**texts, "expected_us": 10.0, "speedup_vs_aten": 2.0, "count": 3}
    other = {**one, "problem": problem(16).text, "config": "aten:default", "count": "<b>"}
    found = {"default_us": 100.0, "gemmdb_us": 80.0, "error": None, "slower": {ATTACK: 3.0}, "products": [one, other]}
    path.write_text(json.dumps(found))
    return path
