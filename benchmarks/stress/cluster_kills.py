"""Kill nodes and workers of a Ray cluster and the builds over it with SIGKILL at random moments, and compare what the
builds leave with what an undisturbed build without a cluster gives.

    python -m benchmarks.stress cluster-kills [--kills 100] [--seed 1]

The cluster has a head and two nodes on this machine, which measure. Again and again, after a random time, one process
is killed: the build, a worker that measures, a process that it starts, a compiler, or a node with all of its processes.
A new node takes the place of one that is killed. When the build is killed, nothing may work for it after ten seconds;
then the same command goes on. All else is as in `kills`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT, write_shapes
from benchmarks.stress import kills, victims
from benchmarks.stress.victims import Victim
from gemmdb.generators.cluster import resources

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

MARK = "cluster"
"""The mark of all processes of the cluster."""
MEMORY = {"object_store_memory": 80 * 2**20}
WORKING = ("worker", "server", "compiler")


@dataclass
class Nodes:
    """A cluster of a head and `count` nodes that offer this CPU."""

    count: int
    cluster: Cluster
    nodes: list[Any] = field(default_factory=list)

    @classmethod
    def started(cls, count: int) -> Nodes:
        """Start it. All its processes have the environment of this one."""
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "include_dashboard": False, **MEMORY}
        made = cls(count, Cluster(initialize_head=True, head_node_args=head))
        for _ in range(count):
            made.add()
        return made

    def add(self) -> None:
        """Start a node."""
        self.nodes.append(self.cluster.add_node(num_cpus=1, resources=resources.here(), **MEMORY))

    def replace(self, chance: random.Random) -> None:
        """Kill a node with all of its processes, and start another."""
        self.cluster.remove_node(self.nodes.pop(chance.randrange(len(self.nodes))), allow_graceful=False)
        self.add()


@dataclass
class ClusterCampaign(kills.Campaign):
    """Builds over the cluster of `nodes`, which are killed as well."""

    nodes: Nodes | None = None

    def running(self, mark: str) -> list[Victim]:
        """What works on the nodes for the build, and the build itself."""
        working = [victim for victim in victims.running(MARK) if victim.kind in WORKING]
        return [*victims.running(mark), *working]

    def kill(self, victim: Victim) -> bool:
        """Kill a process, or a node with all of its processes."""
        if victim.kind != "node":
            return super().kill(victim)
        assert self.nodes is not None
        self.nodes.replace(self.chance)
        return True

    def _choose(self, driver: int, running: list[Victim]) -> Victim:
        return super()._choose(driver, [*running, Victim(0, "node")])


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    kills.arguments(parser)
    parser.set_defaults(kills=100, most=12.0, out=kills.OUT / "cluster-kills.jsonl")


def main(options: argparse.Namespace) -> None:
    """Kill, compare, and write."""
    folder, chance = Path(tempfile.mkdtemp(prefix="kills-")), random.Random(options.seed)
    plain = kills.Campaign(folder, write_shapes(folder / "shapes.jsonl", kills.problems()), options.most, chance)
    wanted = plain.undisturbed(folder / "undisturbed.db")
    os.environ |= {
        victims.MARK: MARK, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
    }  # fmt: skip
    nodes = Nodes.started(2)
    try:
        more = (nodes.cluster.address,)
        campaign = ClusterCampaign(folder, plain.shapes, options.most, chance, more=more, nodes=nodes)
        kills.run(campaign, wanted, options)
    finally:
        nodes.cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
