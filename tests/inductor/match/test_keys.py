"""What becomes part of the key: layouts, sizes, bias, scalars, fusion context, numerics; results stay right."""

import pytest
import torch
import torch._inductor.config as inductor_config
from kit import gpu, program_batch
from torch import nn

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.generators.measure.program import set_numerics
from gemmdb.inductor import force
from gemmdb.inductor.match import epilogues, extract
from gemmdb.key.operands import default_numerics


def watch(model, *inputs, **options):
    """Compile with every GEMM left alone; returns the result and the problems that were seen."""
    seen = []
    with force(lambda problem: seen.append(problem)):
        torch._dynamo.reset()
        return torch.compile(model, **options)(*inputs), seen


WIDE = torch.randn(40, 72)


LAYOUTS = {
    "offset": (WIDE[1:33, 8:], "row-padded:4"),
    "odd offset": (WIDE[:32, 1:65], "row-padded:1"),
    "padded": (WIDE[:32, :64], "row-padded:4"),
    "transposed": (torch.randn(64, 32).t(), "col:4"),
    "broadcast": (torch.randn(1, 64).expand(32, 64), "broadcast:4"),
}


def test_storage_offsets_padded_and_sliced_operands(kit):
    """Each with a weight of another N."""
    inputs = [(a, torch.randn(64, 16 + 4 * i)) for i, (a, _) in enumerate(LAYOUTS.values())]
    with force(lambda problem: None):
        program_batch.compiled([torch.matmul] * len(inputs), inputs)
    found = [problem.a.text for problem in map(Problem.parse, kit.problems())]
    assert found == [f"fp32:{layout}" for _, layout in LAYOUTS.values()]
    with inductor_config.patch(freezing=True), torch.no_grad(), force(kit.CPP):
        program_batch.compiled([Constant(w) for _, w in inputs], [(a,) for a, _ in inputs])


class Constant(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, x):
        return x @ self.w


def test_zero_size_and_size_one_dimensions(kit):
    sizes = [(0, 16, 8), (4, 0, 8), (4, 16, 0), (1, 16, 8), (4, 1, 8), (4, 16, 1), (1, 1, 1)]
    inputs = [(torch.randn(m, k), torch.randn(k, n)) for m, k, n in sizes]
    with force(lambda problem: kit.ATEN):
        program_batch.compiled([torch.matmul] * len(sizes), inputs)
    assert gemmdb.inductor.stats()["errors"] == []
    with inductor_config.patch(freezing=True), torch.no_grad(), force(kit.CPP):
        program_batch.compiled([Constant(w) for _, w in inputs], [(a,) for a, _ in inputs])
    assert gemmdb.inductor.stats()["errors"] == []


ADDMMS = {
    ((8, 32), 1, 1): ("full", "unit"), ((9, 1), 1, 1): ("column", "unit"), ((1, 32), 2.0, 0.4): ("1d", "general"),
    ((32,), 1, 1): ("1d", "unit"), ((32,), 1, 0): ("1d", "beta0"),
}  # fmt: skip


def test_addmm_bias_and_scalars_are_in_the_key():
    rows = range(8, 8 + len(ADDMMS))
    programs = [lambda b, x, w, a=a, beta=beta: torch.addmm(b, x, w, alpha=a, beta=beta) for _, a, beta in ADDMMS]
    inputs = [
        (torch.randn(bias), torch.randn(m, 64), torch.randn(64, 32)) for m, (bias, *_) in zip(rows, ADDMMS, strict=True)
    ]
    seen = {}
    with force(lambda problem: seen.update({problem.m: problem})):
        program_batch.compiled(programs, inputs)
    for m, ((_, _, beta), wanted) in zip(rows, ADDMMS.items(), strict=True):
        # Inductor drops the bias of beta=0
        if beta or seen[m].op == "addmm":
            assert (seen[m].bias.kind, seen[m].scalars) == wanted


