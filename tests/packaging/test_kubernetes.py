"""The manifests for Kubernetes: what its schemas say, and what those cannot know of pulse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from pulse.cli.main import cli
from pulse.config import Settings
from pulse.ops.metrics.catalogue import METRICS
from tests.support.checking.markdown import DOCS

FOLDER: Final = DOCS.parent / "deploy" / "kubernetes"
OLDEST: Final = "1.29"
NEWEST: Final = "1.37"
OPERATORS: Final = "monitoring.coreos.com/"  # of what is no part of Kubernetes itself

Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    return list(YAML(typ="safe").load_all(path))


def manifests() -> dict[str, Manifest]:
    """Each by its kind."""
    files = [path for path in sorted(FOLDER.rglob("*.yaml")) if path.name != "kustomization.yaml"]
    return {one["kind"]: one for path in files for one in documents(path)}


FOUND: Final = manifests()


def containers(kind: str) -> Iterator[Manifest]:
    spec = FOUND[kind]["spec"]["template"]["spec"]
    yield from (*spec.get("initContainers", ()), *spec["containers"])


def pod() -> Manifest:
    spec: Manifest = FOUND["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.rest
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("kind", [kind for kind, one in FOUND.items() if not one["apiVersion"].startswith(OPERATORS)])
def test_by_the_schemas_of_kubernetes(kind: str, version: str) -> None:
    import kubernetes_validate  # type: ignore[import-untyped] # here: it takes seconds, in each process that collects

    kubernetes_validate.validate(FOUND[kind], version, strict=True)


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "monitoring"], ids=["base", "monitoring"])
def test_each_file_is_applied(folder: Path) -> None:
    [kustomization] = documents(folder / "kustomization.yaml")
    assert set(kustomization["resources"]) == {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}


def test_settings_are_pulses() -> None:
    """Those of the ConfigMap, and those of the containers."""
    [kustomization] = documents(FOLDER / "kustomization.yaml")
    names = {word.partition("=")[0] for one in kustomization["configMapGenerator"] for word in one["literals"]}
    names |= {env["name"] for kind in ("Deployment", "Job") for one in containers(kind) for env in one.get("env", ())}
    assert names <= {f"PULSE_{field.name.upper()}" for field in msgspec.structs.fields(Settings)}


def test_commands_are_pulses() -> None:
    """What the containers and the probes run, with their options."""
    runner = CliRunner()
    for kind in ("Deployment", "Job"):
        for one in containers(kind):
            commands = [one["args"]] + [one[probe]["exec"]["command"] for probe in one if probe.endswith("Probe")]
            for program, *words in commands:
                assert program in {"pulse", "pulse-supervisor"}
                if words:
                    done = runner.invoke(cli, [*words, "--help"])
                    assert (done.exit_code, done.output.startswith("Usage:")) == (0, True), words


def test_the_server_outlives_its_workers() -> None:
    """It is a sidecar, they share pids, user and sockets, and handlers have the time that they may take."""
    spec = pod()
    [server], [workers] = spec["initContainers"], spec["containers"]
    assert (server["restartPolicy"], spec["shareProcessNamespace"]) == ("Always", True)
    assert "startupProbe" in server
    assert spec["terminationGracePeriodSeconds"] > 30 + 10
    assert spec["securityContext"]["runAsUser"] == 10001
    assert server["volumeMounts"] == workers["volumeMounts"]
    runtime = {"name": "PULSE_RUNTIME_DIR", "value": "/run/pulse/own"}
    assert runtime in server["env"]
    assert runtime in workers["env"]


def test_no_right_too_many() -> None:
    for kind in ("Deployment", "Job"):
        spec = FOUND[kind]["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        for one in containers(kind):
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert "memory" in one["resources"]["limits"]


def test_what_selects_finds_it() -> None:
    labels = FOUND["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert labels >= FOUND["Deployment"]["spec"]["selector"]["matchLabels"].items()
    assert labels >= FOUND["Service"]["spec"]["selector"].items()
    assert labels >= FOUND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items()
    port = FOUND["Service"]["spec"]["ports"][0]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in pod()["initContainers"][0]["ports"]
    assert FOUND["ServiceMonitor"]["spec"]["endpoints"][0]["port"] == port["name"]
    assert FOUND["NetworkPolicy"]["spec"]["ingress"][0]["ports"][0]["port"] == port["port"]


def test_the_autoscaler_asks_for_a_metric_that_there_is() -> None:
    spec = FOUND["HorizontalPodAutoscaler"]["spec"]
    assert spec["metrics"][0]["pods"]["metric"]["name"] in {one.name for one in METRICS}
    assert spec["scaleTargetRef"]["name"] == FOUND["Deployment"]["metadata"]["name"]
    queries = re.findall(r"query: (.+), threshold", (DOCS / "kubernetes.md").read_text("utf-8"))
    assert len(queries) == 2
    assert {name for query in queries for name in re.findall(r"pulse_\w+", query)} <= {one.name for one in METRICS}
