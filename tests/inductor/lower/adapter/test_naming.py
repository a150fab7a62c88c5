"""A kernel that was compiled for a trial has the same source in a graph, name included."""

from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from kit.inductor import ROOT, WITHOUT_GPU, run
from torch._inductor import config as inductor_config
from torch._inductor.utils import Placeholder
from torch._inductor.virtualized import V

from gemmdb.inductor.lower.adapter import codegen


class Scheduling:
    """Names kernels as Inductor does where it generates Triton, which needs a GPU's compiler."""

    def define_kernel(self, src_code, node_schedule, kernel):
        wrapper, fused = V.graph.wrapper_code, "fused_add" if inductor_config.triton.descriptive_names else ""
        name = "_".join(["triton", "poi", fused, wrapper.next_kernel_suffix()])
        return wrapper.src_to_kernel.setdefault(src_code, name)


@pytest.fixture
def define(monkeypatch):
    """A function that names the kernels of one graph, given by their code."""
    monkeypatch.setattr(codegen, "_known", {})
    monkeypatch.setattr(codegen, "get_fused_kernel_name", lambda nodes, how: "fused_mul")
    wrapped = codegen.keeping_names(Scheduling.define_kernel)

    def define(*codes):
        numbers = iter("0123456789")
        graph = SimpleNamespace(
            wrapper_code=SimpleNamespace(src_to_kernel={}, next_kernel_suffix=lambda: next(numbers))
        )
        with V.set_graph_handler(graph):
            return [wrapped(Scheduling(), f"def {Placeholder.KERNEL_NAME}: {code}", [], None) for code in codes]

    return define


def test_a_kernel_of_a_trial_keeps_its_name_and_others_keep_inductors(define):
    before = define("one", "two")
    assert before == ["triton_poi_fused_add_0", "triton_poi_fused_add_1"]
    with codegen.trying():
        (tried,) = define("one")
    assert tried.startswith("triton_poi__fused_mul_")
    assert define("two", "one", "three") == ["triton_poi_fused_add_0", tried, "triton_poi_fused_add_1"]
    assert define("one", "one") == [tried, tried]


def test_two_kernels_of_trials_have_two_names(define):
    with codegen.trying():
        assert len(set(define("one", "two"))) == 2


def test_after_a_trial_kernels_are_numbered_again(define):
    with pytest.raises(KeyError), codegen.trying():
        raise KeyError
    assert define("new") == ["triton_poi_fused_add_0"]


def sources():
    """The kernels of a trial of a GEMM with a ReLU, and of a graph that has it, by name."""
    from kit import no_gpu
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from gemmdb.inductor.entry import enable
    from gemmdb.inductor.lower.adapter import emission

    enable.install()
    sizes = (64, 64, torch.float16)
    with torch.no_grad(), emission.no_gpu_context(), inductor_config.patch(compile_threads=1):
        with FakeTensorMode():
            given = [torch.empty(64, 64, dtype=torch.float16, device="cuda") for _ in range(2)]
            graph = make_fx(lambda a, b: (torch.mm(a, b).relu(),))(*given)
        fakes = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        tried = emission.generate(graph, fakes).source
    code, _ = no_gpu.output_code(lambda a, b: (torch.mm(torch.softmax(a, -1), b).relu(), b * 3), None, sizes, sizes)
    return [dict(emission.triton_kernels(one)) for one in (tried, code)]


@WITHOUT_GPU
def test_the_source_is_the_same_to_the_byte():
    path = f"{ROOT}:{ROOT / 'tests'}:{Path(__file__).parent}"
    program = f"from kit import no_gpu; from {Path(__file__).stem} import sources; print(json.dumps(sources()))"
    tried, graph = run(program, {"PYTHONPATH": path})
    (name,) = tried
    assert name.startswith("triton_poi__fused_")
    assert graph[name] == tried[name]
    assert len(graph) == 3
