"""Files of Inductor, TunableOp and vLLM: what they say becomes rows, the rest is counted, and bad input is refused."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdb.devices import registry
from gemmdb.errors import InputError
from gemmdb.exchange.foreign.given import SPREAD, Given
from gemmdb.exchange.foreign.readers import FOREIGN
from gemmdb.exchange.importing import load
from gemmdb.exchange.report import Tally
from gemmdb.generators.measure.cuda.backend import VERSION
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

CPU = Device("cpu", "cpu", "Test CPU", 2)


def resolve(name: str | None) -> Device:
    found = CPU if name == "cpu" else registry.find(name or "")
    if found is None:
        raise InputError(f"unknown device {name!r}")
    return found


H200 = resolve("NVIDIA H200")


def asked(**said) -> Given:
    return Given(resolve, **{"device": "NVIDIA H200", "cuda": "13.0", **said})


def rows_of(kind: str, path: Path, given: Given):
    """The rows of a file, and what was left as a dictionary from reason to count."""
    tally = Tally()
    content = FOREIGN[kind](path, tally, given)
    return list(content.rows), {left.reason: left.count for left in tally.left}


def tile(m, n, k, warps, stages, group=8) -> Config:
    return Config.of(
        "triton", "inductor_mm", block_m=m, block_n=n, block_k=k, group_m=group, warps=warps, stages=stages
    )


# --- Inductor's log -----------------------------------------------------------------------------------------------

LOG = [
    {
        "(16, 4096, 512)": [
            {"type": "cublas", "time": 0.02},
            {"type": "triton", "time": 0.01, "BLOCK_M": 16, "BLOCK_K": 128, "BLOCK_N": 32, "num_stages": 4,
             "num_warps": 2, "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 2},
            {"type": "triton", "time": float("inf"), "BLOCK_M": 128, "BLOCK_K": 128, "BLOCK_N": 128, "num_stages": 5,
             "num_warps": 8, "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 2},
        ],
        "kernel_type": "mm",
    }
]  # fmt: skip


def write(path: Path, document) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=4))
    return path


@pytest.mark.parametrize("between", [[], [{"invoke": "(16, 4096, 512)"}]], ids=["races alone", "and invocations"])
def test_a_log_becomes_verdicts(tmp_path, between):
    path = write(tmp_path / "mm.json", [*between, *LOG, *between])
    read = functools.partial(FOREIGN["inductor-log"], given=asked(dtype="bf16"))
    found = load(path, tmp_path / "a.db", "inductor-log", read)
    assert (found.carried, found.left) == (3, ())
    problem = Problem.gemm("mm", m=16, n=512, k=4096)
    with Table.open(tmp_path / "a.db") as table:
        verdict = table.verdict(problem, H200)
        assert verdict is not None
        assert verdict.pick == tile(16, 32, 128, 2, 4)
        assert (verdict.speedup, verdict.aten_us, verdict.klass) == (2.0, 20.0, "cuda13")
        statuses = {row.config.text: row.status for row in table.rows(problem, H200)}
        assert statuses[tile(128, 128, 128, 8, 5).text] is Status.ERROR
        (run,) = table.provenance()
        assert (run["imported"], run["file"]) == ("inductor-log", "mm.json")
    # Again: nothing new. The same file said to be of another dtype: another run.
    assert load(path, tmp_path / "a.db", "inductor-log", read).total == 3
    other = functools.partial(FOREIGN["inductor-log"], given=asked(dtype="fp16"))
    assert load(path, tmp_path / "a.db", "inductor-log", other).total == 6


def test_a_gain_within_the_unknown_noise_is_none(tmp_path):
    document = json.loads(json.dumps(LOG))
    document[0]["(16, 4096, 512)"][1]["time"] = 0.018
    read = functools.partial(FOREIGN["inductor-log"], given=asked(dtype="bf16"))
    load(write(tmp_path / "mm.json", document), tmp_path / "a.db", "inductor-log", read)
    with Table.open(tmp_path / "a.db") as table:
        verdict = table.verdict(Problem.gemm("mm", m=16, n=512, k=4096), H200)
        assert verdict is not None
        assert verdict.pick == ATEN


MILLISECONDS = st.floats(1e-3, 1e3)
BLOCKS = st.sampled_from([16, 32, 64, 128])
TILES = st.tuples(BLOCKS, BLOCKS, BLOCKS, st.sampled_from([2, 4, 8]), st.integers(1, 5))


@settings(max_examples=30)
@given(
    races=st.dictionaries(
        st.tuples(*(st.integers(1, 9000) for _ in range(3))),
        st.tuples(MILLISECONDS, st.dictionaries(TILES, MILLISECONDS, max_size=5)),
        max_size=4,
    )
)
def test_every_time_of_a_log_is_kept(races, tmp_path_factory):
    document = []
    for (m, k, n), (aten, timed) in races.items():
        choices = [{"type": "cublas", "time": aten}]
        for (bm, bn, bk, warps, stages), ms in timed.items():
            choices.append({"type": "triton", "time": ms, "BLOCK_M": bm, "BLOCK_N": bn, "BLOCK_K": bk,
                            "num_warps": warps, "num_stages": stages})  # fmt: skip
        document.append({str((m, k, n)): choices, "kernel_type": "mm"})
    path = write(tmp_path_factory.mktemp("log") / "mm.json", document)
    rows, left = rows_of("inductor-log", path, asked(dtype="fp16"))
    assert left == {}
    wanted = {
        (m, n, k, config): (ms * 1000, aten * 1000)
        for (m, k, n), (aten, timed) in races.items()
        for config, ms in [(ATEN, aten), *((tile(*one), ms) for one, ms in timed.items())]
    }
    assert wanted == {
        (r.problem.m, r.problem.n, r.problem.k, r.config): (r.times.median_us, r.times.aten_us) for r in rows if r.times
    }
    assert all(r.times and r.times.low_us == r.times.median_us * (1 - SPREAD) for r in rows)
    assert all((r.status is Status.OK) == bool(races[r.problem.m, r.problem.k, r.problem.n][1]) for r in rows)


def test_what_a_log_cannot_say_is_counted(tmp_path):
    document = json.loads(json.dumps(LOG))
    entry = document[0].pop("(16, 4096, 512)")
    twice = {"(8, 64, 64)": [entry[0], entry[1], entry[1], None], "kernel_type": "mm"}
    document += [
        twice,
        {"(s77, 64, 64)": entry, "kernel_type": "mm"},
        {"(8, 64, 64)": entry, "kernel_type": "bmm"},
        {"(9, 64, 64)": entry[1:], "kernel_type": "mm"},
        {"(10, 64, 64)": [entry[0], entry[1] | {"BLOCK_M": 8}], "kernel_type": "mm"},
    ]
    rows, left = rows_of("inductor-log", write(tmp_path / "mm.json", document), asked(dtype="bf16"))
    assert left == {
        "several templates have this tile, and the log does not say which is which": 2,
        "the log does not describe the choice (null)": 1,
        "a size is symbolic": 3,
        "the log does not describe a product of bmm": 3,
        "ATen has no time in the race, so no time can be compared with it": 2,
        "the tile is outside what gemmdb takes": 1,
    }
    # ATen alone is left of these races, and it does not win them by that.
    assert {row.config for row in rows} == {ATEN}
    assert {row.status for row in rows} == {Status.SLOW}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ('[\n{"(1, 1, 1)": [\n{]', ":3: not JSON"),
        ("[1]", "is no object"),
        ('[\n{\n"(1, 1, 1)": 5}]', ":3: not a log"),
        ('[\n{\n"(1, 1)": []}]', ":3: '(1, 1)' is not (M, K, N)"),
        ('[\n{\n"(1, 1, __import__)": []}]', "a size is symbolic"),
        ('[\n{\n"(1, 1, 1)": [5]}]', ":3: not a choice"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas"}]}]', ":3: a time must be"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas", "time": NaN}]}]', ":3: a time must be"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas", "time": true}]}]', ":3: a time must be"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas", "time": -1}]}]', ":3: -1 is no possible time"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas", "time": 1e300}]}]', ":3: 1e+300 is no possible time"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas", "time": ' + "9" * 400 + "}]}]", ":3: a time must be"),
        ('[\n{\n"(1, 1, 1)": [{"type": "triton", "time": 1, "BLOCK_M": "os"}]}]', ":3: BLOCK_M"),
        ('[\n{\n"(9999999999, 1, 1)": [{"type": "cublas", "time": 1}]}]', ":3: "),
    ],
)
def test_a_bad_log_is_refused_with_its_line(tmp_path, document, said):
    path = write(tmp_path / "bad.json", document)
    try:
        _, left = rows_of("inductor-log", path, asked(dtype="bf16", op="mm"))
        found = " ".join(left)
    except InputError as error:
        found = str(error)
    assert said in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ({"device": None}, "--device is missing"),
        ({"cuda": None}, "--cuda is missing"),
        ({"dtype": None}, "--dtype is missing"),
        ({}, r"--op is missing: .*mm\.json:3 does not say the op"),
    ],
)
def test_what_the_caller_must_say_is_named(tmp_path, said, missing):
    unnamed = [{"(16, 4096, 512)": LOG[0]["(16, 4096, 512)"]}]
    path = write(tmp_path / "mm.json", unnamed)
    with pytest.raises(InputError, match=missing):
        rows_of("inductor-log", path, asked(**{"dtype": "bf16", **said}))
    (rows, left) = rows_of("inductor-log", path, asked(dtype="bf16", op="mm"))
    assert (len(rows), left) == (3, {})


# --- Inductor's autotune cache --------------------------------------------------------------------------------------

DIGEST = "c" + "abcdefghij" * 5
CODE = """\
@triton_heuristics.template(
    num_stages=3,
    num_warps=8,
    triton_meta={'signature': {}},
)
@triton.jit
def triton_mm(arg_A, arg_B, out_ptr0):
    EVEN_K : tl.constexpr = True
    GROUP_M : tl.constexpr = 8
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 128
    BLOCK_K : tl.constexpr = 32
