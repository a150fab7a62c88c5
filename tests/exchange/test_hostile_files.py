"""Damaged and random files: every reader gives rows or an InputError of one line, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.tables import Kit

from gemmdb.devices import registry
from gemmdb.errors import InputError
from gemmdb.exchange.content import Tally
from gemmdb.exchange.foreign.races import Given
from gemmdb.exchange.formats import export, read
from gemmdb.exchange.share import manifest

KIT = Kit()
MM = "[('cuda', 'torch.bfloat16', 16, 4096, 4096, 1, 0), ('cuda', 'torch.bfloat16', 4096, 512, 1, 4096, 0)]"
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "num_warps": 4, "num_stages": 4}
TILE = {"type": "triton", "time": 0.01, "BLOCK_M": 16, "BLOCK_K": 128, "BLOCK_N": 32, "num_stages": 4, "num_warps": 2}
GOOD = {
    "inductor-log": json.dumps([{"(16, 4096, 512)": [{"type": "cublas", "time": 0.02}, TILE], "kernel_type": "mm"}]),
    "inductor-cache": json.dumps({"cache": {"mm": {MM: {"highest": {f"mm-c{'a' * 50}": 0.02, "triton_mm-x": 0.01}}}}}),
    "tunableop": "Validator,PT_VERSION,2.13.0\nGemmTunableOp_Half_TN,tn_512_16_4096_ld_4096_4096_512,Default,0.02\n",
    "vllm": json.dumps({"16": CONFIG, "32": CONFIG}),
}
MENTIONED = [*'{}[]",:', "null", "true", "1e999", "-1", "NaN", "Infinity", "9" * 400, "\\u0000", "\x00", "\n"]
PARQUET = ["parquet"] if importlib.util.find_spec("pyarrow") else []
KEYS = ["(1, 2, 3)", "kernel_type", "cache", "mm", "highest", "16", "BLOCK_SIZE_M", "type", "time", "tables", "file"]


def rows_of(kind, path):
    given = Given("NVIDIA H200", "13.0", op="mm", dtype="bf16", n=7168, k=2048, resolve=registry.find)
    return list(read(path, kind, Tally(), given if kind in GOOD else None).rows)


def survives(kind, path):
    try:
        rows_of(kind, path)
    except InputError as error:
        refusal = str(error)
    else:
        return
    assert "\n" not in refusal
    assert str(path) in refusal or refusal.startswith("--")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A good file of each format, as bytes."""
    folder = tmp_path_factory.mktemp("good")
    KIT.write(folder / "a.db", [KIT.row(), KIT.row(KIT.configs[1], us=5.0)])
    found = {kind: text.encode() for kind, text in GOOD.items()}
    for kind in ("csv", "jsonl", *PARQUET):
        export(folder / "a.db", folder / kind, kind)
        found[kind] = (folder / kind).read_bytes()
    return found


KINDS = ["csv", "jsonl", *PARQUET, *GOOD]


@pytest.mark.parametrize("kind", KINDS)
def test_the_good_files_are_good(kind, good, tmp_path):
    (tmp_path / "file").write_bytes(good[kind])
    assert rows_of(kind, tmp_path / "file")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 4))
def test_damaged_files_are_read_or_refused(kind, good, tmp_path, seed, changes):
    chance = random.Random(seed)
    data = bytearray(good[kind])
    for _ in range(changes):
        place = chance.randrange(len(data) + 1)
        cut = chance.choice([0, 0, 1, 3, 20])
        new = chance.choice([b"", bytes([chance.randrange(256)]), chance.choice(MENTIONED).encode()])
        data[place : place + cut] = new
    (tmp_path / "file").write_bytes(data)
    survives(kind, tmp_path / "file")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_random_files_are_read_or_refused(kind, tmp_path, data):
    (tmp_path / "file").write_bytes(data)
    survives(kind, tmp_path / "file")


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20) | st.sampled_from(
        [*KEYS, MM]
    ), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["inductor-log", "inductor-cache", "vllm", "jsonl"])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_any_json_is_read_or_refused(kind, tmp_path, value):
    (tmp_path / "file").write_text(json.dumps(value))
    survives(kind, tmp_path / "file")


@given(value=VALUES)
def test_any_json_is_a_manifest_or_refused(value):
    for document in (value, {"schema_version": 1, "tables": value}):
        try:
            manifest.parse(json.dumps(document).encode(), "there")
            refusal = "there: "
        except InputError as error:
            refusal = str(error)
        assert refusal.startswith("there: ")
