"""`python -m benchmarks.h200 cluster` without GPUs: its options, the order of its builds, and its summary."""

import argparse

import pytest

from benchmarks.h200 import cluster
from gemmdb.errors import InputError


def options(tmp_path, *words):
    parser = argparse.ArgumentParser()
    cluster.arguments(parser)
    return parser.parse_args(["--out", str(tmp_path / "out"), *words])


def test_the_options_have_defaults(tmp_path):
    found = options(tmp_path)
    assert (found.gpus, found.shapes, found.problems, found.effort, found.rounds) == (2, "h200", 40, "quick", 2)
    with pytest.raises(SystemExit):
        options(tmp_path, "--gpus", "two")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rounds", "0"), "--rounds and --problems must be at least 1"),
        (("--problems", "0"), "--rounds and --problems must be at least 1"),
        (("--gpus", "3"), "--gpus 3: this host has 2"),
        (("--gpus", "0"), "--gpus 0: this host has 2"),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_built(words, said, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(InputError, match=said):
        cluster.main(options(tmp_path, *words))
    assert not (tmp_path / "out").exists()


def test_neither_kind_is_always_first():
    assert cluster.order(3) == ["plain-0", "ray-0", "ray-1", "plain-1", "plain-2", "ray-2"]


def one(kind, seconds, pairs=100):
    return {"kind": kind, "seconds": seconds, "process_s": seconds + 10.0, "pairs": pairs}


def test_the_medians_are_compared():
    found = cluster.summary([one("plain", 100.0), one("ray", 105.0), one("ray", 109.0), one("plain", 102.0)])
    assert found["median"]["plain"] == {"seconds": 101.0, "process_s": 111.0}
    assert found["ratio"]["seconds"] == pytest.approx(107 / 101)
    assert found["within"]
    assert found["same_rows"]
    late = cluster.summary([one("plain", 100.0), one("ray", 120.0, pairs=99)])
    assert not late["within"]
    assert not late["same_rows"]