"""
MM = "[('cuda', 'torch.bfloat16', 16, 4096, 4096, 1, 0), ('cuda', 'torch.bfloat16', 4096, 512, 1, 4096, 0)]"
ADDMM = (
    "[('cuda', 'torch.bfloat16', 16, 512, 0, 1, 0), ('cuda', 'torch.bfloat16', 16, 4096, 4096, 1, 0), "
    "('cuda', 'torch.bfloat16', 4096, 512, 1, 4096, 0)]"
)
SYSTEM = {"device": {"name": "NVIDIA H200"}, "version": {"triton": "x", "cuda": "13.0"}, "hash": "h"}


@pytest.fixture
def cache(tmp_path):
    """Writes Inductor's folder: `cache({op: {inputs: {precision: {choice: ms}}}})` is the path of the cache in it."""

    def make(content, system=SYSTEM, code=CODE) -> Path:
        (tmp_path / "cache").mkdir()
        (tmp_path / DIGEST[1:3]).mkdir()
        (tmp_path / DIGEST[1:3] / f"{DIGEST}.py").write_text(code)
        return write(tmp_path / "cache" / "0123", {"system": system, "cache": content})

    return make


def test_a_cache_becomes_rows(cache):
    kernel, aten = f"triton_mm-{DIGEST}", f"addmm-alpha=1-beta=1-{DIGEST}"
    path = cache({
        "mm": {MM: {"highest": {f"mm-{DIGEST}": 0.02, kernel: 0.01}}},
        "addmm": {ADDMM: {"highest": {aten: 0.03, f"bias_{aten}": 0.02, kernel: 0.01}}},
    })  # fmt: skip
    rows, left = rows_of("inductor-cache", path, Given(resolve))
    assert left == {}
    mm, addmm = Problem.gemm("mm", m=16, n=512, k=4096), Problem.gemm("addmm", m=16, n=512, k=4096)
    assert {(r.problem, r.config, r.times.median_us, r.times.aten_us) for r in rows if r.times} == {
        (problem, config, us, 20.0)
        for problem in (mm, addmm)
        for config, us in ((ATEN, 20.0), (tile(64, 128, 32, 8, 3), 10.0))
    }
    assert {row.toolchain.cuda for row in rows} == {"13.0"}
    assert {row.device for row in rows} == {H200}


