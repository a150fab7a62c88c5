"""What a build says of its request: refused with one line, or written down as provenance."""

import json
from pathlib import Path

import pytest
from kit.replay import ReplayBackend

from gemmdb.errors import InputError, TableError
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.request import command
from gemmdb.table.reader import Table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arch": "sm80"}, "--arch sm80.*measuring needs such a GPU"),
        ({"arch": "nonsense"}, "--arch nonsense"),
        ({"arch": "sm80"}, "or use --modelled, which compiles for that arch, ranks by a cost model"),
        ({"arch": "sm70", "modelled": True}, "--modelled: unknown device 'sm70'; known archs: sm100, "),
        ({"arch": "sm80", "modelled": True}, "no problem is left to model"),
        ({"arch": "sm80", "modelled": True, "gpus": 2}, "--gpus: a modelled build measures nothing"),
        ({"ray": "local"}, "--ray: gemmdb.generators.cluster.build"),
        ({"gpus": 2}, "--gpus.*CPU"),
        ({"gpus": 0}, "--gpus 0"),
        ({"effort": "lean"}, "effort lean is for GPUs only; others: quick, standard, full"),
        ({"effort": "heroic"}, "unknown effort 'heroic'; known: quick, standard, full, lean"),
        ({"ops": ("baddbmm",)}, "unknown op 'baddbmm'"),
        ({"dtypes": ("float",)}, "unknown dtype 'float'; .*did you mean 'fp32'"),
        ({"ops": ("int_mm",)}, "no problem is left"),
        ({"shapes": "nowhere.jsonl"}, "no preset and no file is named 'nowhere.jsonl'; presets: .*cpu-quick"),
    ],
)
def test_requests_that_cannot_be_met(request_, change, message):
    fields = {"arch": "cpu", "shapes": request_.shapes, "out": request_.out, **change}
    with pytest.raises(InputError, match=message):
        build(BuildRequest(**fields))
    assert not request_.out.exists()


def test_an_output_that_is_no_table(request_, rows):
    request_.out.parent.mkdir()
    request_.out.write_text("not a table" * 100)
    with pytest.raises(TableError):
        build(request_, backend=ReplayBackend(rows))


def test_provenance_says_what_was_asked_for(request_, rows, monkeypatch):
    backend = ReplayBackend(rows)
    monkeypatch.setattr("sys.argv", ["/opt/bin/gemmdb", "build", "--out", str(request_.out)])
    build(request_, backend=backend)
    table = Table.open(request_.out)
    (run,) = table.provenance()
    table.close()
    assert run["device"] == backend.device.text
    assert run["readings"] == {"reading": 1}
    assert run["request"]["effort"] == "quick"
    # A table is published: where its files lay is nobody's business.
    assert run["request"]["out"] == request_.out.name
    assert Path(request_.shapes).name == run["request"]["shapes"] != request_.shapes
    assert run["command"] == ["gemmdb", "build", "--out", request_.out.name]


@pytest.mark.parametrize("words", [["--ray", "10.0.0.5:6379", "--all"], ["--ray=10.0.0.5:6379"], ["--ray"]])
def test_the_address_of_a_cluster_is_not_written_down(words, monkeypatch):
    monkeypatch.setattr("sys.argv", ["gemmdb", "build", *words])
    found = command()
    assert len(found) == len(words) + 2
    assert "10.0.0.5" not in " ".join(found)


def test_a_long_command_is_cut(shapes_file, tmp_path, monkeypatch, rows):
    """A test runner was given hundreds of names, and its builds ended because their command took 58,006 bytes."""
    monkeypatch.setattr("sys.argv", ["pytest", "x" * 50_000, *(f"test_{number}" for number in range(5_000))])
    request = BuildRequest(shapes=str(shapes_file), out=tmp_path / "long.db", deny="|".join(["absent"] * 10_000))
    build(request, backend=ReplayBackend(rows))
    with Table.open(request.out) as table:
        (run,) = table.provenance()
    assert run["command"][:3] == ["pytest", "x" * 200 + "...", "test_0"]
    assert run["command"][-1] == "... and 4,938 more"
    assert run["request"]["deny"].startswith("absent|absent")
    assert len(json.dumps(run)) < 16_000


def test_the_default_output_is_where_lookups_find_it(shapes_file, tmp_path, monkeypatch, rows):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    report = build(BuildRequest(shapes=str(shapes_file)), backend=ReplayBackend(rows))
    assert report.out == tmp_path / "data" / "gemmdb" / "cpu-test-cpu-2t.db"
    assert report.out.exists()
