"""The engine-shaped program at its tiny size: cut at attention, compiled once for all numbers of rows."""

import pytest

from benchmarks.programs import engine
from benchmarks.programs.suite import suite


def test_an_engine_captures_50_sizes():
    assert (len(engine.ROWS), engine.ROWS[0], engine.ROWS[-1]) == (50, 1, 512)
    assert {"engine-start", *(f"engine-{rows}" for rows in engine.TIMED)} <= set(suite())


@pytest.mark.slow
def test_its_pieces_are_compiled_once_for_all_sizes(monkeypatch):
    torch = pytest.importorskip("torch")
    import gemmdb.inductor
    from benchmarks.programs import engine_pieces, work

    compiled, graphs, pieces = engine_pieces.compiled, [], []
    standalone = torch._inductor.standalone_compile
    monkeypatch.setattr(engine_pieces, "compiled", lambda *given, **how: graphs.append(1) or compiled(*given, **how))
    monkeypatch.setattr(
        torch._inductor, "standalone_compile", lambda *given, **how: pieces.append(1) or standalone(*given, **how)
    )
    built = engine.make((1, 2, 300), "tiny", "cpu")
    gemmdb.inductor.enable(on_miss="aten")
    gemmdb.inductor.reset_stats()
    try:
        with torch.no_grad():
            run = built.step(lambda function: torch.compile(function, backend=engine.backend))
            found = run()
        stats = gemmdb.inductor.stats()
    finally:
        gemmdb.inductor.disable()
    assert (len(graphs), len(pieces)) == (1, 3), "two layers have one piece before, between and after"
    assert work.distance(built.reference(), found) < 0.02
    assert stats["errors"] == []
    assert {tuple(one["ranges"]["m"]) for one in stats["products"]} == {(1, 512)}
    assert sum(one["count"] for one in stats["products"]) == 8