def test_what_a_cache_cannot_say_is_counted(cache, tmp_path):
    gone = "c" + "z" * 50
    path = cache({
        "mm": {
            MM: {"highest": {f"mm-{DIGEST}": 0.02, f"triton_mm-{gone}": 0.01, "cutlass-x": 0.005}},
            MM.replace("bfloat16", "float32"): {"odd": {f"mm-{DIGEST}": 0.02}},
            MM.replace("bfloat16", "complex64"): {"highest": {f"mm-{DIGEST}": 0.02}},
            MM.replace("cuda", "cpu"): {"highest": {f"mm-{DIGEST}": 0.02}},
        },
        "convolution": {MM: {"highest": {"x": 1.0}}},
    })  # fmt: skip
    rows, left = rows_of("inductor-cache", path, Given(resolve))
    assert sorted(left.values()) == [1] * 6
    assert [row.status for row in rows] == [Status.SLOW], "a race whose winner is not here decides nothing"


@pytest.mark.parametrize("digest", ["../../etc/passwd" + "a" * 20, "c" + "." * 30, "c/" + "a" * 30])
def test_a_choice_names_no_other_file(cache, digest):
    path = cache({"mm": {MM: {"highest": {f"mm-{DIGEST}": 0.02, f"triton_mm-{digest}": 0.01}}}})
    _, left = rows_of("inductor-cache", path, Given(resolve))
    assert left == {"a choice that is neither ATen nor a template that gemmdb knows": 1}


