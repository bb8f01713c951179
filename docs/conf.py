"""
How ``make docs`` builds the site: Sphinx reads the Markdown of this folder as it is; see ADR 0037.

Nothing here is needed to read the pages on a code-hosting site. So what would look like code there is put in by this
file: the tables of contents, and the drawing that stands for the Mermaid diagram.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "pulse"
author = "The pulse authors"
copyright = "The pulse authors, MIT licence"  # noqa: A001 - Sphinx's name
html_title = "pulse"

extensions = ["myst_parser", "docsite.navigation", "docsite.diagrams", "docsite.recordings"]
exclude_patterns = ["images/README.md"]
source_suffix = {".md": "markdown"}
root_doc = "index"

# Links to headings are checked as they are written for code-hosting sites.
myst_heading_anchors = 3
myst_links_external_new_tab = False
nitpicky = True

# What a block is, as the pages say it; frames of the protocol and hex dumps have no lexer.
highlight_language = "text"
pygments_style = "tango"
pygments_dark_style = "github-dark"

html_theme = "furo"
html_static_path = ["docsite/static"]
html_css_files = ["pulse.css"]
html_copy_source = False
html_favicon = "images/pulse.svg"
html_show_sphinx = False
html_use_index = False
html_theme_options = {"navigation_with_keys": True}
myst_fence_as_directive = ["mermaid"]


def setup(app: Sphinx) -> None:
    """Called by Sphinx: what blocks of the protocol's pages are called."""
    for name in ("frames", "hex"):
        app.add_lexer(name, TextLexer)
