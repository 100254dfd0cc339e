"""The agent's rules: which processes are recorded, how, and under which service and labels. The first rule that matches
a process decides.

The input is facts about a process (Facts) from the kernel. The process chose some of them; they are used only as text.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache

from pyprof.fleet.toml_config_files import Wrong
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.thread_identity import LONGEST, Labels
from pyprof.model.untrusted_text import REDACTED, looks_secret, without_secrets


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """The way in which processes are sampled; processes with equal values share a collector."""

    rate: float
    mode: str
    python: str


HOST = "host"
"""Label that names the machine of a sample; pyprof's server tells hosts apart by it."""
_HOLE = re.compile(r"\{([^{}]*)\}")
_FACTS = ("name", "exe", "user", "unit", "cgroup", "container", "parent", "pid")
_ENV = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,99}")
_HOST_NAME, _AGENT = "hostname", "agent_"
"""Placeholders in labels for facts about the agent: the host's name, and agent_env:NAME for an environment variable of
the agent.
"""
_MAX_LETTERS = 200
"""Maximum number of characters of a label's value, which a process may have chosen."""

RuleLookup = Callable[[str], str]
"""Function that returns a fact about a process by name, "" if it is not known."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """A condition of a rule about one property of a process. It holds if one of the patterns matches the property.

    Attributes:
        search: True if a pattern may match anywhere in the text.
        below: True if a pattern may match a parent folder of the path.
    """

    patterns: tuple[re.Pattern[str], ...]
    search: bool = False
    below: bool = False

    def fits(self, text: str) -> bool:
        if self.search:
            return any(pattern.search(text) for pattern in self.patterns)
        candidates = _upwards(text) if self.below else [text]
        return any(pattern.fullmatch(each) for pattern in self.patterns for each in candidates)


def _upwards(path: str) -> list[str]:
    parts = path.rstrip("/").split("/")
    return ["/".join(parts[:count]) or "/" for count in range(len(parts), 0, -1)][:64]


@lru_cache(maxsize=1000)
def user_name(uid: int) -> str:
    """Return the name of a user by uid, or the number as text if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def criterion(key: str, value: object) -> Criterion:
    """Parse a criterion of a rule from its value in the configuration; raise Wrong if the value is not valid."""
    texts: Sequence[object] = value if isinstance(value, list) else [value]
    if key == "user":
        texts = [user_name(int(str(text))) if re.fullmatch(r"[0-9]{1,10}", str(text)) else text for text in texts]
    words = [text for text in texts if isinstance(text, str) and text]
    if not texts or len(words) != len(texts):
        raise Wrong("is not a text, or a list of texts")
    try:
        patterns = tuple(re.compile(text if key == "cmdline" else translate(text)) for text in words)
    except (re.error, RecursionError, OverflowError) as error:
        raise Wrong(f"is not a regular expression: {error}") from None
    return Criterion(patterns, search=key == "cmdline", below=key == "cgroup")