def test_the_code_of_a_choice_is_not_run(cache, tmp_path):
    path = cache(
        {"mm": {MM: {"highest": {f"mm-{DIGEST}": 0.02, f"triton_mm-{DIGEST}": 0.01}}}},
        code=f"open({str(tmp_path / 'ran')!r}, 'w')\n{CODE}",
    )
    rows, _ = rows_of("inductor-cache", path, Given(resolve))
    assert len(rows) == 2
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "no object `cache`"),
        ({"mm": 5}, ":7: not Inductor's autotune cache"),
        ({"mm": {"os.system('x')": {}}}, ""),
        ({"mm": {"os.system('x')": {"highest": {"x": 1.0}}}}, "not the inputs of a product"),
        ({"mm": {MM: {"highest": {"x": "1"}}}}, "a time must be"),
        ({"mm": {MM: {"highest": [1]}}}, "is no object"),
    ],
)
def test_a_bad_cache_is_refused(cache, content, said):
    path = cache(content)
    if not said:
        assert rows_of("inductor-cache", path, Given(resolve)) == ([], {})
        return
    with pytest.raises(InputError) as error:
        rows_of("inductor-cache", path, Given(resolve))
    assert str(path) in str(error.value)
    assert said.removeprefix(":7") in str(error.value)


def test_a_device_that_contradicts_the_file_is_refused(cache):
    path = cache({"mm": {}})
    with pytest.raises(InputError, match="names the device 'NVIDIA H200', and --device is 'NVIDIA L4'"):
        rows_of("inductor-cache", path, Given(resolve, device="NVIDIA L4"))


# --- TunableOp ------------------------------------------------------------------------------------------------------

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
    rows, left = rows_of("tunableop", path, asked())
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
    rows, left = rows_of("tunableop", write(tmp_path / "r.csv", f"{older}\n{newer}\n"), asked())
    assert {row.problem for row in rows} == {Problem.gemm("mm", m=16, n=512, k=4096, dtype="fp16")}
    assert (len(rows), left) == (2, {})


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
    ((row,), left) = rows_of("tunableop", path, asked())
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
        "GemmTunableOp_Half_TN,tn_1_1_1_ld_1_1_1,Default,nan",
        "GemmTunableOp_Half_TN,tn_1_1_1_ld_1_1_1,Default,-1.0",
        "GemmTunableOp_Half_TN,tn_1_1_1_ld_1_1_1,Default;DROP TABLE,1.0",
        "Validator,a b,c",
    ],
)
def test_a_bad_line_of_tunableop_is_refused_by_number(tmp_path, line):
    path = write(tmp_path / "results.csv", f"Validator,PT_VERSION,2.13.0\n{line}\n")
    with pytest.raises(InputError, match=r"results\.csv:2: ") as error:
        rows_of("tunableop", path, asked())
    assert "\n" not in str(error.value)


