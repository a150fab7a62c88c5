"""`batch` under Inductor's template engine, and its code for a GPU, generated where there is none."""

import pytest

torch = pytest.importorskip("torch")

from kit import gpu
from kit.devices import H200
from kit.inductor import WITHOUT_GPU

from gemmdb.inductor.decide import legality
from gemmdb.inductor.lower.adapter import templates
from gemmdb.kernels import triton
from gemmdb.key.problem import Problem, Query

CONFIGS = {
    "plain": gpu.make("batch"), "swapped": gpu.make("batch", swap=1), "sliced": gpu.make("batch", split_k=3),
    "both": gpu.make("batch", swap=1, split_k=2, block_n=128),
}  # fmt: skip


def bmm(batch: int = 6, m: int = 100, n: int = 136, k: int = 200, **rest: object) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


def by_heads(q, k):
    """Heads of one sequence, where the projection wrote them."""
    return torch.bmm(q.view(96, 6, 192).transpose(0, 1), k.view(96, 6, 192).permute(1, 2, 0))


def scaled_scores(a, b):
    return torch.baddbmm(a.new_empty(1), a, b, beta=0, alpha=0.125)


def by_tokens(p, v):
    return torch.bmm(p, v).transpose(0, 1).reshape(100, -1)


def found():
    """By program and config: the problem, why the config was not taken, the kernels, and how the kernel is launched.
    Called in a process that pretends to have a GPU."""
    from kit import no_gpu

    half = torch.bfloat16
    programs = {
        "bmm": (torch.bmm, (6, 100, 200, half), (6, 200, 136, half)),
        "relu": (lambda a, b: torch.bmm(a, b.transpose(1, 2)).relu(), (6, 100, 200, half), (6, 136, 200, half)),
        "alpha": (scaled_scores, (6, 100, 200, half), (6, 200, 136, half)),
        "heads": (by_heads, (96, 1152, half), (96, 1152, half)),
        "tokens": (by_tokens, (6, 100, 200, half), (6, 200, 64, half)),
    }
    answers = {}
    for what, (program, *inputs) in programs.items():
        for name, config in CONFIGS.items():
            code, seen = no_gpu.output_code(program, config, *inputs)
            (launch,) = [line.strip() for line in code.splitlines() if ".run(" in line]
            (event,) = seen
            answers[f"{what}, {name}"] = event.problem, event.note, no_gpu.kernels(code), launch, "0.125" in code
    return answers


@WITHOUT_GPU
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("what", "fusion"),
    [("bmm", "none"), ("relu", "pointwise"), ("alpha", "none"), ("heads", "none"), ("tokens", "pointwise:permuted")],
)
def test_it_is_one_kernel_with_what_follows(what, fusion, name, answers):
    problem, note, kernels, launch, multiplied = answers[f"{what}, {name}"]
    assert multiplied == (what == "alpha")
    assert Problem.parse(problem).fusion == fusion
    assert note == ""
    assert [kernel.startswith("triton_tem_") for kernel in kernels] == [True]
    seen, values = Problem.parse(problem), CONFIGS[name].values
    tiles = -(-seen.m // values["block_m"]) * -(-seen.n // values["block_n"])
    assert f"{tiles}, {values['split_k']}, 6, stream=" in launch
    assert ("workspace_gemmdb" in launch) == (values["split_k"] > 1)


def test_the_grid_has_the_matrices_in_its_third_dimension():
    meta = {"BLOCK_M": 16, "BLOCK_N": 64, "SPLIT_K": 4}
    assert templates.grid("batch")(6, 33, 130, meta) == (9, 4, 6)
    assert templates.batched("batch")
    assert not templates.batched("tile")


@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        (gpu.make("batch"), bmm(), None),
        (gpu.make("batch", split_k=3), bmm(k=130, dtype="fp16", layout="tt"), None),
        (gpu.make("batch"), bmm(dtype="fp32", tf32=True), None),
        (gpu.make("batch"), bmm(batch=65_536, m=1, n=1), "65535 matrices"),
        (gpu.make("batch"), bmm(batch=1), "batch of one"),
        (gpu.make("batch"), bmm(k=1), "multiplies elements"),
        (gpu.make("batch", split_k=2), bmm(k=64), "fewer than 2 steps"),
        (gpu.make("batch"), bmm(dtype="fp64"), "no fp64"),
        (gpu.make("batch"), bmm(batch=512, m=4096, n=1024, k=16), "within the output"),
        (gpu.make("batch"), Problem.gemm("mm", m=64, n=64, k=64), "does not solve mm"),
    ],
    ids=lambda value: getattr(value, "text", value),
)
def test_what_it_takes(config, problem, reason):
    found = config.rejection(problem, H200)
    assert found is None if reason is None else reason in str(found)


def test_the_workspace_counts_the_tiles_of_all_matrices():
    sliced = gpu.make("batch", split_k=2)
    assert triton.tiles(sliced, bmm()) == 6 * 7 * 3
    assert legality.rejection(sliced, Query(bmm(), H200, {})) is None
    assert "16384 tiles" in str(legality.rejection(sliced, Query(bmm(batch=1000), H200, {})))
    assert "fixed sizes" in str(legality.rejection(gpu.make("batch"), Query(bmm(), H200, {"m": (1, 64)})))
