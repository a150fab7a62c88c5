"""TunableOp's results: what they say becomes rows, the rest is counted, and bad input is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.foreign import MILLISECONDS, on_h200, rows_of, write

from gemmdb.errors import InputError
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Status

RESULTS = """\
Validator,PT_VERSION,2.13.0
Validator,CUBLASLT_VERSION,13.1
GemmTunableOp_BFloat16_TN,tn_512_16_4096_ld_4096_4096_512,Default,0.02
GemmTunableOp_BFloat16_NN,nn_512_16_4096_ld_512_4096_512,Gemm_Hipblaslt_1219,0.01
GemmAndBiasTunableOp_Half_TN,tn_512_16_4096_ld_4096_4096_512,Default,0.03
GemmStridedBatchedTunableOp_Half_TN,tn_64_16_64_B_8_ld_64_64_64,Default,0.03
GemmTunableOp_c10::complex<float>_NN,nn_8_8_8_ld_8_8_8,Default,0.03
GemmTunableOp_tf32_TN,tn_512_16_4096_ld_4096_4096_512,Default
"""


def test_tunableop_says_something_about_aten_only(tmp_path):
    path = write(tmp_path / "results.csv", RESULTS)
    rows, left = rows_of("tunableop", path, on_h200())
    assert [(row.problem, row.config, row.times.median_us) for row in rows if row.times] == [
        (Problem.gemm("mm", m=16, n=512, k=4096), ATEN, 20.0),
        (Problem.gemm("addmm", m=16, n=512, k=4096, dtype="fp16"), ATEN, 30.0),
    ]
    assert {row.status for row in rows} == {Status.SLOW}, "ATen alone decides nothing"
    assert {row.toolchain.torch for row in rows} == {"2.13.0"}
    assert sorted(left.values()) == [1, 1, 1, 1]
    assert any("only TunableOp chooses" in reason for reason in left)


def test_older_and_newer_lines_of_tunableop_are_read(tmp_path):
    older = "GemmTunableOp_Half_TN,tn_512_16_4096,Default,0.02"
    newer = "GemmTunableOp_Half_TN,tn_512_16_4096_ld_4096_4096_512,Default,0.02,- { function: matmul, M: 512, N: 16 }"
    rows, left = rows_of("tunableop", write(tmp_path / "r.csv", f"{older}\n{newer}\n"), on_h200())
    assert {row.problem for row in rows} == {Problem.gemm("mm", m=16, n=512, k=4096, dtype="fp16")}
    assert (len(rows), left) == (2, {})


def test_lines_without_a_usable_time_and_unknown_operators_are_counted(tmp_path):
    good = "GemmTunableOp_Half_TN,tn_512_16_4096_ld_4096_4096_512,Default"
    scaled = "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_8_8_8_ld_8_8_8_rw_1_bias_None,Default,1.0"
    other = "GroupedGemmTunableOp_Half_TN,tn_8_8_8,Default,1.0"
    text = "\n".join([f"{good},0.02", f"{good},nan", f"{good},inf", good, scaled, other, ""])
    rows, left = rows_of("tunableop", write(tmp_path / "r.csv", text), on_h200())
    assert len(rows) == 1
    assert left == {
        "the line has no time": 3,
        "a ScaledGemm line does not contain whether fast accumulation is allowed": 1,
        "gemmdb does not know this operator of TunableOp": 1,
    }


VALIDATORS = {
    "2.3": ["PT_VERSION,2.3.0"],
    "2.11": ["PT_VERSION,2.11.0", "CUDA_VERSION,13.0"],
}


@pytest.mark.parametrize("version", VALIDATORS)
def test_the_heads_of_several_versions_are_read(tmp_path, version):
    head = "".join(f"Validator,{line}\n" for line in VALIDATORS[version])
    line = "GemmTunableOp_BFloat16_TN,tn_512_16_4096_ld_4096_4096_512,Default,0.02\n"
    ((row,), _) = rows_of("tunableop", write(tmp_path / "r.csv", head + line), on_h200())
    assert row.toolchain.torch == f"{version}.0"


@pytest.mark.parametrize("validator", [
    "ROCM_VERSION,6.0.0.0-12969-1544e39", "GCN_ARCH_NAME,gfx942:sramecc+:xnack-", "HIPBLASLT_VERSION,0.6.0-a9c5cc7",
])  # fmt: skip
def test_times_of_an_amd_gpu_are_no_evidence_for_another(tmp_path, validator):
    line = "GemmTunableOp_BFloat16_TN,tn_512_16_4096_ld_4096_4096_512,Default,0.02\n"
    path = write(tmp_path / "r.csv", f"Validator,PT_VERSION,2.6.0\nValidator,{validator}\n{line}")
    with pytest.raises(InputError, match=r"r\.csv was measured on an AMD GPU"):
        rows_of("tunableop", path, on_h200())


@settings(max_examples=30)
@given(
    sizes=st.tuples(*(st.integers(2, 9000) for _ in range(3))),
    ms=MILLISECONDS,
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    dtype=st.sampled_from(["BFloat16", "Half", "float", "tf32", "double"]),
)
def test_every_default_of_tunableop_is_its_problem(sizes, ms, layout, dtype, tmp_path_factory):
    m, n, k = sizes
    a_t, b_t = (letter == "t" for letter in layout)
    letters = f"{'T' if b_t else 'N'}{'T' if a_t else 'N'}"
    lds = f"{k if b_t else n}_{m if a_t else k}_{n}"
    line = f"GemmTunableOp_{dtype}_{letters},{letters.lower()}_{n}_{m}_{k}_ld_{lds},Default,{ms}\n"
    path = write(tmp_path_factory.mktemp("tunableop") / "r.csv", line)
    ((row,), left) = rows_of("tunableop", path, on_h200())
    names = {"BFloat16": "bf16", "Half": "fp16", "float": "fp32", "tf32": "fp32", "double": "fp64"}
    wanted = Problem.gemm("mm", m=m, n=n, k=k, dtype=names[dtype], layout=layout, tf32=dtype == "tf32")
    assert (row.problem, left) == (wanted, {})
    assert row.times is not None
    assert row.times.median_us == ms * 1000


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "a,b,c,d,e",
        "GemmTunableOp_Half_XX,tn_1_1_1_ld_1_1_1,Default,1.0",
        "GemmTunableOp_Half_TN,tn_1_1,Default,1.0",
        "GemmTunableOp_Half_TN,tn_99999999999_1_1_ld_1_1_1,Default,1.0",
        "GemmTunableOp_Half_TN,tn_9999999999_1_1_ld_1_1_9999999999,Default,1.0",
        "GemmTunableOp_Half_TN,tn_1_1_1_ld_1_1_1,Default,-1.0",
        "GemmTunableOp_Half_TN,tn_1_1_1_ld_1_1_1,Default;DROP TABLE,1.0",
        "Validator,a b,c",
    ],
)
def test_a_bad_line_of_tunableop_is_refused_by_number(tmp_path, line):
    path = write(tmp_path / "results.csv", f"Validator,PT_VERSION,2.13.0\n{line}\n")
    with pytest.raises(InputError, match=r"results\.csv:2: ") as error:
        rows_of("tunableop", path, on_h200())
    assert "\n" not in str(error.value)
