"""
Mermaid blocks, drawn: code-hosting sites draw them by themselves, the site shows an SVG of ours in their place.

Mermaid itself is 3 MB of script for one diagram. A test holds the arrows of the drawing against those of the block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DRAWING: Final = "images/states.svg"


class Mermaid(SphinxDirective):
    """A Mermaid block: its text is for others, the drawing stands for it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The drawing, as part of the page, so that it takes the page's colours."""
        drawing = (Path(self.env.srcdir) / DRAWING).read_text("utf-8")
        self.env.note_dependency(DRAWING)
        return [nodes.raw("", f'<figure class="drawing">{drawing}</figure>', format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx. ``mermaid`` is in ``myst_fence_as_directive``, so the plain fence is enough."""
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True}
