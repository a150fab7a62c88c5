"""GEMMs with GPTQ's and AWQ's weights are computed one by one."""

from types import SimpleNamespace

import pytest
from kit.devices import H200
from kit.gpu import make

from gemmdb import Problem
from gemmdb.inductor.match import horizontal_members
from gemmdb.key.problem import Query


@pytest.mark.parametrize(("packing", "asked"), [("gptq", False), ("gptq2", False), ("awq", False), ("low-first", True)])
def test_words_along_n_are_in_no_group(monkeypatch, packing, asked):
    problem = Problem.gemm("mixed_mm", m=8, n=512, k=512, weight_dtype="int4", packing=packing)
    decision = SimpleNamespace(problem=problem, query=Query(problem, H200), config=make("int4"), branches=())
    seen = []
    monkeypatch.setattr(horizontal_members, "_read", lambda node, _: seen.append(node))
    assert horizontal_members.read("node", decision) is None
    assert seen == ["node"] * asked
