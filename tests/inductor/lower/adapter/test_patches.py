"""What gemmdb changes of torch: all of it is in the register, and `disable()` undoes it."""

import pytest
import torch
import torch._inductor.compile_fx
from torch._inductor import lowering, select_algorithm
from torch._inductor.fx_passes import pad_mm

import gemmdb.inductor
from gemmdb.inductor.lower.adapter import patches
from gemmdb.inductor.match import gemms

SNAPSHOT = """
    import torch, gemmdb.inductor
    import torch._inductor.compile_fx as inductor
    from torch._inductor import lowering, select_algorithm
    from gemmdb.inductor.entry import install
    from gemmdb.inductor.lower.adapter import patches

    for patch in patches.PATCHES:
        patches.places(patch.target)  # Imports its module.
    select_algorithm.get_algorithm_selector_cache()  # torch makes it when it is first asked for.
    OWN = {
        f"gemmdb.{name}{overload}"
        for name in (
            "mixed_mm", "int_mm_scaled", "mm_activation", "int4_mm", "engine_mm", "horizontal_mm", "horizontal_int4",
            "short_sum",
        )
        for overload in ("", ".default")
    }

    def snapshot():
        found = {}
        for name, module in list(sys.modules.items()):
            if not name.startswith(("torch._inductor", "torch._functorch")) or module is None:
                continue
            for attribute, value in list(vars(module).items()):
                found[f"{name}:{attribute}"] = id(value)
                if isinstance(value, type) and value.__module__ == name:
                    found |= {f"{name}:{attribute}.{one}": id(of) for one, of in vars(value).items()}
        found |= {f"lowering of {key}": id(value) for key, value in lowering.lowerings.items() if str(key) not in OWN}
        savers = select_algorithm.get_algorithm_selector_cache().feedback_saver_fns
        found |= {f"saver {id(one)}": id(one) for one in savers}
        return found

    def changed(before):
        after = snapshot()
        return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
"""

REGISTER = """
    before = snapshot()
    gemmdb.inductor.enable()
    enabled = changed(before)
    gemmdb.inductor.enable()
    again = changed(before)
    named = set()
    for patch in patches.PATCHES:
        for key, place in patches.places(patch.target).items():
            if isinstance(key, tuple):
                named.add(f"lowering of {key[1]}")
            else:
                named.add(f"saver {id(place.read())}" if patch.wrapper == "timings" else key)
    gemmdb.inductor.disable()
    print(json.dumps([enabled, again, sorted(named), changed(before)]))
"""


def test_the_register_is_what_enable_changes_and_disable_restores(kit):
    enabled, again, named, disabled = kit.forked(SNAPSHOT + REGISTER)
    assert enabled == again == named
    assert len(named) >= 12
    assert disabled == []


COMPILED = """
    before = snapshot()
    with gemmdb.inductor.force(lambda problem: None):
        torch.compile(lambda x, w: x @ w)(torch.ones(2, 3), torch.ones(3, 4))
        gemmdb.inductor.disable()
        held = hasattr(inductor.compile_fx, "_gemmdb")
    with gemmdb.inductor.record(sys.argv[1]):
        gemmdb.inductor.disable()
        held &= hasattr(inductor.compile_fx, "_gemmdb")
    gemmdb.inductor.disable()
    named = {patch.target for patch in patches.PATCHES}
    tables = ("lowering of", "saver")
    print(json.dumps([held, [one for one in changed(before) if one in named or one.startswith(tables)]]))
"""


def test_what_is_going_on_keeps_the_wrappers_and_nothing_is_left_after_it(kit, tmp_path):
    held, left = kit.forked(SNAPSHOT + COMPILED, arguments=[str(tmp_path / "workload.jsonl")])
    assert held
    assert left == []


def test_every_wrapper_of_the_register_exists():
    from gemmdb.inductor.entry import install

    assert set(install._wrappers()) == {patch.wrapper for patch in patches.PATCHES}
    assert all(patch.reason for patch in patches.PATCHES)


def test_a_backward_that_is_compiled_after_disable_is_steered(kit, table):
    backward = (
        "mm m=64 n=32 k=8 a=fp32:col:4 b=fp32:row:4 out=fp32 bias=none scalars=unit fusion=none fp32=ieee acc=fp32"
        " reduced=0 deterministic=0 constant=0"
    )
    gemmdb.inductor.enable(tables=[table({backward: kit.ATEN})])
    x, w = torch.randn(8, 64), torch.randn(64, 32, requires_grad=True)
    loss = kit.compiled(lambda x, w: (x @ w).square().sum(), x, w)
    gemmdb.inductor.disable()
    assert not hasattr(lowering.lowerings[torch.ops.aten.mm.default], "_gemmdb")
    loss.backward()
    entries = gemmdb.inductor.stats()["products"]
    assert [entry["rung"] for entry in entries if entry["problem"] == backward] == ["exact"]
    kit.close(w.grad, torch.autograd.grad((x @ w).square().sum(), w)[0])


def test_a_wrapper_of_someone_else_on_top_of_ours_stays(monkeypatch):
    gemmdb.inductor.enable()
    ours = pad_mm._should_pad

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    monkeypatch.setattr(pad_mm, "_should_pad", theirs)
    gemmdb.inductor.disable()
    assert pad_mm._should_pad is theirs
    gemmdb.inductor.enable()
    assert pad_mm._should_pad is theirs, "ours is inside already"
    monkeypatch.undo()
    assert pad_mm._should_pad is ours
    gemmdb.inductor.disable()
    assert not hasattr(pad_mm._should_pad, "_gemmdb")


def test_ours_is_applied_again_where_someone_else_dropped_it():
    gemmdb.inductor.enable()
    select_algorithm.clear_feedback_savers()
    original = pad_mm._should_pad.__wrapped__
    pad_mm._should_pad = original
    gemmdb.inductor.enable()
    savers = select_algorithm.get_algorithm_selector_cache().feedback_saver_fns
    assert [hasattr(one, "_gemmdb") for one in savers] == [True]
    assert pad_mm._should_pad.__wrapped__ is original


@pytest.mark.parametrize("target", ["aten.no_such_operator", "nobody.mm.default"])
def test_an_operator_that_this_torch_lacks_has_no_place(target):
    assert patches.places(f"torch._inductor.lowering:lowerings[{target}]") == {}


def test_a_function_that_torch_no_longer_has_is_reported_once_and_not_made_up(monkeypatch, caplog):
    gone = patches.Patch("should_pad", "torch._inductor.fx_passes.pad_mm:_renamed", "a function of another torch")
    monkeypatch.setattr(patches, "PATCHES", (*patches.PATCHES, gone))
    gemmdb.inductor.enable()
    gemmdb.inductor.enable()
    assert not hasattr(pad_mm, "_renamed")
    assert [record.getMessage() for record in caplog.records if "_renamed" in record.getMessage()] == [
        f"gemmdb: torch {torch.__version__} has no {gone.target}; gemmdb continues without its wrapper"
    ]
    gemmdb.inductor.disable()
    assert not hasattr(pad_mm, "_renamed")


def test_every_call_that_is_read_as_a_gemm_is_lowered_as_its_decision_says():
    """A call in one list alone would get an answer that nothing carries out. Ours are lowered by us."""
    lowered = (*patches._GEMM_LOWERINGS, "aten._weight_int4pack_mm.default", "gemmdb")
    assert [name for name in gemms._READERS if not any(f"{name}.".startswith(f"{one}.") for one in lowered)] == []
