"""The agent's configuration: TOML in, checked values out. All errors are reported at once, each with its line and the
accepted values.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from pyprof.fleet.agent.process_rules import HOST, SamplingChoice, TargetRule, Template, criterion
from pyprof.fleet.agent.push_sink_types import COMMON, KINDS, PushTarget, wrong
from pyprof.fleet.toml_config_files import (
    COLLECTORS,
    BadConfig,
    ConfigError,
    Setting,
    Wrong,
    checked,
    document,
    seconds,
)
from pyprof.lazy_dataclasses import dataclass, field, field_names
from pyprof.model.thread_identity import MOST
from pyprof.options import NATIVE_VIEWS

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
        "budget", "memory", "SIZE", '"300M"', "maximum memory of the agent and its workers; shared memory counts once"
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
"""Settings of the agent in the TOML tables that have one value for each name. The tables [labels], [[rule]] and
[[push]] are described elsewhere.
"""


RULE = (
    Setting("rule", "action", "ACTION", '"include"', 'or "exclude": such processes are not recorded'),
    Setting("rule", "service", "TEMPLATE", '"{name}"', "name of the service in the spool"),
    Setting("rule", "labels", "LABELS", "{}", "labels of the processes: names and templates"),
    Setting("rule", "rate", "RATE", "", "replaces sampling.rate"),
    Setting("rule", "modes", "MODES", "", "replaces sampling.modes"),
    Setting("rule", "python", "VIEW", "", "replaces sampling.python"),
)
"""Settings of a [[rule]] of the agent besides its CRITERIA. A criterion is a pattern, or a list of patterns of which
one must match. All criteria of a rule must match.
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
"""Criteria of the agent's rules, with their meaning. Patterns are those of the shell, except for cmdline."""


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
    memory: int = 300 << 20
    over: float = 60.0
    last: float = 600.0
    disk: int = 64 << 20
    group: str = ""
    port: int = 0
    labels: dict[str, str] = field(default_factory=dict)


_MAX_RULES = 1000
_MAX_PUSHES = 20
_MAX_ERRORS = 100
_NAME_BYTES = 15
"""Maximum length of a process's name (comm) in bytes."""
_ONE_HOST = "the server counts all hosts without a name as one, so their rates are wrong; set host in [labels]"
_NEVER_REACHED = "this rule is never reached"
_LABEL_REPLACED = "the label service has no effect: the setting service of a rule replaces it"
_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\"-]+)\s*\]\]?\s*(?:#.*)?")

_NOT_OF_RECORDINGS = frozenset(each.name for each in SETTINGS if each.table in ("budget", "spool", "record", "http"))
"""Names of settings whose change needs no new recordings: the budget applies to running recordings, and the agent reads
the others only when it starts.
"""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    values: Values
    rules: tuple[TargetRule, ...]
    pushes: tuple[PushTarget, ...] = ()

    def samplings(self) -> tuple[SamplingChoice, ...]:
        """Return the different ways in which the rules of a configuration sample processes. Each way needs a separate
        recording.
        """
        return tuple(dict.fromkeys(each for rule in self.rules if rule.include for each in rule.samplings))

    def is_recorded_like(self, other: AgentConfig) -> bool:
        """Return True if the running recordings of another configuration suit this configuration, so that they need no
        restart.
        """
        return self.rules == other.rules and all(
            getattr(self.values, name) == getattr(other.values, name)
            for name in field_names(Values)
            if name not in _NOT_OF_RECORDINGS
        )


def without_file() -> AgentConfig:
    """Return the configuration of an agent that has no configuration file: it records all processes of the calling
    user, and each process name is a service.
    """
    return _Reading("", {}).config(default=({"user": str(os.geteuid())},))


def parse(text: str, name: str) -> AgentConfig:
    """Parse the text of an agent's configuration.

    Args:
        name: Name of the file.

    Raises:
        BadConfig: The configuration has errors.
    """
    config, errors = parse_valid(text, name)
    if errors:
        raise BadConfig(name, errors)
    return config


def parse_valid(text: str, name: str) -> tuple[AgentConfig, list[ConfigError]]:
    """Parse the text of an agent's configuration, and return its valid settings and its errors, sorted by line.

    Args:
        name: Name of the file.
    """
    try:
        reading = _Reading(text, document(text, name))
    except BadConfig as error:
        return without_file(), error.errors
    config = without_file()
    with suppress(_TooMany):
        config = reading.config()
    return config, sorted(reading.errors)


