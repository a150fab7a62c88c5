"""What pages look like: as in the pictures of golden/report, each of which a person looked at.

Where a page is meant to look different, write them anew (`kit.pictures`) and look at each before you commit it.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from kit.browser import MARKS, launched
from kit.pictures import GOLDEN, KINDS, VIEWS, taken

pytestmark = [pytest.mark.slow, *MARKS]
FONT = "DejaVu Sans"
"""The font of the pictures: texts of another font break at other words."""
NAMES = [f"{kind}-{view.name}.jpg" for kind in KINDS for view in VIEWS]
CELL = 16
"""Fonts of another machine move a few pixels; means over cells of this many pixels stay."""
MAX_CELL, MAX_MEAN = 90.0, 5.0
COMPARE = """async ([urls, cell]) => {
  const cells = async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil(image.width / cell);
    canvas.height = Math.ceil(image.height / cell);
    const drawn = canvas.getContext("2d");
    drawn.imageSmoothingQuality = "high";
    drawn.drawImage(image, 0, 0, canvas.width, canvas.height);
    return [image.width, image.height, drawn.getImageData(0, 0, canvas.width, canvas.height).data];
  };
  const [a, b] = [await cells(urls[0]), await cells(urls[1])];
  const many = Math.min(a[2].length, b[2].length);
  let [sum, most] = [0, 0];
  for (let at = 0; at < many; at += 1) {
    const off = Math.abs(a[2][at] - b[2][at]);
    sum += off;
    most = Math.max(most, off);
  }
  return { width: [a[0], b[0]], height: [a[1], b[1]], mean: sum / many, most };
}"""


@pytest.fixture(scope="module", autouse=True)
def font() -> None:
    if shutil.which("fc-match") is None or FONT not in subprocess.check_output(["fc-match", "system-ui"], text=True):
        pytest.skip(f"the pictures are of another font: apt-get install fonts-dejavu-core gives {FONT}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def pictures(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return dict(taken(browser, tmp_path_factory.mktemp("pages")))


def difference(browser: Any, one: bytes, other: bytes) -> dict[str, Any]:
    """Sizes in pixels, and the mean and the largest difference of cells, of 255."""
    tab = browser.new_page()
    urls = [f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}" for picture in (one, other)]
    found: dict[str, Any] = tab.evaluate(COMPARE, [urls, CELL])
    tab.close()
    return found


def alike(found: dict[str, Any]) -> bool:
    low, high = sorted(found["height"])
    same = found["width"][0] == found["width"][1] and high <= 1.03 * low
    return same and found["mean"] <= MAX_MEAN and found["most"] <= MAX_CELL


@pytest.mark.parametrize("name", NAMES)
def test_a_page_looks_as_it_did(browser: Any, pictures: dict[str, bytes], name: str) -> None:
    found = difference(browser, pictures[name], (GOLDEN / name).read_bytes())
    assert alike(found), found


def test_every_picture_is_of_a_page() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(NAMES)


def test_pages_that_look_different_are_told_apart(browser: Any, pictures: dict[str, bytes]) -> None:
    assert not alike(difference(browser, pictures["table-desktop.jpg"], pictures["workload-desktop.jpg"]))
    assert not alike(difference(browser, pictures["comparison-tablet.jpg"], pictures["comparison-paper.jpg"]))
