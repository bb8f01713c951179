"""The plugin of pytest as a user's suite has it: a pytest of its own, in a directory of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.servers.embedded_kit import needs_postgres

pytestmark = pytest.mark.process

IMPORT_MS: Final = 5.0
WITHIN_S: Final = 100
JOBS: Final = """
import pulse

app = pulse.App()

@app.handler("resize")
def resize(path: str) -> str:
    return path.upper()
"""
TESTS: Final = """
import pulse
from shop.jobs import resize

def test_inline(pulse_inline):
    assert pulse_inline.run(resize, "a.png").result == "A.PNG"

def test_of_something_else():
    assert not pulse.__name__.isupper()
"""
FAILING: Final = """
from shop.jobs import resize

def test_fails(pulse_inline):
    pulse_inline.submit(resize, {"path": "a.png"})
    assert pulse_inline.submitted("resize", path="b.png")
"""
SERVER: Final = """
import pytest
from shop.jobs import resize

@pytest.mark.parametrize("number", range(4))
def test_server(pulse_server, number):
    pulse_server.client.submit(resize, {"path": f"{number}.png"})
    pulse_server.run_until_idle()
    (job,) = pulse_server.submitted(resize)
    assert job.result == f"{number}.PNG"
"""


def _pytest(directory: Path, tests: str, *words: str, ini: str = "pulse_app = shop.jobs:app") -> tuple[int, str]:
    (directory / "shop").mkdir()
    (directory / "shop" / "jobs.py").write_text(JOBS)
    (directory / "test_shop.py").write_text(tests)
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath = .\n{ini}\n")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PULSE_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=directory, env=env, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.rest
def test_a_suite_names_its_app_once(tmp_path: Path) -> None:
    code, said = _pytest(tmp_path, TESTS, "-W", "error")
    assert code == 0, said
    assert "2 passed" in said


@pytest.mark.rest
def test_a_suite_without_an_app_is_told_how_to_name_one(tmp_path: Path) -> None:
    code, said = _pytest(tmp_path, TESTS, ini="")
    assert code == 1
    assert 'which app? Set pulse_app = "shop.jobs:app" for pytest, or write a fixture named pulse_app' in said
    assert "1 passed, 1 error" in said


@pytest.mark.rest
def test_a_failed_test_says_what_was_submitted_instead(tmp_path: Path) -> None:
    code, said = _pytest(tmp_path, FAILING)
    assert code == 1
    assert "assert <no job resize(path='b.png'), but resize(path='a.png') PENDING>" in said
    assert re.search(r"-+ jobs in pulse_inline -+\nresize\(path='a\.png'\) PENDING\n", said)


@pytest.mark.rest
@pytest.mark.postgres
@pytest.mark.system
@needs_postgres
def test_each_process_of_xdist_has_a_server_of_its_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    code, said = _pytest(tmp_path, SERVER, "-n", "2", "-W", "error")
    assert code == 0, said
    assert "4 passed" in said


@pytest.mark.rest
def test_the_plugin_costs_next_to_nothing_until_it_is_used() -> None:
    script = (
        "import sys, time, pytest; began = time.perf_counter(); import pulse.testing.plugin; "
        "print((time.perf_counter() - began) * 1000, *sorted(sys.modules))"
    )
    took: list[float] = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        took_ms, *modules = done.stdout.split()
        took.append(float(took_ms))
        assert {one for one in modules if one.startswith("pulse")} == {"pulse", "pulse.testing", "pulse.testing.plugin"}
        assert not {"msgspec", "anyio", "asyncpg", "trio"} & set(modules)
    assert min(took) < IMPORT_MS
