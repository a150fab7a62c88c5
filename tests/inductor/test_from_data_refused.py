"""Sizes that come out of data: what is left whole, untimed or unfused because nothing is known of them."""

from __future__ import annotations

import pytest
import torch
from kit.from_data import ROWS, WIDE, Frozen, counts, linear, mask, product
from kit.sessions import FakeSession
from torch._inductor import config as inductor_config

import gemmdb.inductor
from gemmdb.hit import Hit
from gemmdb.inductor.entry import active
from gemmdb.kernels.config import ATEN
from gemmdb.settings import Policy, Settings

pytestmark = pytest.mark.usefixtures("captured")


def test_rows_whose_length_comes_out_of_data_are_left_alone(kit):
    """How they are aligned would be a guess."""

    def model(x, which):
        return x[:, which] @ torch.ones(200, 8)[which]

    with gemmdb.inductor.force(ATEN):
        run = torch.compile(model)
        for columns in (50, 0, 7):
            which = mask(columns)
            kit.close(run(ROWS.t().float(), which), model(ROWS.t().float(), which))
    reason = "aten.mm.default: rows come out of data, and may begin at no multiple of 16 bytes"
    assert gemmdb.inductor.stats()["uncovered"] == {reason: 1}


def test_an_operand_that_begins_where_data_say_stays_whole(kit):
    def model(x, counts):
        first = counts.sum().item()
        torch._check(first >= 0)
        torch._check(first <= x.shape[0])
        return x[first:] @ WIDE

    found = FakeSession(lambda query: Hit("exact", ATEN, 1.0, 1.0, "", {}, ((16, ATEN), (None, ATEN))), Policy(), None)
    with active.use(found):
        run = torch.compile(model)
        for first in (0, 1, 199, 200):
            kit.close(run(ROWS.float(), counts(first)), model(ROWS.float(), counts(first)))
    assert product()["note"] == "an operand begins inside its storage"


def test_a_guess_is_not_timed(kit):
    """Inductor would time it at a guess of its own, and the rows would be kept under ours."""
    gemmdb.inductor.enable(policy=Policy(on_miss="live", live_s=120.0))
    model = Frozen()
    with torch.no_grad(), inductor_config.patch(freezing=True, autotune_local_cache=False):
        kit.close(torch.compile(model)(ROWS, mask(200)), linear(ROWS))
    found = product()
    assert (found["rung"], found["config"]) == ("aten", ATEN.text)
    assert found["note"].startswith("not tuned: its sizes are data-dependent; ")
    assert not Settings.read().user_table.exists()


def test_nothing_is_fused_into_an_output_whose_size_comes_out_of_data(kit):
    """Inductor does not, so the unfused product is the evidence; a sum over such a size is fused as any other."""
    for model, wanted in (
        (lambda x, which: torch.relu(x[which] @ WIDE), "none"),
        (lambda x, which: torch.relu(x[which].t() @ x[which]), "pointwise"),
    ):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        with gemmdb.inductor.force(ATEN):
            which = mask(50)
            kit.close(torch.compile(model)(ROWS.float(), which), model(ROWS.float(), which))
        assert f" fusion={wanted} " in product()["problem"]
