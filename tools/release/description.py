"""What the package index shows: README.md with links that lead somewhere from there, and the project's addresses.

The index has no files beside the description, so relative links lead to the repository on the web. If its address is
not known, a link becomes its text and a picture is left out.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from gemmdb.errors import InputError

PLACES = {
    "Homepage": "",
    "Documentation": "/blob/{tag}/docs/quick-start.md",
    "Changelog": "/blob/{tag}/CHANGELOG.md",
    "Issues": "/issues",
}
"""The project's addresses, below that of the repository."""

_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def prepare(source: Path, repository: str) -> None:
    """Rewrite README.md and pyproject.toml of an exported commit for the index. Raises InputError for an address that
    is not one of the web."""
    if repository and not re.fullmatch(r"https://[\w.-]+/[\w./-]*[\w-]", repository):
        raise InputError(f"--repository {repository}: give an address such as https://example.com/owner/gemmdb")
    project = source / "pyproject.toml"
    text = project.read_text()
    tag = f"v{tomllib.loads(text)['project']['version']}"
    readme = source / "README.md"
    readme.write_text(linked(readme.read_text(), repository, tag))
    if repository:
        places = {name: repository + place.format(tag=tag) for name, place in PLACES.items()}
        urls = "".join(f'{name} = "{place}"\n' for name, place in places.items())
        project.write_text(text.replace("[project.scripts]", f"[project.urls]\n{urls}\n[project.scripts]", 1))


def linked(markdown: str, repository: str, tag: str) -> str:
    """The text with absolute links to `tag` of the repository, or without relative links if its address is empty."""

    def absolute(match: re.Match[str]) -> str:
        picture, title, path = match.groups()
        if not repository:
            return "" if picture else title
        return f"{picture}[{title}]({repository}/{'raw' if picture else 'blob'}/{tag}/{path})"

    pieces = _FENCED.split(markdown)
    return "".join(piece if i % 2 else _LINK.sub(absolute, piece) for i, piece in enumerate(pieces))
