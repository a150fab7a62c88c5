"""A real cluster of several nodes on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit.replay import DEVICE

from gemmdb.generators.cluster import resources
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.workload import entries

HERE = Path(__file__).parent
COMPILES = "gemmdb:torch-of-a-test"
"""The resource of a node that compiles the artifacts of a test."""
SMALL = {"object_store_memory": 80 * 2**20}
ENVIRONMENT = {
    "GEMMDB_TEST_CLUSTER": str(os.getpid()),
    "PYTHONPATH": os.pathsep.join(
        [*map(str, (HERE, HERE.parents[1], HERE.parents[2])), os.environ.get("PYTHONPATH", "")]
    ),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
"""Of all processes of the cluster. The first tells them from those of other tests, and the last has them wait no longer
for a processor than other workers of the tests."""


def offered(device: Device) -> dict[str, int]:
    return {resources.arch(device): 1, resources.sku(device): 1}


class Nodes:
    """A cluster whose head has a device. `add` starts a node with one, `remove` kills a node."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "resources": offered(DEVICE), "include_dashboard": False, **SMALL}
        with pytest.MonkeyPatch.context() as patch:
            _set(patch)
            self.cluster = _started(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.address = self.cluster.address
        self.nodes = []

    def add(self, device: Device = DEVICE):
        return self.start(num_cpus=1, resources=offered(device))

    def start(self, **given):
        with pytest.MonkeyPatch.context() as patch:
            _set(patch)
            self.nodes.append(_started(lambda: self.cluster.add_node(**given, **SMALL)))
        return self.nodes[-1]

    def remove(self, node) -> None:
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


def _started(start):
    """What Ray starts. Its raylet ends itself where others keep the processors busy: it waits 15 seconds for a process
    that it starts."""
    for _ in range(2):
        try:
            return start()
        except Exception as error:  # Ray has no class for it.
            if "timed out during startup" not in str(error):
                raise
    return start()


def _set(patch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)


@pytest.fixture(scope="session")
def cluster():
    pytest.importorskip("ray", reason="needs ray: pip install 'gemmdb[ray]'")
    started = Nodes()
    try:
        started.start(num_cpus=1, resources={**offered(DEVICE), COMPILES: 1})
        yield started
    finally:
        started.cluster.shutdown()


@pytest.fixture
def nodes(cluster, monkeypatch):
    """A cluster of two nodes with a CPU each, of which the second has COMPILES."""
    _set(monkeypatch)
    monkeypatch.syspath_prepend(HERE)
    return cluster


@pytest.fixture
def workload(tmp_path):
    """Writes a workload of GEMMs with these (M, N)."""

    def write(*sizes: tuple[int, int]) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        made = [Problem.gemm("mm", m=m, n=n, k=64, dtype="fp32", constant_weight=True) for m, n in sizes]
        entries.append(path, [entries.Entry(problem) for problem in made])
        return path

    return write
