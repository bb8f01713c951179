"""
Checks the built site: it works without a network, and links lead from the first page to every other.

    python docs/docsite/verify.py build/site
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

LOADED: Final = {"script": "src", "img": "src", "source": "src", "iframe": "src"}
NO_PAGES: Final = {"search.html", "genindex.html"}  # what the theme makes for itself


class Page(HTMLParser):
    """What a page loads, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for each element."""
        given = {name: value for name, value in attrs if value}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") in {"stylesheet", "icon", "preload"}:
            self.loads.append(given["href"])
        elif LOADED.get(tag, "") in given:
            self.loads.append(given[LOADED[tag]])


def problems(site: Path) -> Iterator[str]:
    """What is wrong, a line each."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{path}: loads {target} from elsewhere"
            elif not target.startswith("data:") and not _file(path, target).exists():
                yield f"{path}: loads {target}, which is not there"
    for style in site.rglob("*.css"):
        if "url(http" in style.read_text("utf-8") or "@import" in style.read_text("utf-8"):
            yield f"{style}: loads something from elsewhere"
    yield from (f"{path}: no way leads there" for path in set(pages) - _reached(site / "index.html", pages))


def _reached(start: Path, pages: dict[Path, Page]) -> set[Path]:
    found, ahead = set[Path](), [start]
    while ahead:
        path = ahead.pop()
        if path in pages and path not in found:
            found.add(path)
            ahead += [_file(path, link) for link in pages[path].links if not urlsplit(link).netloc]
    return found | {path for path in pages if path.name in NO_PAGES}


def _file(page: Path, target: str) -> Path:
    path = unquote(urlsplit(target).path)
    return (page.parent / path).resolve() if path else page


def main() -> int:
    """Print the problems; 1 if there are any."""
    found = list(problems(Path(sys.argv[1]).resolve()))
    sys.stderr.writelines(f"docs: {line}\n" for line in found)
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
