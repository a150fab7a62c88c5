"""What `gemmdb build --ray` prints for several kinds of devices."""

import json
from dataclasses import replace

from kit import lab

from gemmdb.generators.cluster import build as over
from gemmdb.generators.request import BuildReport
from gemmdb.table.writer import Store


def test_the_other_devices_follow_the_first(gemmdb, tmp_path, monkeypatch):
    out, other = tmp_path / "t.db", replace(lab.CPU, units=lab.CPU.units + 2)
    with Store.open(out) as store:
        store.add(lab.rows(lab.problem(), {lab.cpp(): 0.5}))
        store.refresh()
    asked = []

    def build(request, progress, say):
        asked.append(request.ray)
        done = {"problems": 1, "jobs": 1, "before": 0, "measured": 1, "elsewhere": 0, "rows": 2, "statuses": {"ok": 2}}
        return [BuildReport(out=out, device=device, **done, seconds=1.0, workers=3) for device in (lab.CPU, other)]

    monkeypatch.setattr(over, "build", build)
    command = ("build", "--arch", "native", "--ray", "10.0.0.5:6379", "--out", str(out))
    found = json.loads(gemmdb(*command, "--json").out)
    (further,) = found["further"]
    assert (found["device"], found["lanes"]) == (lab.CPU.sku, 3)
    assert set(further) == set(found) - {"schema", "version", "further"}
    assert gemmdb(*command).out.count("measurements") == 2
    assert asked == ["10.0.0.5:6379"] * 2
