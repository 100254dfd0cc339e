"""Metrics of the agent and the server: their description, and the OpenMetrics text format (openmetrics.io, 1.0)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyprof.lazy_dataclasses import dataclass

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
END = "# EOF"
"""Last line of a text with metrics in the OpenMetrics format."""


@dataclass(frozen=True, slots=True)
class MetricKind:
    """The description of a metric of the agent or the server. `labels` is the name of its label and all values of the
    label, or ("", ("",)) for a metric without a label.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, tuple[str, ...]] = ("", ("",))


def format_metric(
    prefix: str, metric: MetricKind, values: Iterable[tuple[Mapping[str, str], float | None]]
) -> Iterator[str]:
    """Yield the lines of a metric in the OpenMetrics format: its type, its help, and one line for each known value.

    Args:
        prefix: Text in front of the names of all metrics of the program.
        metric: The metric.
        values: Pairs of labels and a value, which is None if it is not known.
    """
    name = prefix + metric.name
    yield f"# TYPE {name} {metric.kind}"
    yield f"# HELP {name} {metric.help}"
    suffix = "_total" if metric.kind == "counter" else ""
    for labels, value in values:
        if value is not None:
            shown = ",".join(f'{label}="{text}"' for label, text in labels.items() if label)
            yield f"{name}{suffix}{f'{{{shown}}}' if shown else ''} {value:.15g}"
