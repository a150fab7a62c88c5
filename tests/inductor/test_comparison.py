"""What `compare` says of the outputs of a model with and without gemmdb."""

import math

import pytest
import torch

from gemmdb.inductor.comparison import difference

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("wanted", "found", "error"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.5, -4.0], 0.125),
        ([1.0, -4.0], [1.0, NAN], INF),
        ([1.0, NAN], [1.0, -4.0], INF),
        ([1.0, -4.0], [1.0, INF], INF),
        ([1.0, INF], [1.0, -INF], INF),
        ([2.0, INF, NAN], [1.0, INF, NAN], 0.5),
        ([], [], 0.0),
    ],
    ids=str,
)
def test_the_difference_of_two_outputs(wanted, found, error):
    assert difference({"out": torch.tensor(wanted)}, {"out": torch.tensor(found)}) == error
    assert difference([torch.ones(3, dtype=torch.int32), None], [torch.ones(3, dtype=torch.int32), None]) == 0.0
