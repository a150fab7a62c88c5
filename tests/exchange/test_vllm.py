"""vLLM's configs by M: what they say becomes rows, the rest is counted, and bad input is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.foreign import TILES, on_h200, resolve, rows_of, tile, write

from gemmdb.errors import InputError
from gemmdb.exchange.foreign.races import Given
from gemmdb.exchange.formats import export
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem

GOOD = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 8, "num_warps": 4, "num_stages": 4}


def test_configs_by_m_become_modelled_rows(tmp_path):
    path = write(tmp_path / "N=7168,K=2048,device_name=NVIDIA_H200,dtype=int8_w8a8.json", {"16": GOOD, "32": GOOD})
    rows, left = rows_of("vllm", path, Given(resolve=resolve))
    wanted = [Problem.gemm("int_mm", m=m, n=7168, k=2048, fusion="scale") for m in (16, 32)]
    assert {row.problem for row in rows} <= set(wanted)
    assert len(rows) // 2 + sum(left.values()) == 2
    assert rows, left
    assert {row.protocol.clock for row in rows} == {"model"}
    assert {row.config for row in rows} == {ATEN, tile(16, 64, 128, 4, 4)}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "E=8,N=14336,device_name=NVIDIA_H200.json",
            "for experts and has no times, and no cost model predicts them; `gemmdb build --propose FILE`",
        ),
        ("N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json", "block scales"),
        ("N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8_per_token.json", "does not cover"),
    ],
)
def test_gemms_without_an_op_are_counted(tmp_path, name, words):
    rows, left = rows_of("vllm", write(tmp_path / name, {"1": GOOD, "2": GOOD}), Given(resolve=resolve, dtype="bf16"))
    ((reason, count),) = left.items()
    assert (rows, count) == ([], 2)
    assert words in reason


def test_parameters_that_the_kernel_lacks_are_counted(tmp_path):
    part = {name: value for name, value in GOOD.items() if not name.startswith("num_")}
    configs = {"16": GOOD | {"SPLIT_K": 4}, "32": GOOD | {"BLOCK_SIZE_M": 8}, "64": GOOD | {"USE\n": [1]}, "8": part}
    _, left = rows_of("vllm", write(tmp_path / "a.json", configs), on_h200(dtype="bf16", n=4096, k=4096))
    assert left == {
        "the kernel has no SPLIT_K": 1,
        "gemmdb does not support this tile: block_m out of range": 1,
        "the kernel has no USE": 1,
        "the config lacks num_warps, num_stages": 1,
    }


def test_a_large_group_is_the_largest_if_it_holds_all_tiles_and_else_named(tmp_path):
    """vLLM tunes GROUP_SIZE_M up to 64."""
    name = "N=7168,K=2048,device_name=NVIDIA_H200,dtype=int8_w8a8.json"
    configs = {"16": GOOD | {"GROUP_SIZE_M": 64}, "4096": GOOD | {"GROUP_SIZE_M": 32}}
    rows, left = rows_of("vllm", write(tmp_path / name, configs), Given(resolve=resolve))
    assert {row.config for row in rows} == {ATEN, tile(16, 64, 128, 4, 4, group=16)}
    assert left == {"gemmdb does not support this tile: group_m out of range": 1}


NEWER = {"triton_version": "3.5.1", "16": GOOD | {"SPLIT_K": 1}}
AMD = {"16": GOOD | {"waves_per_eu": 0, "matrix_instr_nonkdim": 16, "kpack": 1}}


def test_files_of_several_versions_of_vllm_are_read(tmp_path):
    name = "N=7168,K=2048,device_name=NVIDIA_H200,dtype=int8_w8a8"
    older = {"16": {key: value for key, value in GOOD.items() if key != "GROUP_SIZE_M"}}
    for configs, kept in ((NEWER, 2), (older, 2), (AMD, 0)):
        rows, left = rows_of("vllm", write(tmp_path / f"{name}.json", configs), Given(resolve=resolve))
        assert (len(rows), sum(left.values())) == (kept, 1 - kept // 2)
    spaced = write(tmp_path / f"{name},block_shape=[128, 128].json", NEWER)
    assert "block scales" in next(iter(rows_of("vllm", spaced, Given(resolve=resolve))[1]))


def test_a_gemm_without_an_op_needs_no_known_device(tmp_path):
    path = write(tmp_path / "E=8,N=64,device_name=AMD_Instinct_MI300X.json", {"1": GOOD})
    _, left = rows_of("vllm", path, Given(resolve=resolve))
    assert list(left.values()) == [1]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("[]", ":1: not an object"),
        ('{\n"a": {}}', ":2: 'a' is not an M"),
        ('{\n"0": {}}', ":2: '0' is not an M"),
        ('{\n"16": 5}', ":2: not a config"),
        ('{\n"16": {"num_warps": 1e9}}', ":2: num_warps must be an integer"),
        ('{\n"16": {"num_warps": 99999999999}}', ":2: num_warps must be an integer"),
    ],
)
def test_bad_configs_by_m_are_refused_with_their_line(tmp_path, document, said):
    path = write(tmp_path / "bad.json", document)
    with pytest.raises(InputError) as error:
        rows_of("vllm", path, on_h200(dtype="bf16", n=64, k=64))
    assert f"{path}{said}" in str(error.value)


def test_sizes_that_nobody_names_are_asked_for(tmp_path):
    path = write(tmp_path / "a.json", {"16": GOOD})
    with pytest.raises(InputError, match="--k is missing"):
        rows_of("vllm", path, on_h200(dtype="bf16", n=64))
    named = write(tmp_path / "N=64,K=64.json", {"16": GOOD})
    with pytest.raises(InputError, match="its name contains N=64, but --n is 128"):
        rows_of("vllm", named, on_h200(dtype="bf16", n=128))


@settings(max_examples=40)
@given(configs=st.dictionaries(st.integers(1, 5000), TILES, max_size=6))
def test_every_config_by_m_is_a_row_or_counted(configs, tmp_path_factory):
    document = {
        str(m): {"BLOCK_SIZE_M": bm, "BLOCK_SIZE_N": bn, "BLOCK_SIZE_K": bk, "num_warps": warps, "num_stages": stages}
        for m, (bm, bn, bk, warps, stages) in configs.items()
    }
    path = write(tmp_path_factory.mktemp("vllm") / "N=7168,K=2048,dtype=int8_w8a8.json", document)
    rows, left = rows_of("vllm", path, on_h200())
    kept = {row.problem.m: row.config for row in rows if row.config != ATEN}
    assert len(kept) + sum(left.values()) == len(configs)
    for m, config in kept.items():
        bm, bn, bk, warps, stages = configs[m]
        assert config == Config.of("triton", "inductor_mm", **{**tile(bm, bn, bk, warps, stages).values, "group_m": 1})


def test_an_export_says_what_writes_vllms_files(tmp_path):
    with pytest.raises(InputError, match="no times of vLLM's kernels; `gemmdb vllm` measures them"):
        export(tmp_path / "table.db", tmp_path / "N=64,K=64.json", "vllm")
