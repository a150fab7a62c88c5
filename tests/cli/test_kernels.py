"""`gemmdb kernels`: what is compiled in advance."""

import os
import sqlite3

import pytest
from kit import kernels
from kit.devices import H200
from kit.tables import Kit

from gemmdb.cli.doctor import checks
from gemmdb.cli.probe import Memory
from gemmdb.generators.cutlass_archive import INT4
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.kernels.cutlass.archive import Archive
from gemmdb.kernels.menus.cutlass import every_int4, every_int4_stream, every_scaled_blocks
from gemmdb.key.problem import Problem


@pytest.fixture
def archive(tmp_path, monkeypatch):
    path = kernels.archived(tmp_path)
    kernels.ship(monkeypatch, path)
    yield path
    prebuilt.archive.cache_clear()


def test_the_archive_is_shown(gemmdb, archive):
    done = gemmdb("kernels")
    assert (done.code, done.err) == (0, "")
    assert "1 for sm90" in done.out
    assert "nvcc 13.0.88, CUTLASS 4.2.0" in done.out


def test_without_an_archive_the_remedy_is_named(gemmdb, tmp_path, monkeypatch):
    kernels.ship(monkeypatch, tmp_path / "none.zip")
    done = gemmdb("kernels")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "gemmdb kernels build" in done.err
    prebuilt.archive.cache_clear()


def test_verify_checks_an_archive(gemmdb, archive):
    assert gemmdb("verify", str(archive)).out == f"{archive}: no faults found\n"
    done = gemmdb("verify", str(archive), "--remeasure", "5")
    assert (done.code, done.err.count("\n")) == (2, 1)
    archive.write_bytes(archive.read_bytes().replace(b"kernels-0.xz", b"kernels-1.xz"))
    assert gemmdb("verify", str(archive)).code == 1


def test_doctor_names_the_archive(archive):
    (check,) = [
        one
        for one in checks(Memory(path=archive.with_name("doctor.json")), compile_probe=False)
        if one.name == "kernels"
    ]
    assert "1 CUTLASS kernels for sm90" in check.detail


def test_a_build_writes_an_archive_and_goes_on_where_it_was(gemmdb, tmp_path, monkeypatch):
    calls = kernels.instead_of_nvcc(tmp_path, monkeypatch)
    config = Config.parse(
        "cutlass:gemm cluster_m=1 cluster_n=1 raster=auto schedule=cooperative split_k=1 swap=1 swizzle=1 tile_k=64 "
        "tile_m=32 tile_n=128"
    )
    problem = Problem.gemm("mixed_mm", m=32, n=512, k=512)
    rows = [Kit().row(one, us, problem=problem, device=H200) for one, us in ((ATEN, 10.0), (config, 5.0))]
    monkeypatch.setenv("GEMMDB_TABLES", str(Kit().write(tmp_path / "mine.db", rows)))
    out = tmp_path / "kernels.zip"
    done = gemmdb("kernels", "build", "--out", str(out))
    blocks = {prebuilt.name(one, problem) for one in every_scaled_blocks()}
    blocks |= {prebuilt.name(one, weight) for weight in INT4 for one in (*every_int4(), *every_int4_stream())}
    assert (done.code, done.out) == (0, f"{out}: {len(blocks) + 1} kernels, 0.0 MiB\n")
    assert set(Archive.open(out).kernels) == {prebuilt.name(config, problem)} | blocks
    first, compiled = out.read_bytes(), calls.read_text()
    assert gemmdb("kernels", "build", "--ready", "--out", str(out)).code == 0
    assert (out.read_bytes(), calls.read_text()) == (first, compiled)
    assert gemmdb("verify", str(out)).out == f"{out}: no faults found\n"


def test_a_table_that_ends_as_an_archive_is_checked_as_a_table(gemmdb, archive, make_table):
    """A ZIP file is told by its end, a SQLite file by its beginning."""
    table = make_table("both.db")
    with sqlite3.connect(table) as db:
        db.execute("UPDATE verdict SET ratio = 0.001")
    db.close()
    data = archive.read_bytes()
    table.write_bytes(table.read_bytes() + bytes(-len(data) % 4096) + data)
    assert gemmdb("verify", str(table)).code == 1


def test_a_pipe_is_no_archive(gemmdb, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert gemmdb("verify", str(tmp_path / "pipe")).code == 2
