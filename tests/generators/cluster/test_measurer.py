"""The connection to an actor whose process ends before it can measure."""

import threading
import time

import pytest

from gemmdb.errors import GemmdbError
from gemmdb.generators.cluster import connection
from gemmdb.generators.effort import named
from gemmdb.key.problem import Problem

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def link(nodes, tmp_path):
    """Makes a link to an actor whose first so many processes end while they begin, each noted by a byte in the log."""
    import ray
    from recorded_node import Frail

    from gemmdb.generators.cluster.measurer import Link

    log = tmp_path / "log"

    def make(deaths):
        def start():
            actor = ray.remote(Frail).options(num_cpus=1).remote()
            return actor, actor.begin.remote(str(log), deaths)

        return Link(start, 60.0, threading.Event()), log

    with connection.connected(nodes.address):
        yield make


def wait(link):
    end = time.monotonic() + 90
    while not link.available():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_an_actor_that_ends_before_it_measures_begins_three_times(link):
    made, log = link(2)
    wait(made)
    assert made.call("number") == 7
    assert len(log.read_bytes()) == 3
    assert made.lost == 0  # None was lost while it measured.
    made.close()
    made, log = link(100)
    with pytest.raises(GemmdbError, match="the workers of the cluster end before they measure"):
        wait(made)
    assert len(log.read_bytes()) == 3 + 3
    made.close()


@pytest.mark.parametrize(("effort", "asked"), [(named("standard", "cuda"), ["proposed", "near"]), (named("quick"), [])])
def test_the_actor_names_what_a_library_proposes_if_the_effort_wants_it(effort, asked):
    pytest.importorskip("ray")
    from gemmdb.generators.cluster.measurer import RemoteMeasurer

    called = []

    class Actor:
        def call(self, name, which, *arguments):
            called.append(name)
            return [which, *arguments]

    problem, measurer = Problem.gemm("mm", m=8, n=64, k=64), RemoteMeasurer(Actor(), effort, None, {}, which=3)
    assert list(measurer.proposed(problem)) == ([3, problem] if asked else [])
    assert list(measurer.near(problem, [])) == ([3, problem, ()] if asked else [])
    assert called == asked
