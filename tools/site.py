"""What the site needs beside mkdocs.yml: documents from outside docs/, and links that lead to them.

mkdocs reads docs/ only, and the repository has documents elsewhere too. This file is a hook of mkdocs: every file of
the repository that a page links to becomes part of the site, at the path that it has in the repository; a README.md is
the page of its folder, and README.md is the first page. `make site` builds the site.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FIRST = ROOT / "README.md"
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md and everything outside docs/ that a page links to, and what these link to."""
    from mkdocs.structure.files import File

    pages = [DOCS / file.src_uri for file in files.documentation_pages()]
    for path in sorted(reached([FIRST, *pages]) - set(pages)):
        if not path.is_relative_to(DOCS):
            files.append(File.generated(config, address(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page as mkdocs wants it: links between places in the site, and blocks of code with their title."""
    source = Path(page.file.abs_src_path)
    return _FENCE.sub(titled, relinked(markdown, source))


def titled(fence: re.Match[str]) -> str:
    """The beginning of a block of code: the file that it belongs to is its title, another name is for tests."""
    language, name = fence.groups()
    return f'```{language} title="{name}"' if "." in name else f"```{language}"


def reached(start: list[Path]) -> set[Path]:
    """These documents, and every file that they link to, directly or through documents."""
    found: set[Path] = set()
    waiting = list(start)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += linked(path) if path.suffix == ".md" else []
    return found


def linked(document: Path) -> Iterator[Path]:
    """The files of the repository that a document links to."""
    for _, link, *_ in _LINK.findall(document.read_text()):
        target = resolved(document, link)
        if target is not None:
            yield target


def resolved(document: Path, link: str) -> Path | None:
    """The file that a relative link means; of a folder its README.md. None where there is no file."""
    target = Path(os.path.normpath(document.parent / link))
    if target.is_dir():
        target /= "README.md"
    return target if target.is_file() else None


def relinked(markdown: str, document: Path) -> str:
    """The text with each relative link as the site needs it."""
    here = Path(address(document)).parent

    def changed(match: re.Match[str]) -> str:
        opening, link, anchor, closing = match.groups(default="")
        target = resolved(document, link)
        if target is None:
            return match.group()
        return f"{opening}{os.path.relpath(address(target), here)}{anchor}{closing}"

    return _LINK.sub(changed, markdown)


def address(path: Path) -> str:
    """Where a file of the repository is in the site: that of docs/ at the top, everything else below its own path."""
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()