# --- vLLM -----------------------------------------------------------------------------------------------------------

GOOD = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 8, "num_warps": 4, "num_stages": 4}


def test_configs_by_m_become_modelled_rows(tmp_path):
    path = write(tmp_path / "N=7168,K=2048,device_name=NVIDIA_H200,dtype=int8_w8a8.json", {"16": GOOD, "32": GOOD})
    rows, left = rows_of("vllm", path, Given(resolve))
    wanted = [Problem.gemm("int_mm", m=m, n=7168, k=2048, fusion="scale") for m in (16, 32)]
    assert {row.problem for row in rows} <= set(wanted)
    assert len(rows) // 2 + sum(left.values()) == 2
    assert rows, left
    assert {row.protocol.clock for row in rows} == {"model"}
    assert {row.config for row in rows} == {ATEN, tile(16, 64, 128, 4, 4)}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("E=8,N=14336,device_name=NVIDIA_H200.json", "mixture of experts"),
        ("N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json", "scales of blocks"),
        ("N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8_per_token.json", "does not cover"),
    ],
)
def test_products_without_an_op_are_counted(tmp_path, name, words):
    rows, left = rows_of("vllm", write(tmp_path / name, {"1": GOOD, "2": GOOD}), Given(resolve, dtype="bf16"))
    ((reason, count),) = left.items()
    assert (rows, count) == ([], 2)
    assert words in reason


def test_parameters_that_the_kernel_lacks_are_counted(tmp_path):
    part = {name: value for name, value in GOOD.items() if not name.startswith("num_")}
    configs = {"16": GOOD | {"SPLIT_K": 4}, "32": GOOD | {"BLOCK_SIZE_M": 8}, "64": GOOD | {"USE\n": [1]}, "8": part}
    _, left = rows_of("vllm", write(tmp_path / "a.json", configs), asked(dtype="bf16", n=4096, k=4096))
    assert left == {
        "the kernel has no SPLIT_K": 1,
        "the tile is outside what gemmdb takes": 1,
        "the kernel has no USE": 1,
        "the config does not say num_warps, num_stages": 1,
    }


def test_a_config_without_groups_of_rows_has_groups_of_one(tmp_path):
    part = {name: value for name, value in GOOD.items() if name != "GROUP_SIZE_M"}
    rows, left = rows_of("vllm", write(tmp_path / "a.json", {"16": part}), asked(dtype="bf16", n=7168, k=2048))
    assert (left, [row.config.values["group_m"] for row in rows if row.config != ATEN]) == ({}, [1])


def test_a_product_without_an_op_needs_no_known_device(tmp_path):
    path = write(tmp_path / "E=8,N=64,device_name=AMD_Instinct_MI300X.json", {"1": GOOD})
    _, left = rows_of("vllm", path, Given(resolve))
    assert list(left.values()) == [1]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("[]", ":1: not an object"),
        ('{\n"a": {}}', ":2: 'a' is no M"),
        ('{\n"0": {}}', ":2: '0' is no M"),
        ('{\n"16": 5}', ":2: not a config"),
        ('{\n"16": {"num_warps": 1e9}}', ":2: num_warps must be an integer"),
        ('{\n"16": {"num_warps": 99999999999}}', ":2: num_warps must be an integer"),
    ],
)
def test_bad_configs_by_m_are_refused_with_their_line(tmp_path, document, said):
    path = write(tmp_path / "bad.json", document)
    with pytest.raises(InputError) as error:
        rows_of("vllm", path, asked(dtype="bf16", n=64, k=64))
    assert f"{path}{said}" in str(error.value)


def test_sizes_that_nobody_names_are_asked_for(tmp_path):
    path = write(tmp_path / "a.json", {"16": GOOD})
    with pytest.raises(InputError, match="--k is missing"):
        rows_of("vllm", path, asked(dtype="bf16", n=64))
    named = write(tmp_path / "N=64,K=64.json", {"16": GOOD})
    with pytest.raises(InputError, match="its name says N=64, and --n is 128"):
        rows_of("vllm", named, asked(dtype="bf16", n=128))


