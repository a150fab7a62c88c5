"""Configs of vLLM's files as candidates: for which GEMMs, which of gemmdb's configs, and only to be timed."""

from __future__ import annotations

import json

import pytest
from kit.foreign import H200
from kit.replay import ReplayBackend

from gemmdb.errors import InputError
from gemmdb.generators import proposals
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table
from gemmdb.workload import entries

SMALL = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 8,
         "num_stages": 3}  # fmt: skip
LARGE = SMALL | {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64}
EXPERTS = "E=8,N=7168,device_name=NVIDIA_H200.json"
LINEAR = "N=7168,K=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
GATE = Problem.gemm("grouped_mm", m=32, n=14336, k=4096, dtype="bf16", groups=8)
DOWN = Problem.gemm("grouped_mm", m=32, n=4096, k=7168, dtype="bf16", groups=8)
SCALED = Problem.gemm("scaled_mm", m=16, n=7168, k=2048, scales="block")


@pytest.fixture
def file(tmp_path):
    def made(name, configs):
        path = tmp_path / name
        path.write_text(json.dumps(configs))
        return path

    return made


def test_both_products_of_the_experts_and_no_others_match(file):
    found = proposals.read(file(EXPERTS, {"1": SMALL}))
    assert found.match(GATE)
    assert found.match(DOWN)
    for other in (
        Problem.gemm("grouped_mm", m=32, n=14336, k=4096, dtype="bf16", groups=16),
        Problem.gemm("grouped_mm", m=32, n=7168, k=4096, dtype="bf16", groups=8),
        Problem.gemm("grouped_mm", m=32, n=14336, k=4096, dtype="fp8_e4m3", groups=8),
        Problem.gemm("grouped_mm", m=4096, n=14336, k=4096, dtype="bf16", groups=8, ragged="k"),
        Problem.gemm("mm", m=32, n=14336, k=7168),
        SCALED,
    ):
        assert not found.match(other)
        assert found.configs(other, H200) == []


def test_fp8_experts_match_row_scales(file):
    found = proposals.read(file(EXPERTS.replace(".json", ",dtype=fp8_w8a8.json"), {"1": SMALL}))
    fp8 = Problem.gemm("grouped_mm", m=32, n=14336, k=4096, dtype="fp8_e4m3", groups=8)
    assert found.match(fp8)
    assert not found.match(GATE)


def test_the_tile_is_kept_and_the_rest_is_varied(file):
    found = proposals.read(file(EXPERTS, {"8": SMALL, "4096": LARGE})).configs(GATE, H200)
    blocks = [(one.values["block_m"], one.values["block_n"], one.values["block_k"]) for one in found]
    assert {one.name for one in found} == {"triton:grouped"}
    assert blocks == sorted(blocks)  # Those for 8 tokens, 32 rows, first.
    assert set(blocks) == {(16, 64, 128), (128, 128, 64)}
    assert {one.values["warps"] for one in found} == {8}
    assert len(set(found)) == len(found) > 2
    assert not any(one.rejection(GATE, H200) for one in found)


def test_block_scales_keep_the_step_of_their_blocks(file):
    configs = {"16": SMALL, "4096": LARGE, "8192": SMALL | {"BLOCK_SIZE_M": 512}}
    found = proposals.read(file(LINEAR, configs)).configs(SCALED, H200)
    assert {one.name for one in found} == {"triton:scaled_blocks"}
    assert {one.values["block_k"] for one in found} == {128}
    assert {one.values["group_m"] for one in found} == {16}
    assert found[0].values["block_m"] == 16


def test_they_join_the_candidates_of_a_build_once(file, tmp_path):
    """None has a recorded time here, so each becomes a row without times, and no verdict names it."""
    (tmp_path / "shapes.jsonl").touch()
    entries.append(tmp_path / "shapes.jsonl", [entries.Entry(SCALED), entries.Entry(GATE)])
    space = CudaSpace(cutlass=False)
    backend = ReplayBackend([], device=H200, space=space)
    path = file(LINEAR, {"16": SMALL, "32": SMALL})
    request = BuildRequest(
        arch="sm90", shapes=str(tmp_path / "shapes.jsonl"), effort="quick", out=tmp_path / "t.db", propose=path
    )
    usual = {one.config for one in space.candidates(SCALED, H200, named("quick", "cuda"))}
    proposed = set(proposals.read(path).configs(SCALED, H200)) - usual
    build(request, backend=backend)
    assert proposed
    with Table.open(request.out) as table:
        assert {row.config for row in table.rows(SCALED, H200)} == usual | proposed
        assert not {row.config for row in table.rows(GATE, H200)} & proposed
        assert not any(row.times for row in table.rows(SCALED, H200) if row.config != ATEN)
        assert list(table.verdicts(SCALED, H200)) == []
    again = ReplayBackend([], device=H200, space=space)
    assert build(request, backend=again).rows <= len(usual | proposed)


@pytest.mark.parametrize(
    ("name", "configs", "said"),
    [
        (LINEAR.replace("[128,128]", "[64,128]"), {"1": SMALL}, r"block scales for fp8_w8a8 with block_shape=\[128"),
        (LINEAR.replace("fp8_w8a8", "int8_w8a8"), {"1": SMALL}, "block scales for fp8_w8a8"),
        (EXPERTS.replace(".json", ",dtype=int4_w4a16.json"), {"1": SMALL}, "no op for experts in int4_w4a16"),
        (EXPERTS.replace(".json", ",dtype=fp8_w8a8,block_shape=[128,128].json"), {"1": SMALL}, "with block scales"),
        (EXPERTS, {"1": SMALL | {"waves_per_eu": 2}}, "no usable config .the kernel has no waves_per_eu"),
        (EXPERTS, {}, "no usable config .it has none"),
        ("a.json", {"1": SMALL}, "is not the name of a file of vLLM"),
    ],
)
def test_files_without_a_usable_config_are_refused(file, name, configs, said):
    with pytest.raises(InputError, match=said):
        proposals.read(file(name, configs))


def test_a_file_for_none_of_the_shapes_is_refused_before_anything_is_measured(file, tmp_path):
    entries.append(tmp_path / "shapes.jsonl", [entries.Entry(GATE)])
    backend = ReplayBackend([], device=H200, space=CudaSpace(cutlass=False))
    request = BuildRequest(
        arch="sm90", shapes=str(tmp_path / "shapes.jsonl"), effort="quick", out=tmp_path / "t.db",
        propose=file(LINEAR, {"1": SMALL}),
    )  # fmt: skip
    with pytest.raises(InputError, match="no GEMM of the shapes has the sizes of N=7168,K=2048"):
        build(request, backend=backend)
    assert backend.made == []
    assert not (tmp_path / "t.db").exists()
