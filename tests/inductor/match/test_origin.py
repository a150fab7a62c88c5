"""Where GEMMs come from in the user's code, for each way into Inductor."""

from types import SimpleNamespace

import torch
import torch._inductor
from torch import nn

import gemmdb.inductor
from gemmdb.inductor.match.fx import origin
from gemmdb.workload import entries
from gemmdb.workload.entries import Origin

HERE = "test_origin.py:"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 24)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(24, 40))])

    def forward(self, x):
        return self.layers[0](self.up(x))


def recorded(path):
    return {entry.problem.n: [one.module for one in entry.origins] for entry in entries.read(path).entries}


def test_of_a_compiled_model_and_its_backward(kit, tmp_path):
    with gemmdb.inductor.record(tmp_path / "w.jsonl"):
        torch.compile(Model())(torch.ones(8, 16, requires_grad=True)).sum().backward()
    found = [(entry.problem, entry.origins) for entry in entries.read(tmp_path / "w.jsonl").entries]
    assert len(found) == 6
    assert {one.module for _, places in found for one in places} == {"up", "layers.0.0"}
    assert all(one.source.startswith(HERE) for _, places in found for one in places)


def test_of_programs_that_call_inductor_themselves(kit, tmp_path):
    x = torch.ones(8, 16)
    exported = torch.export.export(Model(), (x,)).module()
    with gemmdb.inductor.record(tmp_path / "compile.jsonl"), torch.no_grad():
        run = torch._inductor.compile(exported, [x])
        run(x)
        run(x)
    assert recorded(tmp_path / "compile.jsonl") == {24: ["up"], 40: ["layers.0.0"]}
    assert {entry.calls for entry in entries.read(tmp_path / "compile.jsonl").entries} == {2}


def test_of_a_function_without_modules(kit, tmp_path):
    with gemmdb.inductor.record(tmp_path / "w.jsonl"):
        torch.compile(lambda x, w: x @ w)(torch.ones(8, 16), torch.ones(16, 24))
    (entry,) = entries.read(tmp_path / "w.jsonl").entries
    (place,) = entry.origins
    assert place.module == ""
    assert place.source.startswith(HERE)


def test_odd_metadata_is_no_error():
    def node(**meta):
        return SimpleNamespace(meta=meta, all_input_nodes=[])

    assert origin(node()) == Origin()
    assert origin(node(nn_module_stack=3, stack_trace=b"")) == Origin()
    assert origin(node(nn_module_stack={"a": ("L['self']._modules['blocks'][0].up", None)})).module == "blocks.0.up"
    assert origin(node(nn_module_stack={"a": ("L['model'].up", None)})).module == "model.up"
    inside = f'File "/home/me/proj/model.py", line 7, in f\n  y\nFile "{torch.__file__}", line 9, in g\n'
    assert origin(node(stack_trace=inside)).source == "model.py:7"


def test_the_folder_of_a_package_is_named_and_no_other(tmp_path):
    """The folder of a program may be a user's name."""

    def source(path):
        frame = f'File "{path}", line 7, in f\n  y\n'
        return origin(SimpleNamespace(meta={"stack_trace": frame}, all_input_nodes=[])).source

    package, folder = tmp_path / "package", tmp_path / "alice"
    package.mkdir()
    folder.mkdir()
    (package / "__init__.py").touch()
    assert source(package / "model.py") == "package/model.py:7"
    assert source(folder / "serve.py") == "serve.py:7"


def test_a_node_that_a_pass_made_says_what_its_operands_say():
    operand = SimpleNamespace(meta={"stack_trace": 'File "a/b.py", line 3, in f'}, all_input_nodes=[])
    made = SimpleNamespace(meta={}, all_input_nodes=[operand])
    assert origin(made).source == "b.py:3"
