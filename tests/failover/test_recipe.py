"""The recipe of docs/high-availability.md is what the cluster of the tests is made of."""

from __future__ import annotations

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.failover.cluster import RECIPE


@pytest.mark.parametrize("name", ["patroni.yml", "node.env"])
def test_the_page_shows_the_file(name: str) -> None:
    shown = {block.source for block in blocks(ROOT / "docs" / "high-availability.md")}
    assert (RECIPE / name).read_text("utf-8") in shown
