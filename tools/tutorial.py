"""
The tutorial shows the files of ``examples/shop``: ``python -m tools.tutorial`` writes them into the page.

A block whose first line is ``# NAME`` is the file of that name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "tutorial.md"
SHOP: Final = ROOT / "examples" / "shop"
_BLOCK: Final = re.compile(
    r"^```(?P<language>python|toml)\n# (?P<name>[\w/]+\.(?:py|toml))\n.*?^```$", re.MULTILINE | re.DOTALL
)


def shown() -> list[str]:
    """The names of the files that the page has."""
    return [found["name"] for found in _BLOCK.finditer(PAGE.read_text("utf-8"))]


def filled(page: str, shop: Path = SHOP) -> str:
    """The page with the files as they are."""

    def block(found: re.Match[str]) -> str:
        return f"```{found['language']}\n# {found['name']}\n{(shop / found['name']).read_text('utf-8')}```"

    return _BLOCK.sub(block, page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