def warnings(text: str, name: str) -> list[ConfigError]:
    """Return warnings about settings of an agent's configuration that are valid but have no effect, sorted by line.

    Args:
        name: Name of the file.
    """
    return sorted(_Reading(text, document(text, name)).warnings())


def unmatched_rules(text: str, name: str, rules: Iterable[int], covered: Collection[int]) -> list[ConfigError]:
    """Return a warning for each of these rules, which decide about no process at present, unless warnings() says that
    the rule is never reached.

    Args:
        rules: Indices of the rules, from 0 on.
        name: Name of the file.
        covered: Indices of those of the rules that fit a process.
    """
    reading = _Reading(text, document(text, name))
    unreachable = {each.line for each in reading.warnings() if _NEVER_REACHED in each.text}
    earlier = "earlier rules decide about all processes that fit this rule now: put it before them if it is narrower"
    absent = "this rule fits no process that runs now"
    found = [reading.rule_warning(at, earlier if at in covered else absent) for at in rules]
    return [each for each in found if each.line not in unreachable]


def nameless_hosts(config: AgentConfig) -> Iterator[str]:
    """Yield a warning if a rule gives its processes no label host, or one that may be empty."""
    templates = [dict(rule.templates).get(HOST) for rule in config.rules if rule.include]
    if any(each is None or each.is_empty for each in templates):
        yield f"the label host is empty: {_ONE_HOST}"
    elif any(each.may_be_empty for each in templates if each is not None):
        yield f"the label host may be empty, because a process may lack what it names: {_ONE_HOST}"


class _TooMany(Exception):
    """The configuration has too many errors to continue."""


