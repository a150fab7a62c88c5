"""Samples of the campaigns of benchmarks.hostile, and the margin that one of them found."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from benchmarks.common import ROOT
from benchmarks.hostile import damage, fuzz, targets
from gemmdb.cost import possible
from gemmdb.errors import InputError


def test_no_measured_time_is_near_an_impossible_one():
    found = json.loads((ROOT / "benchmarks" / "results" / "hostile" / "least.json").read_text())
    assert found["margin"] == possible.MARGIN
    assert min(one["ratio"] for one in found["closest"].values()) * found["margin"] > 3


@pytest.mark.parametrize("name", ["measurements", "packed", "package", "shipped"])
def test_a_sample_of_damaged_tables(name, tmp_path):
    subject = next(one for one in damage.subjects(tmp_path, most=4) if one.name == name)
    found = damage.campaign(subject, tmp_path, 40, seed=7)
    for part in found.values():
        assert [part[kind] for kind in ("wrong", "slow", "other error")] == [0, 0, 0]
    assert found["cuts"]["refused"] == sum(found["cuts"].values())


def test_the_campaign_sees_another_answer(tmp_path):
    """One that no checksum has: of a file as it was before there were checksums."""
    subject = next(damage.subjects(tmp_path, most=4))
    for place in (0, 1, 2, -1):  # A verdict, the problems nearby, a record, an answer of rung `near`.
        other = [list(one) for one in subject.answers]
        other[-1][place] = frozenset(["another"])
        changed = dataclasses.replace(subject, answers=other)
        assert damage.outcome(changed, tmp_path / "x.db", subject.whole) == "wrong"
    assert damage.outcome(subject, tmp_path / "x.db", subject.whole) == "right"


@pytest.fixture(scope="module")
def known():
    return {one.name: one for one in targets.targets()}


def test_a_sample_of_fuzzing(known):
    for target in known.values():
        assert fuzz.campaign(target, 40 if "table" not in target.name else 15, seed=3)["faults"] == {}


def test_the_seeds_are_sound(known):
    for name, (parse, text) in targets.TEXTS.items():
        assert parse(text).text == text, name
    for kind in targets.GOOD:
        (seed,) = known[kind].seeds
        path = targets.FOLDER / "seed"
        path.write_bytes(seed)
        assert targets._imported(kind, path)


def faulty(data):
    raise ValueError("not a GemmdbError")


def long_winded(data):
    def read():
        raise InputError("two\nlines")

    targets.refused(read, "two")


@pytest.mark.parametrize("check", [faulty, long_winded])
def test_a_fault_is_seen(check, capsys):
    assert fuzz.campaign(targets.Target("x", check, [b"seed"], 1.0), 3, 1)["faults"]
    assert "b'seed'" in capsys.readouterr().err


def test_mutations_depend_on_the_seed_alone():
    made = [[fuzz.mutated(b"a=1 b=2", random.Random(seed)) for seed in range(50)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 30