@dataclass(frozen=True, slots=True)
class Template:
    """A label's text with placeholders. A placeholder lists facts about a process, of which the first that is not empty
    is used. Facts about the agent never change, so they are inserted when the template is parsed.
    """

    texts: tuple[str, ...]
    holes: tuple[tuple[tuple[str, ...], str], ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse the template of a label; raise Wrong if it is not valid."""
        parts = _HOLE.split(text)
        if any("{" in part or "}" in part for part in parts[::2]):
            raise Wrong("has a bracket { or } that does not belong to a name")
        holes = [tuple(part.split("|")) for part in parts[1::2]]
        for name in (name for hole in holes for name in hole):
            if name not in (*_FACTS, _HOST_NAME) and not _ENV.fullmatch(name.removeprefix(_AGENT)):
                known = ", ".join((*_FACTS, _HOST_NAME, "env:NAME"))
                raise Wrong(f"names {{{name}}}; there are {known} and agent_env:NAME")
        return cls(tuple(parts[::2]), tuple(_without_agent_facts(hole) for hole in holes))

    @property
    def may_be_empty(self) -> bool:
        """True if the text is empty for a process that lacks the facts."""
        return not any(map(str.strip, self.texts)) and not any(otherwise for _, otherwise in self.holes)

    @property
    def is_empty(self) -> bool:
        """True if the text is empty for each process."""
        return self.may_be_empty and not any(facts for facts, _ in self.holes)

    def filled(self, ask: RuleLookup) -> str:
        found = [self.texts[0]]
        for (hole, otherwise), text in zip(self.holes, self.texts[1:], strict=True):
            found += [next(filter(None, map(ask, hole)), otherwise), text]
        whole = "".join(letter if letter.isprintable() else "?" for letter in "".join(found))
        return whole.strip()[: min(_MAX_LETTERS, LONGEST)]


def _without_agent_facts(hole: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Split a placeholder's alternatives into the facts about a process and the first fact about the agent.
    Alternatives after that one are never used.
    """
    for at, name in enumerate(hole):
        if name == _HOST_NAME or name.startswith(_AGENT):
            text = os.uname().nodename if name == _HOST_NAME else _agent_variable(name.partition(":")[2])
            if text:
                return tuple(fact for fact in hole[:at] if _is_of_process(fact)), text
    return tuple(filter(_is_of_process, hole)), ""


def _is_of_process(fact: str) -> bool:
    return fact != _HOST_NAME and not fact.startswith(_AGENT)


def _agent_variable(name: str) -> str:
    """Return the value of an environment variable of the agent, with secrets removed, because labels are visible to all
    readers.
    """
    value = os.environ.get(name, "")
    return REDACTED if value and looks_secret(name) else without_secrets(value)


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """The decision of the agent's rules about one process.

    Attributes:
        labels: Labels of the process, including its service.
        samplings: Ways in which the process is sampled, () if it is not recorded.
    """

    service: str = ""
    labels: Labels = ()
    samplings: tuple[SamplingChoice, ...] = ()


NOT_RECORDED = RuleVerdict()


@dataclass(frozen=True, slots=True)
class TargetRule:
    """A rule of the agent's configuration: which processes are recorded or left out, how they are sampled, and what
    labels they get.

    Attributes:
        include: True if processes that fit are recorded, False if they are left out.
        criteria: Pairs (property of a process, criterion). A process fits the rule if it meets all of them.
        samplings: The ways in which a process that fits is sampled.
        templates: Templates of labels by name, including "service".
        text: The criteria as they were given, for messages.
    """

    include: bool
    criteria: tuple[tuple[str, Criterion], ...]
    templates: tuple[tuple[str, Template], ...]
    samplings: tuple[SamplingChoice, ...]
    text: str = ""

    def fits(self, ask: RuleLookup) -> bool:
        return all(criterion.fits(ask(key)) for key, criterion in self.criteria)

    def verdict(self, ask: RuleLookup) -> RuleVerdict:
        if not self.include:
            return NOT_RECORDED
        labels: Mapping[str, str] = {name: template.filled(ask) for name, template in self.templates}
        service = labels["service"] or "unknown"
        filled = {**labels, "service": service}
        return RuleVerdict(
            service, tuple(sorted((name, text) for name, text in filled.items() if text)), self.samplings
        )


def asked_facts(rules: Sequence[TargetRule]) -> frozenset[str]:
    """Return the names of all facts about a process on which the decision of these rules may depend."""
    asked = {key for rule in rules for key, _ in rule.criteria}
    return frozenset(asked).union(*(facts for rule in rules for _, text in rule.templates for facts, _ in text.holes))


def first_match(rules: Sequence[TargetRule], ask: RuleLookup) -> int | None:
    """Return the index of the rule that decides about a process, None if no rule matches."""
    return next((at for at, rule in enumerate(rules) if rule.fits(ask)), None)


def judge(rules: Sequence[TargetRule], ask: RuleLookup) -> RuleVerdict:
    at = first_match(rules, ask)
    return rules[at].verdict(ask) if at is not None else NOT_RECORDED