def test_int_mm_with_its_scale(kit):
    x = torch.randint(-100, 100, (32, 64), dtype=torch.int8)
    w = torch.randint(-100, 100, (16, 64), dtype=torch.int8)
    s = torch.rand(16)

    def product(x, w, s):
        return (torch._int_mm(x, w.t()) * s).bfloat16()

    found, seen = watch(product, x, w, s)
    kit.close(found, product(x, w, s))
    assert (seen[0].op, seen[0].fusion, seen[0].out, seen[0].b.layout.order) == ("int_mm", "scale", "bf16", "col")
    plain, seen = watch(lambda x, w: torch._int_mm(x, w.t()), x, w)
    assert (seen[0].fusion, seen[0].out) == ("none", "int32")
    assert torch.equal(plain, torch._int_mm(x, w.t()))


NORM = nn.RMSNorm(32)
ELEMENTWISE = {
    "norm of a residual sum": (lambda y, r: NORM(r + y), "none"),
    "norm of heads": (lambda y, r: nn.functional.rms_norm((y * 2).view(-1, 4, 8), (8,)), "none"),
    "softmax": (lambda y, r: torch.softmax(y * 0.5, -1), "none"),
    "sum of all": (lambda y, r: torch.relu(y).sum(), "none"),
    "largest of a row": (lambda y, r: torch.relu(y).amax(1), "none"),
    "sum of columns": (lambda y, r: torch.relu(y).sum(0), "none"),
    "another product": (lambda y, r: (torch.relu(y) @ r.t()).sum(-1), "pointwise"),
    "residual sum": (lambda y, r: r + torch.relu(y), "pointwise:reads1"),
}


def test_what_becomes_part_of_a_reduction_is_no_epilogue():
    """Inductor joins elementwise work with a reduction of its rows, not with the GEMM before it."""
    rows = range(8, 8 + len(ELEMENTWISE))
    programs = [lambda x, w, r, after=after: after(x @ w, r) for after, _ in ELEMENTWISE.values()]
    inputs = [(torch.randn(m, 64), torch.randn(64, 32), torch.randn(m, 32)) for m in rows]
    _, seen = watch(program_batch.ProgramBatch(programs), *inputs)
    for m, (name, (_, fusion)) in zip(rows, ELEMENTWISE.items(), strict=True):
        assert next(problem for problem in seen if problem.m == m).fusion == fusion, name


REDUCED = {
    "online softmax": lambda y: torch.ops.prims.prepare_softmax_online(y, 1),
    "online softmax of columns": lambda y: torch.ops.prims.prepare_softmax_online(y.t() * 2, 1),
    "norm of rows": lambda y: torch.ops.aten.linalg_vector_norm(y, 2, [-1]),
    "norm of columns": lambda y: torch.ops.aten.linalg_vector_norm(y, 2, [0]),
    "norm of all": lambda y: torch.ops.aten.linalg_vector_norm(y),
}


@pytest.mark.parametrize("after", REDUCED.values(), ids=REDUCED)
def test_reductions_that_have_no_tag_or_another_argument_first(after):
    """On a GPU, Inductor makes one operator of a softmax's maximum and sum before it asks."""
    import torch._inductor.inductor_prims
    from torch.fx.experimental.proxy_tensor import make_fx

    made = make_fx(lambda x, w: after(torch.relu(x @ w)), tracing_mode="fake")(torch.ones(8, 64), torch.ones(64, 32))
    (node,) = (node for node in made.graph.nodes if node.target is torch.ops.aten.mm.default)
    assert epilogues.fusion(node) == "none"


def test_reduced_precision_of_fp32_is_in_the_key():
    x, w = torch.randn(8, 64), torch.randn(64, 32)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        _, seen = watch(torch.matmul, x, w)
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen[0].numerics.fp32 == "bf16"


def test_activations_of_three_dimensions(kit):
    for dtype in (torch.float32, torch.bfloat16):
        gemmdb.inductor.reset_stats()
        model, x = nn.Linear(64, 32).eval().to(dtype), torch.randn(2, 4, 64, dtype=dtype)
        with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
            kit.close(kit.compiled(model, x), model(x))
        assert kit.lowered() == [kit.CPP]
        assert " m=8 n=32 k=64 " in kit.problems()[0]


