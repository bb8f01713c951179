"""The order of the pages: tables of contents that are put into the index pages when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from sphinx.application import Sphinx

PARTS: Final[Mapping[str, Sequence[str]]] = {
    "Start": (
        "quickstart",
        "tutorial",
        "concepts",
        "handlers",
        "hooks",
        "schedules",
        "workflows",
        "unique-jobs",
        "limits",
        "bridges",
        "testing",
        "frameworks",
        "secrets",
    ),
    "Run it": (
        "operating",
        "backups",
        "high-availability",
        "citus",
        "routes",
        "kubernetes",
        "dashboard",
        "recovery",
        "tuning",
    ),
    "Come from": ("compared", "migrate-from-celery", "migrate-from-rq", "migrate-from-procrastinate"),
    "Reference": ("operations", "state-machine", "sql", "protocol", "glossary", "faq"),
    "Proof": ("performance", "how-far", "performance-peers", "chaos", "fuzzing", "model", "simulation", "repairs"),
    "Change it": ("architecture", "adr/README"),
}
DECISIONS: Final = "adr/README"


def contents(docname: str, source: Path) -> str:
    """The tables of contents of a page, as MyST has them; nothing for most pages."""
    if docname == "index":
        return "\n".join(_tree(caption, _there(pages, source)) for caption, pages in PARTS.items())
    if docname == DECISIONS:
        return _tree("", sorted(path.stem for path in (source / "adr").glob("0*.md")))
    return ""


def _there(pages: Sequence[str], source: Path) -> Iterator[str]:
    return (page for page in pages if (source / f"{page}.md").exists())


def _tree(caption: str, pages: Iterator[str] | Sequence[str]) -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def _add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] += contents(docname, Path(app.srcdir))


def _read_again(*_args: object) -> list[str]:
    """A page that is new changes what these have, though their files are as they were."""
    return ["index", DECISIONS]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _add_contents)
    app.connect("env-get-outdated", _read_again)
    return {"parallel_read_safe": True}
