"""
Recorded terminals: a link to a ``.cast`` file that stands alone in its paragraph becomes a player.

On code-hosting sites it stays a link to the recording. The player is a copy of asciinema-player; see ``static/player``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

FOLDER: Final = "recordings"
LEFT: Final = "\x1b[?1049l"  # the alternate screen
PLAYER: Final = ("player/asciinema-player.min.js", "player/asciinema-player.css")


class Players(SphinxPostTransform):
    """Replaces such paragraphs."""

    default_priority = 1  # before the links of downloads are resolved

    def run(self, **_kwargs: object) -> None:
        """Look at all links to recordings."""
        for link in list(self.document.findall(addnodes.download_reference)):
            paragraph = link.parent
            if str(link["reftarget"]).endswith(".cast") and len(paragraph.children) == 1:
                paragraph.replace_self(self._player(Path(str(link["reftarget"])).name, link.astext()))

    def _player(self, name: str, title: str) -> nodes.Node:
        head, *events = map(json.loads, (Path(self.env.srcdir) / FOLDER / name).read_text("utf-8").splitlines())
        shape = (
            f'data-cols="{head["width"]}" data-rows="{head["height"]}" data-poster="npt:{last_picture_s(events):.2f}"'
        )
        place = f'<div data-cast="{name}" {shape}></div><figcaption>{title}</figcaption>'
        return nodes.raw("", f'<figure class="recording">{place}</figure>', format="html")


def last_picture_s(events: list[list[Any]]) -> float:
    """The moment to show as a still picture: the end, or the last moment of a live screen."""
    return float(next((at_s - 0.5 for at_s, _, text in events if LEFT in text), events[-1][0] + 0.1))


def _publish(app: Sphinx, error: Exception | None) -> None:
    """Recordings are copied as scripts, because a page that is opened as a file may not fetch any."""
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir) / "_static" / FOLDER
    out.mkdir(parents=True, exist_ok=True)
    for cast in (Path(app.srcdir) / FOLDER).glob("*.cast"):
        text = json.dumps(cast.read_text("utf-8"))
        (out / f"{cast.name}.js").write_text(f"(window.casts ??= {{}})[{json.dumps(cast.name)}] = {text};\n", "utf-8")


def _load(app: Sphinx, _page: str, _template: str, _context: object, doctree: nodes.document | None) -> None:
    """Pages with a recording load the player; others do not."""
    if doctree is None:
        return
    casts = sorted(
        path.name
        for path in (Path(app.srcdir) / FOLDER).glob("*.cast")
        if any(f'data-cast="{path.name}"' in node.astext() for node in doctree.findall(nodes.raw))
    )
    if casts:
        script, style = PLAYER
        app.add_css_file(style)
        for file in (script, *(f"{FOLDER}/{name}.js" for name in casts), "play.js"):
            app.add_js_file(file)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_post_transform(Players)
    app.connect("html-page-context", _load)
    app.connect("build-finished", _publish)
    return {"parallel_read_safe": True}
