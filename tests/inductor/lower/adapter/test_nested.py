"""Code of a trial that is being compiled says when its kernels are ready."""

from concurrent.futures import Future
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from torch._inductor.codecache import LambdaFuture

from gemmdb.inductor.lower.adapter.emission import Begun


def test_code_is_ready_once_all_of_its_kernels_are():
    module, tasks = ModuleType("code"), (Future(), Future())
    vars(module).update({f"kernel_{place}": LambdaFuture(task.result, task) for place, task in enumerate(tasks)})
    module.constant = torch.ones(2)
    begun = Begun(module)
    assert not begun.ready(0.01)
    tasks[0].set_result("compiled")
    assert not begun.ready(-1.0)
    tasks[1].set_exception(RuntimeError("the compiler crashed"))
    assert begun.ready(-1.0), "whoever asks for the function learns what happened"


def test_code_without_kernels_that_compile_elsewhere_is_ready():
    module = ModuleType("code")
    module.kernel = LambdaFuture(lambda: "compiled in this process")
    assert Begun(module).ready(0.0)