def tensor(dtype: str, rows: int, columns: int, transposed: bool, batch: tuple[int, ...] = ()) -> tuple[object, ...]:
    """What Inductor's cache says of a dense operand: device, dtype, sizes, strides, offset."""
    strides = (1, rows) if transposed else (columns, 1)
    step = (rows * columns,) if batch else ()
    return ("cuda", f"torch.{dtype}", *batch, rows, columns, *step, *strides, 0)


@settings(max_examples=60)
@given(
    sizes=st.tuples(*(st.integers(2, 9000) for _ in range(3))),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    dtype=st.sampled_from([("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")]),
    op=st.sampled_from(["mm", "addmm", "bmm"]),
    bias=st.sampled_from(["1d", "column", "full"]),
    precision=st.sampled_from(["highest", "high"]),
    ms=MILLISECONDS,
)
def test_every_race_of_a_cache_is_its_problem(sizes, layout, dtype, op, bias, precision, ms, tmp_path_factory):
    (m, n, k), (torch, ours) = sizes, dtype
    batch = (5,) if op == "bmm" else ()
    inputs = [tensor(torch, m, k, layout[0] == "t", batch), tensor(torch, k, n, layout[1] == "t", batch)]
    if op == "addmm":
        strides = {"1d": (0, 1), "column": (1, 0), "full": (n, 1)}[bias]
        inputs.insert(0, ("cuda", f"torch.{torch}", m, n, *strides, 0))
    folder = tmp_path_factory.mktemp("code")
    (folder / "cache").mkdir()
    path = write(
        folder / "cache" / "x", {"system": SYSTEM, "cache": {op: {repr(inputs): {precision: {f"{op}-{DIGEST}": ms}}}}}
    )
    ((row,), left) = rows_of("inductor-cache", path, Given(resolve))
    words = {"addmm": {"bias": bias}, "bmm": {"batch": 5}}.get(op, {})
    tf32 = precision == "high" and ours == "fp32"
    wanted = Problem.gemm(op, m=m, n=n, k=k, dtype=ours, layout=layout, tf32=tf32, **words)
    assert (row.problem, row.config, left) == (wanted, ATEN, {})
    assert row.times is not None
    assert row.times.median_us == ms * 1000


@settings(max_examples=40)
@given(configs=st.dictionaries(st.integers(1, 5000), TILES, max_size=6))
def test_every_config_by_m_is_a_row_or_counted(configs, tmp_path_factory):
    document = {
        str(m): {"BLOCK_SIZE_M": bm, "BLOCK_SIZE_N": bn, "BLOCK_SIZE_K": bk, "num_warps": warps, "num_stages": stages}
        for m, (bm, bn, bk, warps, stages) in configs.items()
    }
    path = write(tmp_path_factory.mktemp("vllm") / "N=7168,K=2048,dtype=int8_w8a8.json", document)
    rows, left = rows_of("vllm", path, asked())
    kept = {row.problem.m: row.config for row in rows if row.config != ATEN}
    assert len(kept) + sum(left.values()) == len(configs)
    for m, config in kept.items():
        bm, bn, bk, warps, stages = configs[m]
        assert config == Config.of("triton", "inductor_mm", **{**tile(bm, bn, bk, warps, stages).values, "group_m": 1})


def test_in_one_table_the_rows_of_a_build_answer(tmp_path):
    problem = Problem.gemm("mm", m=16, n=512, k=4096)
    out = tmp_path / "mine.db"
    times = Times(20.0, 19.9, 20.1, 30, 20.0)
    protocol = Protocol("graph", "cold", 20, 30, version=VERSION)
    built = Measurement(problem, ATEN, H200, protocol, Toolchain(cuda="13.0"), "run-1", Status.OK, times)
    with Store.open(out) as store:
        store.add([built])
        store.refresh()
    read = functools.partial(FOREIGN["inductor-log"], given=asked(dtype="bf16", torch="9.9"))
    load(write(tmp_path / "mm.json", LOG), out, "inductor-log", read)
    with Table.open(out) as table:
        assert len(table.verdicts(problem, H200)) == 2
        verdict = table.verdict(problem, H200)
    assert verdict is not None
    assert (verdict.pick, verdict.protocol) == (ATEN, protocol)
