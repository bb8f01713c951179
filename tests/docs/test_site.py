"""The site's own parts: its navigation, its drawing, its player, links of pages outside of it, and a page's counts."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from pulse.job import TRANSITIONS
from tests.docs.blocks import Block, blocks, pages
from tests.support.checking.markdown import DOCS, section, table

ROOT: Final = DOCS.parent
STATES: Final = (DOCS / "images" / "states.svg").read_text("utf-8")
PLAYER: Final = DOCS / "docsite" / "static" / "player"
PLAYER_SHA256: Final = {
    "asciinema-player.css": "f619fe17597043564f03b2c6918b3daf890ee8b912fb408542fba11afade4fdb",
    "asciinema-player.min.js": "a13c37632e1b5c49fe9128417b9319a9b5bc64cb457dd5ae52cbba8a3aceb880",
}
_LINK: Final = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
_EXAMPLE: Final = re.compile(r"^\*\*(?P<queue>[^*]+)\*\*.+?^```\w+\n(?P<code>.+?)^```$", re.MULTILINE | re.DOTALL)
_NOT_COUNTED: Final = re.compile(r"\s*$|# |from |import ")


def test_every_page_is_in_the_navigation() -> None:
    source = (DOCS / "docsite" / "navigation.py").read_text("utf-8")
    places = re.findall(r'"([a-z/A-Z-]+)"[,)]', source.partition("DECISIONS")[0])
    there = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.glob("*.md")} - {"index"}
    assert len(places) == len(set(places))
    assert there <= set(places)


def test_drawing_has_the_moves_of_the_table() -> None:
    drawn = {move for moves in re.findall(r'data-moves="([^"]+)"', STATES) for move in moves.split()}
    legal = {f"{source.value}-{target.value}" for source, targets in TRANSITIONS.items() for target in targets}
    assert drawn == legal | {"[*]-PENDING", "[*]-RUNNING"}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_pages_outside_of_the_site_lead_somewhere(name: str) -> None:
    for target in _LINK.findall((ROOT / name).read_text("utf-8")):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("name", PLAYER_SHA256)
def test_player_is_the_one_that_was_published(name: str) -> None:
    assert hashlib.sha256((PLAYER / name).read_bytes()).hexdigest() == PLAYER_SHA256[name]


def test_a_block_that_nobody_runs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.blocks.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n```\nbare\n```\n\n<!-- not run: needs a cluster of its own -->\n```sh\nkubectl\n```\n\n"
        "<!-- invisible-code-block: sql\nSELECT 1\n-->\n\n- item\n\n  ```ini\n  [a]\n  ```\n",
        "utf-8",
    )
    assert blocks(page) == [
        Block("page.md", 3, "", "bare\n", None),
        Block("page.md", 8, "sh", "kubectl\n", "needs a cluster of its own"),
        Block("page.md", 18, "ini", "[a]\n", None),
        Block("page.md", 12, "sql", "SELECT 1\n", None),
    ]
    assert pages()[0].name == "README.md"


def test_what_is_wrong_with_a_site_is_seen(tmp_path: Path) -> None:
    def verify() -> tuple[int, list[str]]:
        command = [sys.executable, str(DOCS / "docsite" / "verify.py"), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr.splitlines()

    (tmp_path / "index.html").write_text(
        '<a href="sub/two.html#x">2</a><script src="https://cdn.example/a.js"></script>'
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "two.html").write_text('<a href="../index.html">1</a><img src="gone.svg">')
    (tmp_path / "alone.html").write_text("")
    code, told = verify()
    assert (code, len(told)) == (1, 3)
    assert told[0].endswith("index.html: loads https://cdn.example/a.js from elsewhere")
    assert told[1].endswith("two.html: loads gone.svg, which is not there")
    assert told[2].endswith("alone.html: no way leads there")
    (tmp_path / "index.html").write_text('<a href="sub/two.html">2</a><a href="alone.html">3</a>')
    (tmp_path / "sub" / "gone.svg").write_text("")
    assert verify() == (0, [])


def test_the_page_that_compares_counts_the_lines_of_its_examples() -> None:
    page = (DOCS / "compared.md").read_text("utf-8")
    rows = table(section(page, "How many lines"))
    assert len(rows) > 1
    for row in rows:
        heading = row.pop("").removeprefix("[").partition("]")[0]
        examples = _EXAMPLE.finditer(section(page, heading[0].upper() + heading[1:]))
        counts = {found["queue"]: str(_lines_of_code(found["code"])) for found in examples}
        assert counts == {queue: count for queue, count in row.items() if count}, heading


def _lines_of_code(source: str) -> int:
    return sum(not _NOT_COUNTED.match(line) for line in source.splitlines())
