"""benchmarks.torch host: what a round measures, what counts as served, and a run on a CPU."""

from __future__ import annotations

import json
from argparse import Namespace
from itertools import count
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch import host, launches
from gemmdb.errors import InputError

ATEN = "aten:default"


def product(config: str = ATEN, times: int = 8, note: str = "") -> dict[str, object]:
    return {"config": config, "count": times, "note": note}


def stats(*products: dict[str, object], errors: tuple[str, ...] = ()) -> dict[str, object]:
    return {"products": products, "errors": errors, "uncovered": {}}


def test_a_kind_counts_only_if_all_of_its_gemms_run_its_config() -> None:
    assert launches.served(stats(product()), {ATEN}, 8) == ATEN
    for found in (stats(), stats(product(times=7)), stats(product(), product("triton:tile"))):
        with pytest.raises(launches.Unserved):
            launches.served(found, {ATEN}, 8)


def test_a_kind_that_is_not_served_says_why() -> None:
    found = stats(product(note="its compiled kernel cannot be loaded here"))
    with pytest.raises(launches.Unserved, match=r"8 of 8 GEMMs .* cannot be loaded here"):
        launches.served(found, {"cutlass:gemm"}, 8)
    with pytest.raises(launches.Unserved, match=r"0 of 8 GEMMs .* no tables"):
        launches.served(stats(errors=("session: no tables",)), {ATEN}, 8)


def test_each_chain_has_a_code_object_and_a_source_file_of_its_own() -> None:
    """Otherwise torch.compile stops compiling after eight of them, and runs the rest as they are."""
    codes = [launches.chain(launches.plain, 8).__code__ for _ in range(20)]
    assert len(set(map(id, codes))) == 20
    assert all(Path(code.co_filename).is_file() for code in codes)


def test_more_kinds_than_the_recompile_limit_are_all_compiled() -> None:
    aten = launches.kinds("cpu")
    limit = torch._dynamo.config.recompile_limit
    many = {f"plain {one}": aten["aten mm"] for one in range(limit // 2)} | {"forced": aten["aten forced"]}
    torch._dynamo.reset()
    chains, failed = launches.compiled(many, "cpu")
    assert failed == {}
    assert {name: chain.config for name, chain in chains.items()} == {**dict.fromkeys(many, ""), "forced": ATEN}


def test_a_kind_that_fails_leaves_the_others() -> None:
    aten = launches.kinds("cpu")["aten mm"]

    def never(problem: object) -> object:
        raise ValueError("no config")

    broken = launches.Kind(launches.plain, choice=never, against="aten mm")  # type: ignore[arg-type]
    chains, failed = launches.compiled({"aten mm": aten, "broken": broken}, "cpu")
    assert list(chains) == ["aten mm"]
    assert "no config" in failed["broken"]


def test_every_kind_compares_with_atens_time_for_the_same_program() -> None:
    kinds = launches.kinds("cuda")
    for name, kind in kinds.items():
        if kind.against is None:
            assert kind.choice is None, name
        else:
            reference = kinds[kind.against]
            assert (reference.form, reference.choice, reference.against) == (kind.form, None, None), name


class Invented:
    """A chain whose samples are given."""

    config = ATEN

    def __init__(self, *times: float) -> None:
        self.times, self.taken = times, count()

    def sample_us(self) -> float:
        return self.times[next(self.taken) % len(self.times)]

    def gpu_us(self) -> float:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_the_difference_to_aten_is_taken_round_by_round() -> None:
    """The speed of a host changes within seconds, for both at once."""
    chains = {"aten mm": Invented(10.0, 20.0, 30.0), "tile": Invented(12.0, 22.0, 32.0)}
    samples = host.timed(chains, 0.0)
    assert [len(times) for times in samples.values()] == [host.LEAST_ROUNDS] * 2
    aten, tile = host.summary({"aten mm": None, "tile": "aten mm"}, samples)
    assert (aten["kind"], aten["us"]["us"], aten["over"]) == ("aten mm", 20.0, None)
    assert aten["us"]["low"] < 20.0 < aten["us"]["high"]
    assert tile["over"] == {"us": 2.0, "low": 2.0, "high": 2.0}
    assert host.line({**tile, "gpu_us": 3.5}).split("  ")[-2:] == ["+2.00 (+2.00 to +2.00) over aten mm", "gpu 3.50"]


def test_a_chain_that_no_graph_captures_keeps_its_host_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert host.gpu_us("tile", Invented(1.0)) is None
    assert "tile: no time of the GPU: RuntimeError: operation not permitted" in capsys.readouterr().out


def test_a_kind_whose_aten_failed_has_no_difference() -> None:
    (row,) = host.summary({"tile": "aten mm"}, {"tile": [1.0] * 9})
    assert row["over"] is None


def test_kinds_are_chosen_by_name_with_what_they_compare_with() -> None:
    kinds = launches.kinds("cuda")
    assert list(host.chosen(kinds, "padded, tile")) == ["aten mm", "aten odd mm", "tile", "padded"]
    assert host.chosen(kinds, None) == kinds
    with pytest.raises(InputError, match="no kind 'tiles'"):
        host.chosen(kinds, "tiles")


def test_a_run_on_a_cpu_writes_its_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "host.json"
    host.main(Namespace(device="cpu", kinds="aten forced", wrapper="python", seconds=0.0, out=out))
    document = json.loads(out.read_text())
    assert document["failed"] == {}
    assert {row["kind"]: row["config"] for row in document["kinds"]} == {"aten mm": "", "aten forced": ATEN}
    assert all(len(times) == host.LEAST_ROUNDS for times in document["samples"].values())
    assert "over aten mm" in capsys.readouterr().out
