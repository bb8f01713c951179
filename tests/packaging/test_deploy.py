"""The dashboard and the alerts: every metric that they name is exported, and the alerts do what their tests say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import pytest

from pulse.ops.metrics.catalogue import DURATIONS, METRICS
from tests.support.checking.markdown import DOCS

DEPLOY: Final = DOCS.parent / "deploy"
RULES: Final = DEPLOY / "prometheus" / "alerts.yml"
NAMES: Final = {one.name: set(one.labels) for one in METRICS} | {
    f"{one.name}_{part}": {*one.labels, "le"} for one in DURATIONS for part in ("bucket", "sum", "count")
}
METRIC: Final = re.compile(r"\bpulse_\w+")
SELECTOR: Final = re.compile(r"\b(pulse_\w+)\{([^}]*)\}")


def _panels() -> Iterator[dict[str, Any]]:
    board = json.loads((DEPLOY / "grafana" / "pulse.json").read_text("utf-8"))
    yield from board["panels"]


def _expressions() -> list[str]:
    found = [target["expr"] for panel in _panels() for target in panel.get("targets", ())]
    return found + re.findall(r"expr: (.*)", RULES.read_text("utf-8"))


def test_every_metric_that_is_asked_for_is_exported() -> None:
    """All metrics and labels exist; the dashboard shows nearly all."""
    asked = set[str]()
    for expression in _expressions():
        names = set(METRIC.findall(expression))
        assert names <= NAMES.keys(), expression
        asked |= names
        for name, selector in SELECTOR.findall(expression):
            assert set(re.findall(r"(\w+)\s*[!=]", selector)) <= NAMES[name], expression
    assert {one.name for one in METRICS} <= asked
    assert {f"{one.name}_bucket" for one in DURATIONS} <= asked


def test_panels_are_told_apart_and_do_not_cover_each_other() -> None:
    panels = list(_panels())
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        assert panel["type"] == "row" or panel["targets"]
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_alerts_by_promtool(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *words], cwd=RULES.parent, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    names = re.findall(r"alert: (\w+)", RULES.read_text("utf-8"))
    tests = (RULES.parent / "alerts_test.yml").read_text("utf-8")
    assert len(set(names)) == len(names) >= 10
    assert [name for name in names if name not in tests] == []
