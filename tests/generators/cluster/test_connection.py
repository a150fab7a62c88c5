"""What is said of clusters that are not there or have nothing to measure with, and what nodes offer."""

import builtins
import importlib.util
import io
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from kit.devices import H200
from kit.replay import DEVICE, ReplayBackend, Watcher
from typer.testing import CliRunner

from gemmdb.cli.app import app
from gemmdb.devices import detect
from gemmdb.errors import GemmdbError, InputError
from gemmdb.generators.build.build import BuildRequest
from gemmdb.generators.cluster import connection, resources
from gemmdb.generators.cluster.build import SharedProgress, build
from gemmdb.generators.cluster.node import Measuring, Site, describe
from gemmdb.generators.effort import named
from gemmdb.generators.progress import State
from gemmdb.key.toolchain import Toolchain


def node(name, cpus=8.0, alive=True, **offered):
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus, **offered}}


def of(device, number=1.0):
    return {resources.arch(device): number, resources.sku(device): number}


def test_devices_are_counted_over_the_nodes_that_live():
    nodes = [
        node("a", 16.0, **of(H200, 8.0)), node("b", 12.0, **of(H200, 4.0)), node("c", **of(DEVICE)),
        node("d", alive=False, **of(H200, 8.0)), node("e"),
    ]  # fmt: skip
    cpu, gpu = connection.offers(nodes, "native")
    assert (cpu.name, cpu.devices, cpu.nodes, cpu.cpus) == ("gemmdb:cpu-test-cpu-2t", 1, ("c",), 8)
    assert (gpu.name, gpu.devices, gpu.nodes, gpu.cpus) == ("gemmdb:sm90-nvidia-h200", 12, ("a", "b"), 12)
    assert connection.offers(nodes, "sm90") == [gpu]
    assert connection.offers(nodes, "cpu") == [cpu]


def test_a_cluster_that_cannot_measure_is_bad_input():
    with pytest.raises(InputError, match=r"no node of the cluster declares its device; start its nodes with"):
        connection.offers([node("a")], "native")
    with pytest.raises(InputError, match=r"--arch sm80: no node .* there are cpu-test-cpu-2t"):
        connection.offers([node("a", **of(DEVICE))], "sm80")


def test_the_threads_of_a_cpu_are_in_its_resource():
    assert [resources.threads(resources.sku(device)) for device in (DEVICE, H200)] == [2, None]
    assert resources.skus({"CPU": 1, **resources.here()}) == [resources.sku(detect.native())]


def test_a_node_describes_the_device_that_a_plain_build_measures(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    here = detect.cpu()
    monkeypatch.setenv("OMP_NUM_THREADS", str(here.units + 1))  # As Ray sets it in its workers.
    found = describe(resources.sku(here), None, Site())
    assert found.device == here
    assert [(protocol.clock, protocol.samples) for protocol in found.protocols] == [("host", named("quick").samples)]
    assert found.compilers == {}


def test_an_actor_refuses_other_software():
    with pytest.raises(GemmdbError, match="its software differs from another node"):
        Measuring().begin(DEVICE, Toolchain(torch="2.12.0"), named("quick"), Site(make=lambda _: ReplayBackend([])))


def test_this_host_prints_what_it_offers():
    command = [sys.executable, "-m", "gemmdb.generators.cluster.resources"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert resources.sku(detect.native()) in done.stdout
    assert done.stdout.startswith("{")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no cluster answers there"),
        ("127.0.0.1", "must be HOST:PORT of a cluster's head, auto or local"),
        ("ray://127.0.0.1:10001", "must be HOST:PORT of a cluster's head, auto or local"),
        ("127.0.0.1:99999", "no cluster answers there"),
    ],
)
def test_an_address_without_a_cluster_is_bad_input_at_once(address, said, tmp_path):
    pytest.importorskip("ray", reason="needs ray: pip install 'gemmdb[ray]'")
    started = time.monotonic()
    with pytest.raises(InputError, match=said):
        build(BuildRequest(arch="cpu", ray=address, out=tmp_path / "t.db"))
    assert time.monotonic() - started < 10
    assert not (tmp_path / "t.db").exists()


@pytest.mark.slow
def test_what_answers_and_is_no_cluster_is_bad_input():
    pytest.importorskip("ray", reason="needs ray: pip install 'gemmdb[ray]'")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        script = (
            "from gemmdb.generators.cluster import connection; connection.JOIN_TIMEOUT_S = 3.0\n"
            "from gemmdb.generators.build.build import BuildRequest\n"
            "from gemmdb.generators.cluster.build import build\n"
            f"build(BuildRequest(arch='cpu', ray={address!r}))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "the server there is not a Ray" in done.stderr


class Busy:
    """A Ray whose first node is late: its limit for that cannot be set, and a real one does not exceed it at will."""

    def __init__(self, late: int) -> None:
        self.late, self.started, self.ended = late, 0, 0

    def init(self, **_given) -> None:
        self.started += 1
        if self.started <= self.late:
            raise Exception("The current node timed out during startup.")

    def shutdown(self) -> None:
        self.ended += 1


def test_a_cluster_of_this_host_is_started_again_when_its_node_was_late():
    ray = Busy(late=2)
    connection._join(ray, "local", {})
    assert (ray.started, ray.ended) == (3, 2)
    with pytest.raises(InputError, match=r"cannot start a cluster of this host .*timed out"):
        connection._join(Busy(late=9), "local", {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"modelled": True}, "--ray: a modelled build measures nothing"),
        ({"minutes": 0.0}, "--minutes 0: must be more than 0"),
        ({"effort": "heroic"}, "unknown effort"),
    ],
)
def test_requests_that_cannot_be_met(change, said):
    with pytest.raises(InputError, match=said):
        build(BuildRequest(**{"arch": "cpu", "ray": "local", **change}))


def test_without_ray_the_command_says_what_to_install(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else found(name, *more))
    done = CliRunner().invoke(app, ["build", "--arch", "cpu", "--ray", "local"])
    assert isinstance(done.exception, InputError)
    assert "pip install 'gemmdb[ray]'" in str(done.exception)


def test_a_plain_build_does_not_import_ray():
    script = "import sys, gemmdb.generators.build.build, gemmdb.generators.cluster.build; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_messages_of_rays_threads_stay_out_of_the_output():
    said = io.StringIO()
    stream = connection.Quiet(said)
    thread = threading.Thread(target=lambda: builtins.print("(raylet) lost", file=stream), name="ray_listen_errors")
    thread.start()
    thread.join()
    print("kept", file=stream)
    assert said.getvalue() == "kept\n"


def test_the_progress_of_several_devices_is_added_up():
    watcher = Watcher()
    first = SharedProgress(watcher)
    second = replace(first)
    first.update(State(10, 4, 2, "racing", None, 30.0))
    second.update(State(5, 5, 5, "finished", None, None))
    assert watcher.states == [State(10, 4, 2, "racing", None, 30.0), State(15, 9, 7, "finished", None, 30.0)]