EPILOGUES = [
    lambda y: y * 3, lambda y: y * 3.3 - 1.234, torch.relu, nn.functional.relu6, lambda y: y / y.shape[0],
    lambda y: y.double(), nn.functional.gelu, lambda y: y + y.mean(),
]  # fmt: skip


def test_epilogues_after_a_hit(kit):
    class Model(nn.Module):
        def __init__(self, epilogue):
            super().__init__()
            self.linear, self.epilogue = nn.Linear(64, 32), epilogue

        def forward(self, x):
            return self.epilogue(self.linear(x))

    models = [Model(epilogue) for epilogue in EPILOGUES]
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
        program_batch.compiled(models, [(torch.randn(8, 64),) for _ in models])
    assert kit.lowered() == [kit.CPP] * len(models)


def test_the_cpu_is_ieee_when_only_the_gpu_was_allowed_tf32(kit):
    """Torch refuses to read the old switch then."""
    found = kit.forked("""
        import torch, gemmdb.inductor
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with gemmdb.inductor.force(lambda problem: None):
            torch.compile(lambda x, w: x @ w)(torch.ones(2, 3), torch.ones(3, 4))
        stats = gemmdb.inductor.stats()
        print(json.dumps([stats["errors"], [p["problem"] for p in stats["products"]]]))
    """)
    assert found[0] == []
    assert [" fp32=ieee " in text for text in found[1]] == [True]


@pytest.mark.skipif(torch.__version__.startswith("2.11"), reason="torch compiles them from 2.12 on")
def test_unsigned_activations_are_a_problem_of_their_own(kit):
    """oneDNN's dynamic quantisation makes uint8 activations on CPUs."""
    x, w = torch.randint(0, 255, (32, 64), dtype=torch.uint8), torch.randint(-9, 9, (64, 48), dtype=torch.int8)
    found, seen = watch(torch._int_mm, x, w)
    assert torch.equal(found, torch._int_mm(x, w))
    assert (seen[0].a.dtype, seen[0].b.dtype, seen[0].numerics.acc) == ("uint8", "int8", "int32")
    assert gemmdb.inductor.stats()["uncovered"] == {}


FLAGS = {
    "coordinate_descent_tuning": True, "coordinate_descent_check_all_directions": True,
    "force_fuse_int_mm_with_mul": True, "epilogue_fusion": True,
}  # fmt: skip


def test_what_torchao_sets_changes_no_problem(kit):
    x, w = torch.randint(-9, 9, (32, 64), dtype=torch.int8), torch.randint(-9, 9, (48, 64), dtype=torch.int8)
    scale, half = torch.rand(48), torch.randn(32, 64).bfloat16()

    def model(x, w, scale, half):
        return (torch._int_mm(x, w.t()) * scale).to(torch.bfloat16), half @ half.t(), half @ w.t().to(half.dtype)

    def problems(**flags):
        gemmdb.inductor.reset_stats()
        with force(lambda problem: None), inductor_config.patch(flags):
            kit.compiled(model, x, w, scale, half)
        return kit.problems()

    plain = problems()
    torch.set_float32_matmul_precision("high")
    try:
        assert problems(**FLAGS) == plain
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(plain) == 3


def test_a_cpu_without_units_for_tf32_multiplies_fp32_in_full(kit):
    """torch allows TF32 everywhere with the precision "high"; oneDNN has it on CPUs with AMX for fp16 alone."""
    torch.set_float32_matmul_precision("high")
    try:
        _, (problem, *_) = watch(torch.matmul, torch.randn(32, 64), torch.randn(64, 16))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert problem.numerics.fp32 == ("tf32" if torch.cpu._is_amx_fp16_supported() else "ieee")


def test_what_a_test_measures_leaves_no_numerics_to_the_next():
    measured = Problem.gemm("scaled_mm", m=16, n=16, k=16, scales="row")
    assert not measured.numerics.reduced
    try:
        set_numerics(measured)
        assert not extract.numerics("bf16", "cuda").reduced
    finally:
        gpu.default_numerics()
    for dtype in ("bf16", "fp16", "fp32"):
        assert extract.numerics(dtype, "cuda") == default_numerics(dtype)