class _Reading:
    """A parser of one configuration file that collects errors."""

    def __init__(self, text: str, document: Mapping[str, Any]) -> None:
        self.errors: list[ConfigError] = []
        self._lines = text.split("\n")
        self._document = document

    def config(self, default: tuple[Mapping[str, Any], ...] = ()) -> AgentConfig:
        known = {"labels", "rule", "push", *(setting.table for setting in SETTINGS)}
        for table in self._document.keys() - known:
            self._wrong((table,), _unknown(table, known))
        found: dict[str, Any] = {}
        for table in dict.fromkeys(setting.table for setting in SETTINGS):
            part = self._document.get(table, {})
            settings = {setting.name: setting for setting in SETTINGS if setting.table == table}
            if not isinstance(part, dict):
                self._wrong((table,), f"{table} is a table: [{table}]")
                continue
            for key, value in part.items():
                self._take(found, settings, (table, key), value)
        labels = Setting("labels", "labels", "LABELS", "{}", "")
        if "labels" in self._document:
            self._take(found, {"labels": labels}, ("labels",), self._document["labels"])
            if "labels" not in found:
                self._check_templates(self._document["labels"], ("labels",))
        values = Values(**found)
        rules = self._document.get("rule", list(default))
        if not isinstance(rules, list) or len(rules) > _MAX_RULES:
            self._wrong(("rule",), f"rules are tables, [[rule]], at most {_MAX_RULES}")
            rules = []
        elif not rules:
            self._wrong((), "there is no [[rule]]: nothing would be recorded")
        made = tuple(self._rule(at, rule, values) for at, rule in enumerate(rules))
        return AgentConfig(values, made, self._pushes())

    def rule_warning(self, at: int, text: str) -> ConfigError:
        return ConfigError(self._line(("rule", at)), text)

    def warnings(self) -> Iterator[ConfigError]:
        every = seconds(str(self._document.get("windows", {}).get("every", "60s")))
        durable = seconds(str(self._document.get("windows", {}).get("durable", "1s")))
        if every is not None and durable is not None and durable > every:
            yield ConfigError(self._line(("windows", "durable")), "durable is longer than a window (windows.every)")
        if "service" in self._document.get("labels", {}):
            yield ConfigError(self._line(("labels", "service")), _LABEL_REPLACED)
        fits_all = 0
        for at, rule in enumerate(self._document.get("rule", [])):
            if fits_all:
                text = f"{_NEVER_REACHED}: that of line {fits_all} fits every process"
                yield ConfigError(self._line(("rule", at)), text)
                continue
            if "service" in rule.get("labels", {}):
                yield ConfigError(self._line(("rule", at, "labels")), _LABEL_REPLACED)
            criteria = {key: value if isinstance(value, list) else [value] for key, value in rule.items()}
            criteria = {key: values for key, values in criteria.items() if key in CRITERIA}
            for key, values in criteria.items():
                for value in values:
                    if problem := _never_matches(key, str(value)):
                        yield ConfigError(self._line(("rule", at, key)), f"{key} = {_shown(value)} {problem}")
            if all((".*" if key == "cmdline" else "*") in values for key, values in criteria.items()):
                fits_all = self._line(("rule", at))

    def _pushes(self) -> tuple[PushTarget, ...]:
        given = self._document.get("push", [])
        if not isinstance(given, list) or len(given) > _MAX_PUSHES:
            self._wrong(("push",), f"sinks are tables, [[push]], at most {_MAX_PUSHES}")
            return ()
        targets: dict[str, PushTarget] = {}
        names = set[str]()
        for at, table in enumerate(given):
            target = self._push(at, table if isinstance(table, dict) else {})
            name = table.get("name") if isinstance(table, dict) else None
            if isinstance(name, str):
                if name in names:
                    self._wrong(("push", at, "name"), f"there is another {_shown(name)}")
                names.add(name)
            if target is not None:
                targets[target.name] = target
        return tuple(targets.values())

    def _push(self, at: int, table: Mapping[str, Any]) -> PushTarget | None:
        kind = table.get("type")
        own, needed = KINDS.get(kind, ((), ())) if isinstance(kind, str) else ((), ())
        settings = {setting.name: setting for setting in (*COMMON, *own)}
        found: dict[str, Any] = {}
        for key, value in table.items():
            if own or key in settings:  # without a type the other settings are not known
                self._take(found, settings, ("push", at, key), value)
        for missing in (key for key in ("name", "type", *needed) if key not in table):
            self._wrong(("push", at), f"{missing} is missing")
        if not {"name", "type", *needed} <= found.keys():
            return None
        values = {key: value for key, value in found.items() if key not in ("name", "type")}
        target = PushTarget(found["name"], found["type"], values)
        if error := wrong(target):
            self._wrong(("push", at), error)
        return target

    def _take(
        self, found: dict[str, Any], settings: Mapping[str, Setting], path: tuple[str | int, ...], value: object
    ) -> None:
        key = str(path[-1])
        setting = settings.get(key)
        if setting is None:
            self._wrong(path, _unknown(key, settings))
            return
        try:
            found[key] = checked(setting.kind, value)
        except Wrong as error:
            self._wrong(path, f"{key}{_shown_setting(setting.kind, value)} {error}")

    def _rule(self, at: int, given: Mapping[str, Any], values: Values) -> TargetRule:
        settings = {setting.name: setting for setting in RULE}
        found: dict[str, Any] = {}
        criteria = []
        for key, value in given.items() if isinstance(given, dict) else ():
            path = ("rule", at, key)
            if key in CRITERIA:
                try:
                    criteria.append((key, criterion(key, value)))
                except Wrong as error:
                    self._wrong(path, f"{key} = {_shown(value)} {error}")
            elif key in settings:
                self._take(found, settings, path, value)
            else:
                self._wrong(path, _unknown(key, {**CRITERIA, **settings}))
        if "labels" in given and "labels" not in found:
            self._check_templates(given["labels"], ("rule", at, "labels"))
        labels = {HOST: "{hostname}"} | values.labels | found.get("labels", {})
        templates = labels | {"service": found.get("service", "{name}")}
        if len(templates) > MOST:
            self._wrong(("rule", at), f"there are more than {MOST} labels")
        made = list(self._templates(at, templates))
        modes = found.get("modes", values.modes)
        rate, python = found.get("rate", values.rate), found.get("python", values.python)
        samplings = tuple(SamplingChoice(float(rate), mode, python) for mode in modes)
        text = ", ".join(f"{key} = {_shown(given[key])}" for key, _ in criteria)
        return TargetRule(found.get("action") != "exclude", tuple(criteria), tuple(made), samplings, text)

    def _templates(self, at: int, templates: Mapping[str, str]) -> Iterator[tuple[str, Template]]:
        for name, text in templates.items():
            try:
                yield name, Template.parse(text)
            except Wrong as error:
                self._wrong(("rule", at, "service" if name == "service" else "labels"), f"{_shown(text)} {error}")

    def _check_templates(self, labels: object, path: tuple[str | int, ...]) -> None:
        """Report the errors of the templates of labels that have another error, so that both are named."""
        for text in labels.values() if isinstance(labels, dict) else ():
            if isinstance(text, str):
                try:
                    Template.parse(text)
                except Wrong as error:
                    self._wrong(path, f"{_shown(text)} {error}")

    def _wrong(self, path: tuple[str | int, ...], text: str) -> None:
        self.errors.append(ConfigError(self._line(path), text))
        if len(self.errors) >= _MAX_ERRORS:
            raise _TooMany

    def _line(self, path: tuple[str | int, ...]) -> int:
        """Return the line of a key in a configuration file, or of its table if the key is not found."""
        table = str(path[0]) if path else ""
        wanted = path[1] if len(path) > 1 and isinstance(path[1], int) else 0
        key, count, best, inside = str(path[-1]) if path else "", -1, 1, len(path) < 2
        for number, text in enumerate(self._lines, 1):
            header = _HEADER.fullmatch(text)
            if header:
                name = header[2].strip('"')
                count += name == table
                within = name == table or name.startswith(f"{table}.")
                inside = within and (header[1] == "[" or count == wanted or name != table)
                if inside and name == table:
                    best = number
                if len(path) < 2 and (inside or not path):
                    return best
            elif inside and re.match(rf'\s*"?{re.escape(key)}"?\s*[.=]', text):
                return number
        return best


