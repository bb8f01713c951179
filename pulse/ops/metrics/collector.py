"""A snapshot as the families of Prometheus' own library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from pulse.ops.metrics.catalogue import DURATIONS, METRICS, Durations, Metric
from pulse.ops.metrics.snapshot import MetricsSnapshot, MetricsSource
from pulse.protocol.stats import Buckets

LEADING: Final = ("1.0", "2.0", "5.0")  # bounds that are exported: from 1 ms on, three for each power of ten
LEAST_S: Final = 0.001


class Exported(Collector):
    """
    All metrics, asked for again at each scrape.

    Args:
        source: Asks the servers.
    """

    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Family]:
        """The families that there is something of."""
        snapshot = self._source.take()
        for metric in METRICS:
            yield _family(metric, snapshot)
        for durations in DURATIONS:
            yield _histogram(durations, snapshot)


def _family(metric: Metric, snapshot: MetricsSnapshot) -> Family:
    kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.read(snapshot):
        family.add_metric(labels, value)
    return family


def _histogram(durations: Durations, snapshot: MetricsSnapshot) -> Family:
    family = HistogramMetricFamily(durations.name, durations.help, labels=durations.labels)
    for labels, buckets in durations.read(snapshot):
        family.add_metric(labels, _chosen(buckets), buckets.sum)
    return family


def _chosen(buckets: Buckets) -> list[tuple[str, float]]:
    """Of the bounds those that people would have chosen, and all."""
    pairs = zip(buckets.bounds, buckets.counts, strict=False)
    chosen = [(f"{bound:g}", count) for bound, count in pairs if bound >= LEAST_S and f"{bound:.1e}"[:3] in LEADING]
    return [*chosen, ("+Inf", buckets.counts[-1])]
