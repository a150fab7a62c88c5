"""Inductor is wrapped as soon as it is there, not before, and only where gemmdb is enabled; and what that costs."""

import pytest

pytestmark = pytest.mark.slow


def test_enable_before_torch_imports_no_torch_and_wraps_inductor_when_it_comes(kit):
    early, loaded, took, compiled, finders = kit.run("""
        import time
        import gemmdb.inductor
        start = time.process_time()
        gemmdb.inductor.enable()
        took = time.process_time() - start
        early = [name for name in sys.modules if name.split(".")[0] in ("torch", "sympy", "numpy", "typer")]
        import torch
        loaded, finders = "torch._inductor.compile_fx" in sys.modules, len(sys.meta_path)
        torch.compile(lambda x, w: x @ w)(torch.ones(2, 3), torch.ones(3, 4))
        compiled = sum(gemmdb.inductor.stats()["rungs"].values())
        print(json.dumps([early, loaded, took, compiled, finders - len(sys.meta_path)]))
    """)
    assert (early, loaded, compiled, finders) == ([], False, 1, 1)
    assert took < 0.05


LOADING = """
    import importlib, threading, time
    import torch, gemmdb.inductor
    name = "torch._inductor.compile_fx"
    if sys.argv[1] == "other":
        thread = threading.Thread(target=importlib.import_module, args=[name])
        thread.start()
        while name not in sys.modules:
            time.sleep(0.0005)
        loading = sys.modules[name].__spec__._initializing
        gemmdb.inductor.enable()
        thread.join()
    else:
        class Enabler:
            def find_spec(self, wanted, path=None, target=None):
                global loading
                if name in sys.modules:
                    sys.meta_path.remove(self)
                    loading = sys.modules[name].__spec__._initializing
                    gemmdb.inductor.enable()
        sys.meta_path.insert(0, Enabler())
        importlib.import_module(name)
        deadline = time.monotonic() + 60
        while not hasattr(sys.modules[name].compile_fx, "_gemmdb") and time.monotonic() < deadline:
            time.sleep(0.01)
    torch.compile(lambda x, w: x @ w)(torch.ones(2, 3), torch.ones(3, 4))
    print(json.dumps([loading, sum(gemmdb.inductor.stats()["rungs"].values())]))
"""


@pytest.mark.parametrize("thread", ["same", "other"])
def test_enable_while_inductor_is_being_imported(kit, thread):
    assert kit.run(LOADING, arguments=[thread]) == [True, 1]


def test_imported_it_changes_nothing_and_enabling_it_costs_little(kit):
    """No rung of the lookup and no model is imported before it is asked, and registering operators looks at no source:
    torch does so for a fake implementation, among the files of all modules, which took 60 ms."""
    imported, enabled = kit.run("""
        import inspect
        import gemmdb.inductor, torch
        import torch._inductor.compile_fx as inductor
        torch.compile(lambda x, w: x @ w)(torch.ones(2, 3), torch.ones(3, 4))
        imported = [hasattr(inductor.compile_fx, "_gemmdb"), "gemmdb.inductor.decide" in sys.modules]
        asked = []
        inspect.getmodule = lambda *args: asked.append(args)
        gemmdb.inductor.enable()
        rungs = ("gemmdb.lookup.acceptance.", "gemmdb.lookup.cost_model", "gemmdb.lookup.other_", "gemmdb.cost.")
        enabled = [len(asked), sorted(name for name in sys.modules if name.startswith(rungs))]
        print(json.dumps([[*imported, gemmdb.inductor.stats()["products"]], enabled]))
    """)
    assert imported == [False, False, []]
    arithmetic = [f"gemmdb.cost.{name}" for name in ("host", "possible")]
    assert enabled == [0, [*arithmetic, "gemmdb.lookup.acceptance.extern"]], (
        "bounds, which are arithmetic, and its rule"
    )