def _never_matches(key: str, pattern: str) -> str:
    """Return the reason why a pattern of a rule can match no process, "" if it can match one."""
    if re.search(r"[*?\[]", pattern):
        return ""
    if key in ("name", "parent") and len(pattern.encode()) > _NAME_BYTES:
        return f"matches no process: the kernel cuts names to {_NAME_BYTES} letters"
    if key in ("exe", "cgroup") and not pattern.startswith("/"):
        return "matches no process: the pattern is for the whole path, which begins with /"
    if key == "user" and not pattern.isdigit():
        try:
            pwd.getpwnam(pattern)
        except KeyError:
            return "matches no process: there is no such user here"
    return ""


def _unknown(name: str, known: Any) -> str:
    close = get_close_matches(name, list(known), 1)
    return f"{name} is not known{f', {close[0]} is' if close else ': ' + ', '.join(sorted(known))}"


def _shown_setting(kind: str, value: object) -> str:
    """Return " = VALUE" for an error message, without the value if it may hold a secret."""
    return "" if kind in ("HEADERS", "URL", "BUCKET", "PATH") else f" = {_shown(value)}"


def _shown(value: object) -> str:
    try:
        text = repr(value) if not isinstance(value, str) else f'"{value}"'
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def printed() -> str:
    """Return the text of the agent's default configuration, with an explanation of each line."""
    lines = ["# pyprof agent --config FILE. What has # before it is the default.", ""]
    table = ""
    for setting in SETTINGS:
        if setting.table != table:
            lines += ["", f"[{setting.table}]"] if table else [f"[{setting.table}]"]
            table = setting.table
        lines += [f"# {setting.help}", f"#{setting.name} = {setting.default or '...'}"]
    lines += ["", "[labels]", "# of all that is recorded; templates as in rules; host has this default"]
    lines += ['#host = "{hostname}"', '#env = "staging"', ""]
    lines += ["# The first rule that fits a process decides. A rule chooses by, all that are given must fit:"]
    lines += [f"#   {name + ':':10} {meaning}" for name, meaning in CRITERIA.items()]
    lines += ["# Patterns are the shell's (*, ?, [abc]); a list is one of several. What a rule says:"]
    lines += [f"#   {each.name + ':':10} {each.help}" for each in RULE]
    lines += [
        "# Templates: {name} {exe} {user} {unit} {cgroup} {container} {parent} {pid} {env:NAME}; of the agent itself",
        "# {hostname} {agent_env:NAME}; {unit|name} is the first that is not empty.",
    ]
    lines += ["[[rule]]", f'user = "{os.geteuid()}"', 'service = "{name}"']
    return "\n".join([*lines, *_printed_pushes()]) + "\n"


def _printed_pushes() -> Iterator[str]:
    yield from ("", "# Where segments go beside the spool; any number of [[push]], each with:")
    kinds: dict[Setting, list[str]] = {setting: [] for setting in COMMON}
    for kind, (own, _) in KINDS.items():
        for setting in own:
            kinds.setdefault(setting, []).append(kind)
    before: list[str] = []
    for each, of in sorted(kinds.items(), key=lambda item: list(kinds.values()).index(item[1])):
        if of != before:
            yield f"# of {', '.join(of)}:"
        before = of
        yield f"#   {f'{each.name} = {each.default}' if each.default else each.name:36} {each.help}"
