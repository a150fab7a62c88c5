"""Connection to a Ray cluster, and the devices on its nodes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from gemmdb.errors import InputError
from gemmdb.generators.cluster import resources

LOCAL = "local"
CONNECT_TIMEOUT_S = 5.0
"""Seconds that an address may take to accept a connection."""
JOIN_TIMEOUT_S = 20.0
"""Seconds that joining a cluster may take; it normally takes less than one."""
START_ATTEMPTS = 3
"""Attempts to start a cluster on this host. Ray gives a node 30 s, which a busy machine may exceed."""
OBJECT_STORE_BYTES = 200 * 2**20
"""Size of a local cluster's object store. It carries little data."""
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""Environment for Ray at import and node start: no usage statistics, and normal priority for a local cluster's workers,
since some of them measure."""
START_HINT = (
    'start its nodes with --resources="$(python -m gemmdb.generators.cluster.resources)" (see docs/how-to/cluster.md)'
)


@dataclass(frozen=True)
class Offer:
    """The nodes with one kind of device. `name`: its resource, by SKU. `devices`: total number of devices. `nodes`: by
    id. `cpus`: the fewest processors of any node."""

    name: str
    devices: int
    nodes: tuple[str, ...]
    cpus: int


class Quiet:
    """A stream filter that drops messages about lost workers from a Ray thread: a script may parse a build's output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name.startswith("ray_") else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def check_installed() -> None:
    if importlib.util.find_spec("ray") is None:
        raise InputError("--ray needs ray, which is not installed: pip install 'gemmdb[ray]'")


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Join the cluster at `address` (HOST:PORT, or `auto` for one running on this host), or start one on this host
    alone (`local`), which ends with the block. Raises InputError if there is none."""
    check_installed()
    if address not in (LOCAL, "auto"):
        _reach(address)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    given: dict[str, Any] = {"address": address}
    if address == LOCAL:
        given |= {"resources": resources.here(), "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    quiet: Any = Quiet(sys.stdout)
    with contextlib.redirect_stdout(quiet):
        _join(ray, address, given)
        try:
            yield
        finally:
            ray.shutdown()


def offers(nodes: Sequence[Mapping[str, Any]], arch: str) -> list[Offer]:
    """Return the nodes' offers for an arch; `native` means all. Raises InputError if there are none."""
    found: dict[str, dict[str, Mapping[str, float]]] = {}
    known: set[str] = set()
    for node in nodes:
        if not node["Alive"]:
            continue
        for name in resources.skus(node["Resources"]):
            known.add(name)
            if arch == "native" or name.startswith(f"{resources.PREFIX}{arch}-"):
                found.setdefault(name, {})[node["NodeID"]] = node["Resources"]
    if not known:
        raise InputError(f"--ray: no node of the cluster declares its device; {START_HINT}")
    if not found:
        names = ", ".join(sorted(one.removeprefix(resources.PREFIX) for one in known))
        raise InputError(f"--arch {arch}: no node of the cluster has such a device; there are {names}")
    return [
        Offer(name, sum(int(has[name]) for has in nodes.values()), tuple(nodes), min(map(_cpus, nodes.values())))
        for name, nodes in sorted(found.items())
    ]


def processors(nodes: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(_cpus(one["Resources"]) for one in nodes if one["Alive"] and name in one["Resources"])


def _cpus(resources: Mapping[str, float]) -> int:
    return int(resources.get("CPU", 0))


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InputError(f"--ray {address}: must be HOST:PORT of a cluster's head, auto or local")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        reason = f"no cluster answers there ({error}); `ray status` shows the address"
        raise InputError(f"--ray {address}: {reason}") from None


def _join(ray: Any, address: str, given: dict[str, Any]) -> None:
    failed: list[BaseException] = []

    def join() -> None:
        try:
            ray.init(log_to_driver=False, logging_level="CRITICAL", **given)
        except BaseException as error:
            failed.append(error)

    before = signal.getsignal(signal.SIGTERM)
    if address == LOCAL:
        for _ in range(START_ATTEMPTS):
            failed.clear()
            join()  # In this thread: Ray's processes end with the thread that started them.
            if not failed or "timed out" not in str(failed[0]):
                break
            ray.shutdown()
    else:
        thread = threading.Thread(target=join, daemon=True)
        thread.start()
        thread.join(JOIN_TIMEOUT_S)
        if thread.is_alive():  # It would retry for minutes.
            reason = f"the server there is not a Ray {ray.__version__} cluster, or needs RAY_AUTH_MODE=token"
            raise InputError(f"--ray {address}: {reason}")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # Ray installs its own handler.
    if failed:
        if not isinstance(failed[0], Exception):
            raise failed[0]
        reason = " ".join(str(failed[0]).split())[:200]
        failure = "cannot start a cluster of this host" if address == LOCAL else "cannot join the cluster"
        raise InputError(f"--ray {address}: {failure} ({reason})")
