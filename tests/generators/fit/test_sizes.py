"""The rates of `gemmdb.cost.sizes` are found again from times that they give."""

import json
from pathlib import Path

import pytest
from kit.devices import H200
from kit.gpu import make

pytest.importorskip("numpy")

from gemmdb import Problem, trust
from gemmdb.cost import sizes
from gemmdb.cost.transfer import member_of
from gemmdb.generators.fit import sizes as fit
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.kernels.config import ATEN

ROOT = Path(__file__).parents[3]
CONFIGS = [
    make("int4", block_m=rows, block_n=columns, split_k=split, stages=stages)
    for rows, columns, stages in ((16, 64, 4), (32, 64, 4), (64, 64, 3), (64, 128, 3)) for split in (1, 4)
]  # fmt: skip
FORMATS = [{"packing": "gptq"}, {"packing": "low-first"}]


def times(factor):
    """What the shipped rates give; a config takes `factor` of its place as long."""
    found = []
    for m in (1, 8, 16, 32, 64, 256, 1024):
        for n, k in ((1024, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):
            for rest in FORMATS:
                problem = Problem.gemm("mixed_mm", m=m, n=n, k=k, weight_dtype="int4", **rest)
                found += [
                    Sample(problem, H200, config, factor(place) * sizes.us(*member_of(config), problem, H200), 1.0)
                    for place, config in enumerate((ATEN, *CONFIGS))
                ]
    return found


def test_a_fit_finds_how_times_grow_whatever_the_factors_of_the_configs():
    rates = fit.fit(times(lambda place: 1 + 0.1 * place))
    kernel = [sample for sample in times(lambda place: 1.0) if sample.config != ATEN]
    assert fit.error(rates["int4"], kernel) < 0.04 < 0.1 < fit.error(rates["int4"], kernel, roofline=True)
    for name in ("aten expanded, gptq int4", "aten expanded, low-first none"):
        assert rates[name].weights == pytest.approx(sizes.RATES[name].weights, rel=0.05)
        assert rates[name].launch == pytest.approx(sizes.RATES[name].launch, rel=0.05)


def test_the_shipped_rates_are_fitted_to_the_archives_of_the_repository():
    document = json.loads((ROOT / "gemmdb" / "cost" / "sizes.json").read_text())
    for path, digest in document["provenance"]["archives"].items():
        assert trust.sha256_of(ROOT / path) == digest
    assert all(ours < roofline for ours, roofline in document["errors"].values())
