"""One self-contained HTML page of a report: no request to any server, and nothing of its data is markup or script.

The data are JSON in a block of their own, in which no character can end it. The scripts of the page write texts with
`textContent`; what they hand to plotly, which knows a few tags, is escaped. The page's Content-Security-Policy allows
its own scripts, by their digests, and no others, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.files import replacing

HERE = Path(__file__).parent
SCRIPTS = (
    "common.js", "charts.js", "grid.js", "table_charts.js", "table.js", "workload.js", "comparison.js", "start.js",
)  # fmt: skip
"""The page's own scripts, in the order in which they run."""
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def render(document: Mapping[str, Any]) -> str:
    """The page that draws a document of `gemmdb.report`. Raises InputError if plotly or jinja2 is not installed."""
    plotly = bundle()
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    own = "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    scripts = [plotly, own]
    for script in scripts:
        if "</script" in script.lower() or "<!--" in script:
            raise InputError("this version of plotly cannot be put into a page: it holds the end of a script")
    return environment.get_template("page.html.jinja").render(
        title=str(document["title"]).encode("utf-8", "replace").decode(),
        policy=policy(scripts),
        style=Markup((HERE / "style.css").read_text(encoding="utf-8")),
        scripts=[Markup(script) for script in scripts],
        data=Markup(embedded(document)),
    )


def embedded(document: Mapping[str, Any]) -> str:
    """A document as JSON that can stand inside a script element: ASCII, without `<`, `>` and `&`. Infinities and NaN
    raise ValueError."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text


def policy(scripts: list[str]) -> str:
    """The Content-Security-Policy: only these inline scripts, inline styles, images made by the page; no connections.

    Styles must be allowed inline because plotly writes them."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )


def bundle() -> str:
    """plotly.js as its Python package brings it. Raises InputError, with the remedy, if it is not installed."""
    missing = [name for name in ("plotly", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise InputError(f"a report needs {names}: pip install 'gemmdb[report]'")
    from plotly.offline import get_plotlyjs

    # The HTML parser reads line ends as \n, and the digests are of what it reads.
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")


def write(text: str, target: Path) -> int:
    """Write a page, whole or not at all. Returns its bytes. Raises InputError."""
    data = text.encode()
    with replacing(target) as part:
        part.write_bytes(data)
    return len(data)
