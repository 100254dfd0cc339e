"""Each setting of the agent's configuration: its name, default and meaning. `--print-config` and the checks use this
table.
"""

from __future__ import annotations

import re

from pyprof.agent.time_parsing import seconds
from pyprof.model.labels import labels_of
from pyprof.options import MAX_RATE_HZ, NATIVE_VIEWS, SIMPLE_MODES
from pyprof.records import dataclass, field

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MAX_HEADERS, _MAX_HEADER = 20, 1000
COLLECTORS = ("auto", "perf", "ptrace", "bpf")


class Wrong(ValueError):
    """A value of a setting that is not valid; the text says which values are."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the agent's configuration.

    Attributes:
        kind: Kind of value, as checked() knows it.
        default: The default value as it is written in the file, "" for none.
    """

    table: str
    name: str
    kind: str
    default: str
    help: str


SETTINGS = (
    Setting(
        "spool",
        "path",
        "TEXT",
        "",
        "folder of the spool; default for root: /var/lib/pyprof/spool, else ~/.local/state/pyprof/spool",
    ),
    Setting("spool", "max_bytes", "SIZE", '"1G"', "maximum size of all segments; the oldest are deleted first"),
    Setting("spool", "max_files", "COUNT", "100000", "segments"),
    Setting("spool", "max_age", "SPAN", '"14d"', "age after which segments are deleted"),
    Setting("windows", "every", "SPAN", '"60s"', "length of a window; windows end near multiples of it"),
    Setting(
        "windows",
        "durable",
        "SPAN",
        '"10s"',
        "time between two checkpoints: at most this much is lost if the agent is killed",
    ),
    Setting("sampling", "rate", "RATE", "19", "samples a second of each thread"),
    Setting("sampling", "modes", "MODES", '["cpu"]', "cpu: running threads; offcpu: waiting threads; wall: both"),
    Setting("sampling", "python", "VIEW", '"extensions"', f"native frames beside Python's: {', '.join(NATIVE_VIEWS)}"),
    Setting("sampling", "collector", "COLLECTOR", '"auto"', f"how samples are taken: {', '.join(COLLECTORS)}"),
    Setting(
        "sampling",
        "max_stopped",
        "PERCENT",
        "1",
        "maximum percentage of its time for which a process is stopped (only sampling by stops)",
    ),
    Setting(
        "budget",
        "cpu",
        "PERCENT",
        "1",
        "maximum processor time of the agent and its workers, in percent of one processor",
    ),
    Setting(
        "budget", "memory", "SIZE", '"200M"', "maximum memory of the agent and its workers; shared memory counts once"
    ),
    Setting(
        "budget",
        "over",
        "SPAN",
        '"60s"',
        "period over which both limits hold: cpu by fewer samples, memory by fewer processes",
    ),
    Setting("record", "last", "SPAN", '"10m"', "time before the request that pyprof agent record includes"),
    Setting("record", "disk", "SIZE", '"64M"', "maximum size of the files for it, in kept/ of the spool"),
    Setting(
        "record",
        "group",
        "GROUP",
        "",
        "group whose members may request recordings, in addition to root and the agent's user; name or number",
    ),
    Setting(
        "http",
        "port",
        "PORT",
        "",
        "port on 127.0.0.1 for /metrics, /healthz and /readyz; without a port there are none",
    ),
)
"""Settings of the agent in tables with one value for each name. In addition there are [labels] and [[rule]]."""

RULE = (
    Setting("rule", "action", "ACTION", '"include"', 'or "exclude": such processes are not recorded'),
    Setting("rule", "service", "TEMPLATE", '"{name}"', "name of the service in the spool"),
    Setting("rule", "labels", "LABELS", "{}", "labels of the processes: names and templates"),
    Setting("rule", "rate", "RATE", "", "replaces sampling.rate"),
    Setting("rule", "modes", "MODES", "", "replaces sampling.modes"),
    Setting("rule", "python", "VIEW", "", "replaces sampling.python"),
)
"""Settings of a rule of the agent. In addition there are CRITERIA: a pattern, or a list of which one must match. All
must match.
"""

CRITERIA = {
    "name": "name of the process (comm, 15 letters)",
    "exe": "path of its program",
    "cmdline": "a regular expression that is searched in its command line",
    "user": "name or number of its user",
    "cgroup": "path of its control group, or one above it",
    "unit": "systemd unit",
    "container": "first 12 letters of the container's id",
    "parent": "name of its parent process",
}
"""Criteria of the agent's rules -> their meaning. Patterns are those of the shell, except for cmdline."""


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """The way in which processes are sampled; processes with equal values share a collector."""

    rate: float
    mode: str
    python: str


