"""One self-contained HTML page per report: no requests to any server, and no report data interpreted as markup or
script.

The data are JSON in a separate block, escaped so that no character can end it. The page's scripts write texts with
`textContent`; texts passed to plotly, which interprets a few tags, are escaped. The page's Content-Security-Policy
allows only its own scripts, by their digests, and no connections.
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
    "common.js", "charts.js", "print.js", "grid.js", "table_charts.js", "table.js", "workload.js", "comparison.js",
    "start.js",
)  # fmt: skip
"""The page's own scripts, in execution order."""
PLOTLY = HERE / "plotly" / "plotly.min.js"
"""The part of plotly.js that the page draws with, made by tools/plotly."""
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def render(document: Mapping[str, Any]) -> str:
    """Return the page for a document of `gemmdb.report`. Raises InputError if jinja2 is not installed."""
    require()
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    scripts = [
        PLOTLY.read_text(encoding="utf-8"),
        "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS),
    ]
    return environment.get_template("page.html.jinja").render(
        title=str(document["title"]).encode("utf-8", "replace").decode(),
        policy=policy(scripts),
        style=Markup((HERE / "style.css").read_text(encoding="utf-8")),
        scripts=[Markup(script) for script in scripts],
        data=Markup(embedded(document)),
    )


def require() -> None:
    """Raise InputError, with the fix, if a page cannot be rendered here."""
    if importlib.util.find_spec("jinja2") is None:
        raise InputError("a report needs jinja2: pip install 'gemmdb[report]'")


def embedded(document: Mapping[str, Any]) -> str:
    """Return a document as JSON that is safe inside a script element: ASCII, without `<`, `>` and `&`. Infinities and
    NaN raise ValueError."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text


def policy(scripts: list[str]) -> str:
    """Return the Content-Security-Policy: only these inline scripts, inline styles, images made by the page; no
    connections.

    Inline styles must be allowed because plotly writes them.
    """
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )


def write(text: str, target: Path) -> int:
    """Write a page atomically. Returns its size in bytes. Raises InputError."""
    data = text.encode()
    with replacing(target) as part:
        part.write_bytes(data)
    return len(data)
