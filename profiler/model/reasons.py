"""Reasons by name: what a counter means, how a stack ended, why something was refused, what a file lacks.

The table has three files: reason_table.py, reason_pushes.py for what is not sent, and reason_sentences.py for the rows
whose words have arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from pyprof.diagnostics import Problem
from pyprof.errors import PyprofError
from pyprof.model import reason_pushes, reason_sentences, reason_table
from pyprof.model.reason import Reason
from pyprof.records import replace

ENDS = {reason.name: reason for reason in reason_table.ENDS}
"""How stacks end, by label."""

_OF_LANGUAGE = "no_"
_SPELLINGS = {"php": "PHP", "luajit": "LuaJIT", "net": ".NET"}

REFUSALS = {reason.name: reason for reason in reason_table.REFUSALS}
"""What is refused or fails as a whole, by PyprofError.reason."""

COUNTERS = (
    *reason_table.SAMPLING,
    *reason_table.TARGET,
    *reason_table.FILES,
    *reason_table.DUMPS,
    *reason_table.TABLES,
    *reason_table.RUN_TIME_CODE,
    *reason_table.INTERPRETER,
    *reason_table.SPOOL,
    *reason_pushes.PUSH,
)
"""What is counted. The first that fits counts."""

SENTENCES = {
    reason.name: reason
    for table in (reason_sentences.PROBLEMS, reason_sentences.NOTES, reason_sentences.MARKERS, reason_sentences.PAGE)
    for reason in table
}
"""What is said with arguments."""


def said(name: str, **arguments: object) -> str:
    """A note or a marker: the sentence of its row."""
    return SENTENCES[name].sentence.format_map(arguments)


def problem(name: str, **arguments: object) -> Problem:
    """What a file lacks: the sentence of its row, and the command that mends it."""
    row = SENTENCES[name]
    return Problem(row.sentence.format_map(arguments), row.retry.format_map(arguments))


def problem_counted(name: str) -> Problem:
    """The same of what is counted, too: a counter's name is its text."""
    found = counted(name)
    return Problem(name, found.retry if found else "")


def problem_of(error: PyprofError) -> Problem:
    """The same of an error, whose row is that of its refusal."""
    return Problem(error.message, remedy(error))


def remedy(error: PyprofError) -> str:
    """What helps: as the error says it, else as its row does. "": nothing is known, of an agent's refusal for one."""
    return error.hint or (REFUSALS[error.reason].retry if error.reason in REFUSALS else "")


@lru_cache(maxsize=1024)
def counted(name: str) -> Reason | None:
    """The reason of a counter; None of one that the table lacks."""
    return next((reason for reason in COUNTERS if _fits(reason.name, name)), None)


def _fits(pattern: str, name: str) -> bool:
    return bool(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL))


def end_reason(label: str) -> Reason | None:
    """The reason of how a stack ended; None of one that the table lacks."""
    language = label.removeprefix(_OF_LANGUAGE)
    if label in ENDS or language == label:
        return ENDS.get(label)
    pattern = ENDS[f"{_OF_LANGUAGE}*"]
    spelling = _SPELLINGS.get(language, language.capitalize())
    return replace(pattern, name=label, words=pattern.words.replace("*", spelling))


def end_title(label: str) -> str:
    """What is said of stacks that ended so; the label itself if the table lacks it."""
    found = end_reason(label)
    return found.title if found else label


def lacking(counts: Mapping[str, int]) -> list[str]:
    """What the profile lacks by its counters: "3 samples lost". Counters of which people read the same are added up."""
    sums: dict[str, int] = {}
    for name, count in counts.items():
        found = counted(name)
        if found is not None and found.lacks and count:
            words = found.lacks.replace("*", name.removeprefix(found.name.rstrip("*")))
            sums[words] = sums.get(words, 0) + count
    return [
        f"{count:,} " + words.replace("{s}", "s" * (count != 1)).replace("{es}", "es" * (count != 1))
        for words, count in sums.items()
    ]
