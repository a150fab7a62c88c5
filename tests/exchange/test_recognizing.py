"""A file of another format is named, with what to do; what editors add does not matter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.foreign import on_h200
from kit.tables import Kit

from gemmdb.errors import InputError
from gemmdb.exchange.formats import export, load
from gemmdb.exchange.recognize import advice

KIT = Kit()
AUTOTUNE = """\
AUTOTUNE mm(16x4096, 4096x4096)
strides: [4096, 1], [1, 4096]
dtypes: torch.bfloat16, torch.bfloat16
  mm 0.0143 ms 100.0%
  triton_mm_12 0.0151 ms 94.7% ACC_TYPE='tl.float32', BLOCK_K=128, BLOCK_M=16
SingleProcess AUTOTUNE benchmarking takes 0.4 seconds
"""
UNTUNED = "GemmTunableOp_Half_TN,tn_512_16_4096_ld_4096_4096_512\n"
RESULTS = f"Validator,PT_VERSION,2.13.0\n{UNTUNED.strip()},Default,0.02\n"
TILE = {"type": "triton", "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
LOG = json.dumps([{"(16, 4096, 4096)": [{"type": "cublas", "time": 0.02}, {**TILE, "time": 0.01}]}])
VLLM = {"16": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "num_warps": 4, "num_stages": 4}}
LORA = {"1": {"1": {"16": {"block_m": 16}}}}
FILES = {
    "autotune": (AUTOTUNE, "inductor-log", "what Inductor prints while it autotunes.*TORCHINDUCTOR_MM_LOGGING_FILE"),
    "autotune as a table": (AUTOTUNE, "csv", "what Inductor prints"),
    "log line": (f"[rank0]:\n{AUTOTUNE}", "inductor-cache", "what Inductor prints"),
    "untuned": (UNTUNED, "tunableop", "a list of GEMMs that TunableOp has not timed.*tune_gemm_in_file"),
    "untuned with a description": (
        f"{UNTUNED.strip()},- {{ function: matmul, M: 512 }}\n", "tunableop", "has not timed",
    ),
    "results": (RESULTS, "csv", "TunableOp's results: import it with --from tunableop"),
    "vllm": (json.dumps(VLLM, indent=4), "inductor-log", "configs by M: import it with --from vllm"),
    "newer vllm": (json.dumps({"triton_version": "3.5.1", **VLLM}), "inductor-cache", "--from vllm"),
    "lora": (json.dumps(LORA), "inductor-log", "vLLM's configs of LoRA kernels"),
    "cache": ('{"system": {}, "cache": {}}', "vllm", "--from inductor-cache"),
    "log": ('[\n  {"invoke": "(1, 2, 3)"}\n]', "vllm", "--from inductor-log"),
    "older log": ('{"(1, 2, 3)": []}', "vllm", "--from inductor-log"),
    "lookup table": ('{\n "NVIDIA H200+((torch.bfloat16, [1], [1]))+mm": []}', "vllm", "PyTorch's lookup table"),
    "best config": ('{"BLOCK_M": 16, "configs_hash": "a", "found_by_coordesc": true}', "vllm", "names no GEMM"),
    "workload": ('{"problem": "mm m=4", "count": 1}\n', "inductor-log", "a workload: `gemmdb build --shapes FILE`"),
    "table": ("SQLite format 3\0", "csv", "a table: `gemmdb merge`"),
    "verdicts": ("op,m,n,k,batch,a,b,out\n", "csv", "list of verdicts.*export the table as csv"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_another_format_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    text, kind, said = FILES[name]
    (tmp_path / "file").write_text(text)
    given = None if kind == "csv" else on_h200(dtype="bf16", op="mm", n=64, k=64)
    with pytest.raises(InputError, match=rf"file.*; the file is .*{said}") as error:
        load(tmp_path / "file", tmp_path / "b.db", kind, given)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "b.db").exists()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_exports_of_each_format_are_told_apart(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    export(KIT.write(tmp_path / "a.db", [KIT.row()]), tmp_path / "file", kind)
    assert advice(tmp_path / "file", kind) == ""
    assert f"import it with --from {kind}" in advice(tmp_path / "file", "vllm")
    assert "a table" in advice(tmp_path / "a.db", "csv")


def test_nothing_is_said_of_what_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\xfe\0 nothing known")
    assert advice(tmp_path / "file", "csv") == advice(tmp_path / "none", "csv") == ""


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_byte_order_mark_and_blank_lines_do_not_matter(tmp_path: Path, kind: str) -> None:
    export(KIT.write(tmp_path / "a.db", [KIT.row()]), tmp_path / "file", kind)
    edited = b"\xef\xbb\xbf" + (tmp_path / "file").read_bytes() + b"\n\n"
    (tmp_path / "file").write_bytes(edited)
    assert load(tmp_path / "file", tmp_path / "b.db", kind).carried == 1


@pytest.mark.parametrize(("kind", "text"), [("inductor-log", LOG), ("tunableop", RESULTS)])
def test_a_byte_order_mark_of_another_program_does_not_matter(tmp_path: Path, kind: str, text: str) -> None:
    given = on_h200(dtype="bf16", op="mm") if kind == "inductor-log" else on_h200()
    (tmp_path / "file").write_text(f"\ufeff{text}")
    assert load(tmp_path / "file", tmp_path / "b.db", kind, given).carried


def test_a_choice_whose_time_is_no_number_failed(tmp_path: Path) -> None:
    """Inductor writes NaN and Infinity for kernels that fail."""
    for time in ("NaN", "Infinity"):
        choices = [{"type": "cublas", "time": 0.02}, {**TILE, "time": float(time)}]
        (tmp_path / "file").write_text(json.dumps([{"(16, 4096, 4096)": choices}]))
        given = on_h200(dtype="bf16", op="mm")
        assert load(tmp_path / "file", tmp_path / f"{time}.db", "inductor-log", given).carried == 2
