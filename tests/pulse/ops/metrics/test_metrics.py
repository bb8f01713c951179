"""The exported metrics: each documented, bounded and readable, for any topic names and with any process down."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pulse.common.histogram import BOUNDS
from pulse.config import load
from pulse.errors import ConfigError
from pulse.ops.metrics.catalogue import DURATIONS, LONGEST_LABEL, METRICS, clean
from pulse.ops.metrics.collector import Exported
from pulse.ops.metrics.server import SCRAPES, MetricsAddress, MetricsServer
from pulse.ops.metrics.snapshot import MetricsSnapshot, MetricsSource
from pulse.protocol.answers import read
from pulse.protocol.stats import Stats
from tests.support.checking.markdown import DOCS, section, table
from tests.support.waiting import until

HOSTILE: Final = [
    'a"b', "a\nb", "a\\b", "\ud800", "\u202eabc", "x" * 200, "x" * 199 + "y", "é", "", "{}", "a\0b", "\x1b[2J",
]  # fmt: skip
BUCKETS: Final = {"bounds": list(BOUNDS), "counts": list(accumulate([1.0] * (len(BOUNDS) + 1))), "sum": 5.0}
TOPIC: Final = {"ready": 2, "oldest_s": 7.0, "counts": {"submitted": 5}}


def _stats(topics: Sequence[str], **more: object) -> Mapping[str, object]:
    return {
        "at": 2.0, "since": 1.0, "topics": [{"topic": name, **TOPIC} for name in topics],
        "others": {"topics": 3, "ready": 10, "oldest_s": 99.0}, "rates": {}, "exact": True, "wait_s": {}, "run_s": {},
        "series": {"step_s": 5.0, "times": []},
        "counters": {"submitted": 9, "outcomes": {"completed": 4}, "reaped": {"crashed": 1}},
        "histograms": dict.fromkeys(("wait_s", "start_s", "run_s", "recovery_s", "lease_margin_s"), BUCKETS),
        "database": {"away_s": 0.0, "pools": {"hot": {"size": 4, "in_use": 1, "failures": 0, "took_s": BUCKETS}}},
        "dispatcher": {"pid": 1, "cpu_s": 1.5, "rss_bytes": 1000}, "depth_age_s": 0.5, "paused": False,
        "findings": {"xmin": "wrong"}, "outbox": {"ends": 8, "oldest_s": 2.5},
        "limits": [{"name": "api", "running": 3, "concurrency": 2, "full": True}, {"name": "rate\n", "running": 1}],
        **more,
    }  # fmt: skip


STATUS: Final[Mapping[str, object]] = {
    "supervisor": {"pid": 1, "uptime_s": 5.0, "version": "1"},
    "actors": [{"name": "dispatcher", "pid": 1, "state": "running", "restarts": 2, "uptime_s": 1.0}],
    "pools": [{"name": "pool", "pid": 1, "state": "failed", "restarts": 0, "uptime_s": None}],
    "database": {"ok": True},
}


def _exported(snapshot: MetricsSnapshot) -> str:
    class Still:
        def take(self) -> MetricsSnapshot:
            return snapshot

    registry = CollectorRegistry()
    registry.register(Exported(cast("MetricsSource", Still())))
    return generate_latest(registry).decode()


def _samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found: dict[Any, float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            key = (one.name, tuple(sorted(one.labels.items())))
            assert key not in found
            found[key] = one.value
    return found


def test_a_server_elsewhere_has_no_supervisor_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of this machine would tell of another queue."""
    monkeypatch.setenv("PULSE_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("PULSE_CONNECT", raising=False)
    assert str(MetricsSource(None, 1)._supervisors()[0]) == f"{tmp_path}/supervisor.sock"
    monkeypatch.setenv("PULSE_CONNECT", "tls://mail.example:7420")
    assert MetricsSource(None, 1)._supervisors() == []


FULL: Final = MetricsSnapshot(read(Stats, _stats(["a", "b"])), STATUS)


def test_the_table_in_the_docs_is_what_is_exported() -> None:
    told: list[tuple[str, str, tuple[str, ...], str]] = [(one.name, one.kind, one.labels, one.help) for one in METRICS]
    told += [(one.name, "histogram", one.labels, one.help) for one in DURATIONS]
    rows = table(section((DOCS / "operations.md").read_text("utf-8"), "Metrics"))
    documented = [
        (
            row["metric"].strip("`"),
            row["type"],
            tuple(label.strip(" `") for label in row["labels"].split(",") if label.strip()),
            row["meaning"],
        )
        for row in rows
    ]
    assert documented == told
    names = {name for name, _ in _samples(_exported(FULL))}
    expected = {name if kind != "histogram" else f"{name}_count" for name, kind, _, _ in told} - {
        "pulse_worker_deaths_total"  # nobody died
    }
    assert expected <= names


def test_values_are_those_of_the_server() -> None:
    """Sums are of all topics, also of those that have no series; labels say which."""
    samples = _samples(_exported(FULL))
    assert samples["pulse_jobs", (("state", "ready"),)] == 14
    assert (samples["pulse_oldest_job_seconds", ()], samples["pulse_topics", ()]) == (99, 5)
    assert (samples["pulse_outbox_ends", ()], samples["pulse_outbox_oldest_end_seconds", ()]) == (8, 2.5)
    assert samples["pulse_topic_jobs", (("state", "ready"), ("topic", "a"))] == 2
    assert samples["pulse_topic_jobs_submitted_total", (("topic", "b"),)] == 5
    full = [samples[f"pulse_limit_{name}", (("limit", "api"),)] for name in ("running", "concurrency", "full")]
    limits = {(name, dict(labels)["limit"]) for name, labels in samples if name.startswith("pulse_limit_")}
    assert (full, limits) == ([3, 2, 1], {
        *((f"pulse_limit_{name}", "api") for name in ("running", "concurrency", "full")),
        *((f"pulse_limit_{name}", clean("rate\n")) for name in ("running", "full")),
    })  # fmt: skip
    assert samples["pulse_attempts_ended_total", (("outcome", "completed"),)] == 4
    assert samples["pulse_actor_restarts_total", (("actor", "dispatcher"),)] == 2
    assert samples["pulse_finding", (("check", "xmin"), ("severity", "wrong"))] == 1
    assert samples["pulse_pool_up", (("pool", "pool"),)] == 0
    assert [samples["pulse_up", (("part", part),)] for part in ("dispatcher", "supervisor", "database")] == [1, 1, 1]


def test_buckets_are_round_and_cumulative() -> None:
    """Of the counted bounds, those with leading 1, 2 and 5 are exported, and all durations at the end."""
    samples = _samples(_exported(FULL))
    buckets = {dict(labels)["le"]: n for (m, labels), n in samples.items() if m == "pulse_wait_seconds_bucket"}
    assert list(buckets)[:4] == ["0.001", "0.002", "0.005", "0.01"]
    assert buckets["0.001"] == 7  # of the smaller ones, too
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets["+Inf"] == len(BOUNDS) + 1
    assert samples["pulse_wait_seconds_sum", ()] == 5


@pytest.mark.parametrize(("snapshot", "up"), [
    (MetricsSnapshot(None, None), (0, 0, 0)),
    (MetricsSnapshot(None, STATUS), (0, 1, 1)),
    (MetricsSnapshot(FULL.stats, None), (1, 0, 1)),
    (MetricsSnapshot(None, {**STATUS, "database": None}), (0, 1, 0)),
    (MetricsSnapshot(FULL.stats, {**STATUS, "database": {"ok": False}}), (1, 1, 0)),
])  # fmt: skip
def test_who_is_down_is_told(snapshot: MetricsSnapshot, up: tuple[int, int, int]) -> None:
    samples = _samples(_exported(snapshot))
    assert tuple(samples["pulse_up", (("part", part),)] for part in ("dispatcher", "supervisor", "database")) == up
    assert (("pulse_jobs_submitted_total", ()) in samples) == (snapshot.stats is not None)
    assert any(name == "pulse_actor_up" for name, _ in samples) == (snapshot.status is not None)


def test_topics_with_hostile_names_are_harmless() -> None:
    samples = _samples(_exported(MetricsSnapshot(read(Stats, _stats(HOSTILE)), None)))
    labels = {dict(labels)["topic"] for name, labels in samples if name == "pulse_topic_paused"}
    assert len(labels) == len(HOSTILE)
    assert all(len(label) <= LONGEST_LABEL + 9 and label.isprintable() for label in labels)
    assert clean("images") == "images"
    assert clean("é") == "é"


@pytest.mark.parametrize(("text", "host", "port"), [
    ("9187", "127.0.0.1", 9187), ("0.0.0.0:1", "0.0.0.0", 1), ("[::1]:80", "::1", 80),
    ("db.example:8", "db.example", 8),
])  # fmt: skip
def test_addresses(text: str, host: str, port: int) -> None:
    """A bare port is loopback's."""
    settings = load({"PULSE_METRICS": text})
    address = MetricsAddress(settings.metrics or "")
    assert (address.host, address.port, address.path) == (host, port, None)


@pytest.mark.parametrize("text", ["99999", "x", "host:", ":80", "run/pulse.sock", "/" + "x" * 107, "1.2.3.4:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^PULSE_METRICS is .*a port of 127.0.0.1, host:port, or the whole path"):
        load({"PULSE_METRICS": text})


def test_who_asks_byte_by_byte_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulse.ops.metrics.server.SCRAPE_S", 0.2)
    listening = MetricsAddress("127.0.0.1:0").listen()
    at = listening.getsockname()
    server = MetricsServer(listening, cast("MetricsSource", None))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    with contextlib.ExitStack() as stack:
        stack.callback(thread.join, 5)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        slow = [stack.enter_context(socket.create_connection(at, 5)) for _ in range(SCRAPES)]

        def is_answered() -> bool:
            for one in slow:
                with contextlib.suppress(OSError):
                    one.sendall(b"G")
            with socket.create_connection(at, 5) as other, contextlib.suppress(OSError):
                other.sendall(b"GET /none HTTP/1.0\r\n\r\n")
                return other.recv(12) == b"HTTP/1.0 404"
            return False

        until(is_answered, "there is room", 5.0)
