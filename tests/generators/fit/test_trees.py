"""Growing trees: what is written down predicts what was fitted, and explains what the cost model does not."""

import importlib.util
import json
import math
from itertools import product

import pytest

from gemmdb.cost.candidates import choices
from gemmdb.cost.features import FEATURES
from gemmdb.cost.model import FITTED
from gemmdb.devices import registry
from gemmdb.errors import InputError
from gemmdb.generators.fit import cost_model, own
from gemmdb.generators.fit import trees as fit_trees
from gemmdb.generators.modelled.space import rank, setting_of
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.trees import parse
from gemmdb.key.problem import Problem

H200 = registry.find("NVIDIA H200")
SKLEARN = importlib.util.find_spec("sklearn") is not None
needs_sklearn = pytest.mark.skipif(not SKLEARN, reason="needs scikit-learn: pip install 'gemmdb[fit]'")


def samples():
    """Samples whose times are the shipped model's, but half as long again where the tile has 8 warps."""
    for m in (16, 64, 256, 1024):
        for n, k in ((1024, 8192), (4096, 4096), (14336, 4096)):
            problem = Problem.gemm("mm", m=m, n=n, k=k)
            times = {one.config: one.us * (1.5 if one.tile.warps == 8 else 1.0) for one in rank(problem, H200)[:60]}
            times[ATEN] = FITTED.predict_aten(setting_of(problem, H200))
            best = min(times.values())
            yield from (cost_model.Sample(problem, H200, config, us, best / us) for config, us in times.items())


def missed(found, trees) -> float:
    """The errors that the trees leave, as a share of those of the formula alone."""
    off, before = [], []
    for sample in found:
        row, us = fit_trees.values(sample, FITTED)
        off.append(abs(math.log(us / sample.us) + trees.log(row)))
        before.append(abs(math.log(us / sample.us)))
    return sum(off) / sum(before)


@needs_sklearn
def test_trees_learn_what_the_model_misses_and_are_written_as_they_are():
    found = list(samples())
    written = json.loads(fit_trees.text(fit_trees.document(found, FITTED)))
    trees = parse(written, FEATURES)
    assert len(trees.leaves) == fit_trees.TREES
    assert sum(map(len, written["trees"])) <= fit_trees.TREES * (2 * fit_trees.LEAVES - 1)
    assert missed(found, trees) < 0.1
    assert all(abs(trees.log(row) - expected) <= fit_trees.MAX_ROUNDING for row, expected in trees.checks)


def batches():
    """The same of GEMMs of batches, but twice as long where there are many matrices."""
    for batch, m in product((2, 4, 8, 32, 64, 512), (16, 64, 256, 1024)):
        problem = Problem.gemm("bmm", batch=batch, m=m, n=256, k=256)
        setting = setting_of(problem, H200)
        tiles = {one.config: one.tile for one in choices(setting)}
        times = {config: FITTED.predict(setting, tile) * (2 if batch > 8 else 1) for config, tile in tiles.items()}
        times[ATEN] = FITTED.predict_aten(setting)
        yield from (
            cost_model.Sample(problem, H200, config, us, min(times.values()) / us) for config, us in times.items()
        )


@needs_sklearn
def test_an_op_with_trees_of_its_own_gets_them():
    found = list(batches())
    ((op, written),) = own.documents([*found, *samples()], FITTED).items()
    assert op == "bmm"
    assert written == fit_trees.document(found, FITTED, fit_trees.OP_TREES, fit_trees.OP_RATE)
    trees = parse(json.loads(fit_trees.text(written)), FEATURES)
    assert len(trees.leaves) == fit_trees.OP_TREES
    assert missed(found, trees) < 0.1
    assert FEATURES.index("batch") in {feature for feature, _ in written["cuts"]}


@needs_sklearn
def test_the_same_samples_give_the_same_file():
    found = list(samples())
    assert fit_trees.text(fit_trees.document(found, FITTED)) == fit_trees.text(fit_trees.document(found, FITTED))


@pytest.mark.skipif(SKLEARN, reason="scikit-learn is installed")
def test_without_scikit_learn_it_says_what_to_install():
    with pytest.raises(InputError, match=r"gemmdb\[fit\]"):
        fit_trees.document([], FITTED)
