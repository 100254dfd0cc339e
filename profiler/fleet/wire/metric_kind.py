"""The description of a metric of the agent or the server, and the content type of metrics in text."""

from __future__ import annotations

from pyprof.records import dataclass

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class MetricKind:
    """A metric of the agent or the server; labels are the label's name and all its values, or ("", ("",)) for none."""

    name: str
    kind: str
    help: str
    labels: tuple[str, tuple[str, ...]] = ("", ("",))
