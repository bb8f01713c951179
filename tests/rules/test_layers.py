"""Rule 2: the layers in pyproject.toml, on a small product that has a module for each of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
CONTRACTS: Final[list[dict[str, Any]]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"][
    "importlinter"
]["contracts"]
LAYERED: Final = [contract for contract in CONTRACTS if contract["type"] in {"layers", "protected"}]
TYPES_ONLY: Final = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {} import x\n"


def names(contract: dict[str, Any]) -> Iterable[str]:
    ignored = contract.get("exhaustive_ignores", [])
    yield from contract.get("allowed_importers", [])
    begins = [f"{container}." for container in contract.get("containers", [])] or [""]
    for begin in begins:
        for layer in [*contract.get("layers", []), *ignored]:
            yield from (f"{begin}{name.strip()}" for name in re.split("[|:]", layer))


@pytest.fixture
def product(tmp_path: Path) -> Path:
    layers = {name for contract in LAYERED for name in names(contract)}
    for name in sorted({*layers, "pulse.cli.admin.migrate", "pulse.ops.doctor.queue", "pulse.cli.jobs.page"}):
        folder = tmp_path.joinpath(*name.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        for package in (folder, *folder.parents):
            if package == tmp_path:
                break
            (package / "__init__.py").touch()
    return tmp_path


def add(product: Path, importer: str, imported: str) -> None:
    (product.joinpath(*importer.split(".")) / "__init__.py").write_text(TYPES_ONLY.format(imported), "utf-8")


def lint(product: Path) -> str:
    """What import-linter says about the product, by the contracts of the checkout; "": that they are kept."""
    lines = ["[tool.importlinter]", 'root_packages = ["pulse", "pulse_actors", "pulse_supervisor"]']
    for contract in LAYERED:
        lines.append("[[tool.importlinter.contracts]]")
        kept = {
            key: value for key, value in contract.items() if key != "ignore_imports"
        }  # there are none of these here
        lines += [f"{key} = {json.dumps(value)}" for key, value in kept.items()]
    config = product / "pyproject.toml"
    config.write_text("\n".join(lines), "utf-8")
    command = [str(Path(sys.executable).parent / "lint-imports"), "--config", str(config), "--no-cache", "--no-logo"]
    env = {**os.environ, "PYTHONPATH": str(product)}
    done = subprocess.run(command, cwd=product, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}
    return done.stdout if done.returncode else ""


def test_imports_that_go_down_are_kept(product: Path) -> None:
    """From the top to the bottom, and from those who may use the store."""
    for importer, imported in [
        ("pulse.cli", "pulse.errors"),
        ("pulse.ui", "pulse.ops"),
        ("pulse.cli.admin.migrate", "pulse.store"),
        ("pulse.ops.doctor.queue", "pulse.store"),
        ("pulse_actors.shared", "pulse.store"),
        ("pulse_supervisor.main", "pulse_supervisor.systemd"),
    ]:
        add(product, importer, imported)
    assert lint(product) == ""


@pytest.mark.rest
@pytest.mark.parametrize(("importer", "imported"), [
    ("pulse.ui", "pulse.cli"), ("pulse.ops", "pulse.ui"), ("pulse.app", "pulse.config"),
    ("pulse.errors", "pulse.common"), ("pulse.protocol", "pulse.system"),
    ("pulse_supervisor.control", "pulse_supervisor.postgres"),
    ("pulse_supervisor.slots", "pulse_supervisor.runner"), ("pulse_actors.dispatcher", "pulse_actors.watchdog"),
    ("pulse_actors.runtime", "pulse_actors.shared"), ("pulse.cli.jobs.page", "pulse.store"),
    ("pulse.worker", "pulse.store"),
])  # fmt: skip
def test_imports_that_go_up_or_aside_are_found(product: Path, importer: str, imported: str) -> None:
    """Although they are for type checking only."""
    add(product, importer, imported)
    assert f"{importer} -> {imported}" in " ".join(lint(product).split())


def test_a_new_package_needs_a_layer(product: Path) -> None:
    """One that no layer names is found before anything imports it."""
    (product / "pulse" / "extra").mkdir()
    (product / "pulse" / "extra" / "__init__.py").touch()
    assert "extra" in lint(product)