@dataclass(frozen=True, slots=True)
class Values:
    """The values of the agent's settings (SETTINGS), by name."""

    path: str = ""
    max_bytes: int = 1 << 30
    max_files: int = 100_000
    max_age: float = 14 * 86_400.0
    every: float = 60.0
    durable: float = 10.0
    rate: float = 19.0
    modes: tuple[str, ...] = ("cpu",)
    python: str = "extensions"
    collector: str = "auto"
    max_stopped: float = 1.0
    cpu: float = 1.0
    memory: int = 200 << 20
    over: float = 60.0
    last: float = 600.0
    disk: int = 64 << 20
    group: str = ""
    port: int = 0
    labels: dict[str, str] = field(default_factory=dict)


def checked(kind: str, value: object) -> object:
    """Check a setting's value, and return it as it is used; raise Wrong if it is not valid."""
    if kind in ("TEXT", "TEMPLATE"):
        if not isinstance(value, str) or not value or not value.isprintable():
            raise Wrong("is not a text")
        return value
    if kind in _TEXTS:
        pattern, meaning = _TEXTS[kind]
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise Wrong(meaning)
        return value
    if kind == "LABELS":
        return _labels(value)
    if kind == "HEADERS":
        return _headers(value)
    if kind == "MODES":
        modes = value if isinstance(value, list) else [value]
        if not modes or not all(mode in SIMPLE_MODES for mode in modes):
            raise Wrong(f"is not a list of {', '.join(SIMPLE_MODES)}")
        return tuple(dict.fromkeys(modes))
    if kind in _CHOICES:
        if value not in _CHOICES[kind]:
            raise Wrong(f"is not one of {', '.join(_CHOICES[kind])}")
        return value
    return _number(kind, value)


SINK_NAME = r"[a-z0-9][a-z0-9_-]{0,39}"
_TEXTS = {
    "NAME": (SINK_NAME, "is not a name of a-z, 0-9, _ and -, at most 40 letters"),
    "GROUP": (r"[A-Za-z0-9_][A-Za-z0-9_-]{0,31}", "is no name or number of a group"),
    "PATH": (r"/[^\0\n]{0,999}", "is not an absolute path"),
    "URL": (r"https?://[^\s/@?#]+(?:/[^\s@?#]*)?", "is no http:// or https:// address; a user and password have files"),
    "BUCKET": (r"[a-z0-9]+://[^\s@?#]+", "is no address such as s3://bucket/prefix; keys stand elsewhere"),
}

_CHOICES: dict[str, tuple[str, ...]] = {
    "VIEW": tuple(NATIVE_VIEWS),
    "COLLECTOR": COLLECTORS,
    "SINK": ("pyprof", "pyroscope", "otlp", "parca", "folder", "bucket"),
    "PROTOCOL": ("http", "grpc"),
    "API": ("push", "ingest"),
    "ACTION": ("include", "exclude"),
}


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Wrong('is not { name = "text" }')
    try:
        return dict(labels_of(value))
    except ValueError as error:
        raise Wrong(f"is not usable: {error}") from None


def _headers(value: object) -> dict[str, str]:
    """Check HTTP headers of a configuration. Usual headers for secrets are refused, because a configuration must not
    contain secrets.
    """
    if not isinstance(value, dict) or len(value) > _MAX_HEADERS:
        raise Wrong('is not { name = "text" }')
    for name, text in value.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name) or not isinstance(text, str) or not text.isascii():
            raise Wrong('is not { name = "text" }')
        if not text.isprintable() or len(text) > _MAX_HEADER:
            raise Wrong("has a text that is not printable, or too long")
        if re.search(r"authori[sz]ation|cookie|secret|token|password|api-?_?key", name, re.IGNORECASE):
            raise Wrong(f"has {name}: secrets stand in files, token_file or password_file")
    return dict(value)


def _number(kind: str, value: object) -> float | int:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if kind == "SPAN":
        found = seconds(value) if isinstance(value, str) else None
        if found is None or not 1 <= found <= 3660 * 86_400:
            raise Wrong('is not a time such as "60s", "2h", "14d"')
        return found
    if kind == "SIZE":
        size = _size(value)
        if size is None or size < 1 << 20:
            raise Wrong('is not a size from "1M" on, such as "500M" or "2G"')
        return size
    if kind == "PORT":
        if not isinstance(number, int) or not 1 <= number <= 65535:
            raise Wrong("is not a port from 1 to 65535")
        return number
    least, most = {"COUNT": (1, 10**7), "RATE": (0, MAX_RATE_HZ), "PERCENT": (0, 100)}[kind]
    if number is None or not least <= number <= most or not number or (kind == "COUNT" and not isinstance(value, int)):
        raise Wrong(f"is not a number above 0, at most {most:g}" if kind != "COUNT" else "is not a number of files")
    return number


def _size(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or not value[:-1].isascii() or not value[:-1].isdigit():
        return None
    return int(value[:-1]) * _SIZES[value[-1].upper()] if value[-1].upper() in _SIZES and len(value) < 12 else None
