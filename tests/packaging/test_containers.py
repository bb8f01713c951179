"""The container's files: what their linters say, and what those cannot know."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from ruamel.yaml import YAML

from tests.support.checking.markdown import DOCS

ROOT: Final = DOCS.parent
DEPLOY: Final = ROOT / "deploy"
DOCKERFILE: Final = (DEPLOY / "Dockerfile").read_text("utf-8")
LAST_STAGE: Final = DOCKERFILE.rpartition("\nFROM ")[2]
BIN: Final = Path(sys.executable).parent
SECRET: Final = re.compile(r"(?i)(password|secret|token|dsn)\s*[=:]\s*(?![?$]|\S*\$\{)\S")


@pytest.fixture(scope="module")
def compose() -> Mapping[str, Any]:
    read: Mapping[str, Any] = YAML(typ="safe").load(DEPLOY / "compose.yaml")
    return read


def check(*words: str) -> None:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, done.stdout if "ok --" in done.stdout else "")


def test_the_dockerfile_by_hadolint() -> None:
    check(str(BIN / "hadolint"), "deploy/Dockerfile")


@pytest.mark.rest
def test_compose_by_its_schema() -> None:
    check(str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", "deploy/compose.yaml")


def test_it_runs_as_nobody_in_particular() -> None:
    """By a number that is not root's; in exec form, so that signals reach it; with a health check and a good stop."""
    assert re.search(r"^USER 10001:10001$", LAST_STAGE, re.MULTILINE)
    assert re.search(r'^CMD \["pulse-supervisor"\]$', LAST_STAGE, re.MULTILINE)
    assert re.search(r'^HEALTHCHECK .* CMD \["pulse", "ctl", .*"ping"\]$', LAST_STAGE, re.MULTILINE)
    assert "\nSTOPSIGNAL SIGTERM\n" in LAST_STAGE


def test_no_secret_is_in_there() -> None:
    """Passwords come from outside, at the start."""
    for path in (DEPLOY / "Dockerfile", DEPLOY / "compose.yaml"):
        assert SECRET.findall(path.read_text("utf-8")) == [], path


def test_what_is_copied_is_there_and_nothing_else_is_sent() -> None:
    ignored, *allowed = [
        line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line and not line.startswith("#")
    ]
    assert ignored == "*"
    sent = {line[1:] for line in allowed if line.startswith("!")}
    copied = set[str]()
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.replace("${LOCK}", "server").split():
            assert (ROOT / source).exists(), source
            copied |= {one for one in sent if f"{source}/".startswith(f"{one}/")}
            assert any(f"{source}/".startswith(f"{one}/") for one in sent), source
    assert copied == sent


def test_what_a_wheel_holds_is_copied() -> None:
    """The image is made from a wheel that is built there."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = " ".join(re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)).split()
    for held in (*wheel["force-include"], *wheel["shared-data"]):
        assert any(f"{held}/".startswith(f"{one}/") for one in copied), held


def test_compose_stops_later_than_pulse(compose: Mapping[str, Any]) -> None:
    """Both have more time than handlers (30 s), share pids and sockets, and wait for what they need."""
    services = compose["services"]
    for name in ("server", "workers"):
        one = services[name]
        assert int(one["stop_grace_period"].removesuffix("s")) > 40
        assert one["pid"] == "service:pids"
        assert "runtime:/run/pulse" in one["volumes"]
        assert (one["read_only"], one["cap_drop"]) == (True, ["ALL"])
    assert "/etc/machine-id:/etc/machine-id:ro" in services["server"]["volumes"]
    assert services["server"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["workers"]["depends_on"]["server"]["condition"] == "service_healthy"
    assert not any("ports" in one for one in services.values())
