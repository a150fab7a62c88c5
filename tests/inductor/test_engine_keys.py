"""What engines read of Inductor for the keys of their own compile caches: it names gemmdb's tables and policy."""

import importlib.util
from pathlib import Path

import pytest
from kit.inductor import CPP

from gemmdb import Problem

PROGRAM = """
import torch._inductor.compile_fx, gemmdb.inductor
from torch._inductor.codecache import CacheBase
if len(sys.argv) > 2:
    gemmdb.inductor.enable(on_miss=sys.argv[1], tables=sys.argv[2:])
print(json.dumps(CacheBase.get_system()))
"""
VLLM = """
import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any
import torch._inductor.compile_fx, gemmdb.inductor

# The functions as they are, without what vLLM imports for other purposes.
path = Path(os.environ["VLLM"]) / "compilation" / "compiler_interface.py"
names = ("_get_vllm_functorch_config", "get_inductor_factors")
body = [one for one in ast.parse(path.read_text()).body if getattr(one, "name", "") in names]
scope = {"Any": Any, "envs": SimpleNamespace(VLLM_USE_MEGA_AOT_ARTIFACT=False)}
exec(compile(ast.Module(body, []), str(path), "exec"), scope)
if len(sys.argv) > 2:
    gemmdb.inductor.enable(on_miss=sys.argv[1], tables=sys.argv[2:])
print(json.dumps(str(scope["get_inductor_factors"]())))
"""
ONE, TWO = (Problem.gemm("mm", m=8, n=n, k=64, dtype="fp32", constant_weight=True).text for n in (32, 48))


@pytest.fixture
def keys(kit, table):
    """The keys that a program prints in fresh processes: with a table, again, with another one, with another policy,
    and without gemmdb."""

    def made(program, **environment):
        one, other = str(table({ONE: CPP}, "one.db")), str(table({TWO: CPP}, "other.db"))
        given = (("aten", one), ("aten", one), ("aten", other), ("error", one), ())
        return [kit.forked(program, environment, list(some)) for some in given]

    return made


def distinct(first, again, other, policy, without):
    assert first == again
    assert len({str(key) for key in (first, other, policy, without)}) == 4


def test_inductors_description_of_the_system_names_the_tables(keys):
    found = keys(PROGRAM)
    distinct(*found)
    assert [set(one) for one in found] == [{*found[-1], "gemmdb"}] * 4 + [set(found[-1])]


def test_the_key_of_vllms_cache_changes_with_the_tables(keys):
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    distinct(*keys(VLLM, VLLM=str(Path(spec.origin).parent)))


@pytest.mark.parametrize("failing", ["requested", "code_digest"])
def test_what_cannot_be_read_leaves_the_description_as_it_is(kit, table, monkeypatch, failing):
    """Every compile reads it, and none may fail because of gemmdb."""
    import gemmdb.inductor
    from gemmdb.inductor.entry import active, install
    from gemmdb.inductor.lower.adapter import hooks

    def raising():
        raise OSError("gone")

    described = hooks.naming_tables(lambda: {"hash": "x"}, install._system)
    try:
        gemmdb.inductor.enable(on_miss="aten", tables=[table({ONE: CPP})])
        assert described().keys() == {"hash", "gemmdb"}
        monkeypatch.setattr(active if failing == "requested" else install, failing, raising)
        assert described() == {"hash": "x"}
    finally:
        monkeypatch.undo()
        gemmdb.inductor.disable()
