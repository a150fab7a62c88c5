"""Kernels are compiled by tasks on one node and come to the caches of another, which measures."""

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from gemmdb.generators.build.build import BuildRequest
from gemmdb.generators.cluster import connection, delivery, resources
from gemmdb.generators.cluster.node import Site
from gemmdb.generators.measure.cuda.artifacts import Built
from gemmdb.generators.measure.cuda.compile_pool import build
from gemmdb.table.measurement import TIMED
from gemmdb.table.reader import Table


@pytest.fixture
def joined(nodes):
    """This process in the cluster."""
    with connection.connected(nodes.address):
        yield


@pytest.mark.slow
def test_artifacts_are_built_by_tasks_and_their_files_come_along(joined, tmp_path, monkeypatch):
    from artifacts import Artifact

    from gemmdb.generators.cluster.backend import ClusterExecutor

    files = {}
    executor = ClusterExecutor("triton", {"triton": "gemmdb:torch-of-a-test"}, True, files)
    keys = ("kernel", "fail", "raise", "die", "other")
    found = {key: executor.submit(build, Artifact(key), 90) for key in keys}
    assert executor.submit(len).result() is None
    assert found["kernel"].result(60) == found["other"].result(60) == Built("", 0.1, 90)
    assert found["fail"].result(60).failure == "does not compile"
    assert "no space left" in str(found["raise"].exception(60))
    assert isinstance(found["die"].exception(60), BrokenProcessPool)  # As of a process of this host.
    for name, folder in caches(tmp_path).items():
        monkeypatch.setenv(name, folder)
    delivery.place({key: files[key] for key in ("kernel", "other", "fail")})
    here = tmp_path / "TRITON_CACHE_DIR"
    assert sorted(path.name for path in here.iterdir()) == ["kernel.cubin", "kernel.json", "other.cubin", "other.json"]
    assert (here / "kernel.json").read_text() == f'{{"cubin": "{here}/kernel.cubin"}}'
    nowhere = ClusterExecutor("cutlass", {}, True, files).submit(build, Artifact("kernel"), 90)
    assert "no node of the cluster compiles with cutlass" in str(nowhere.exception())


def caches(folder: Path) -> dict[str, str]:
    names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
    return {name: str(folder / name) for name in names}


@pytest.mark.slow
def test_a_node_measures_what_another_has_compiled(nodes, tmp_path):
    pytest.importorskip("triton", reason="needs triton to compile")
    from sleeping_gpu import Gpu, find

    from gemmdb.generators.cluster.build import build

    offered = resources.compilers()
    if "triton" not in offered:
        pytest.skip("needs a torch for CUDA, whose toolchain the nodes would share")
    gpu, shapes = find(""), tmp_path / "shapes.json"
    shapes.write_text('[{"op": "mm", "m": [1, 64], "n": 512, "k": 512, "dtype": "bf16", "layout": "nt"}]')
    compiling = nodes.start(num_cpus=2, resources={offered["triton"]: 1}, env_vars=caches(tmp_path / "compiling"))
    measuring = nodes.start(
        num_cpus=1, num_gpus=1, resources={resources.arch(gpu): 1, resources.sku(gpu): 1},
        env_vars=caches(tmp_path / "measuring"),
    )  # fmt: skip
    try:
        request = BuildRequest(
            arch="sm90", shapes=str(shapes), effort="quick", out=tmp_path / "t.db", ray=nodes.address
        )
        (report,) = build(request, site=Site(find, Gpu))
    finally:
        nodes.remove(measuring)
        nodes.remove(compiling)
    assert (report.measured, report.left, report.warnings) == (2, 0, ())
    with Table.open(tmp_path / "t.db") as table:
        rows = list(table.measurements())
    # Inductor emits code only where there is a GPU.
    details = {row.detail for row in rows if row.status not in TIMED}
    assert details == {"GemmdbError: no node of the cluster compiles with inductor"}
    assert {row.config.backend for row in rows if row.status in TIMED} == {"aten", "triton"}
    assert not list((tmp_path / "compiling").rglob("*.cubin"))  # Tasks have caches of their own.
    assert list((tmp_path / "measuring").rglob("*.cubin"))
    assert str(tmp_path / "measuring") in next((tmp_path / "measuring").rglob("gemmdb_*-90-*.json")).read_text()
