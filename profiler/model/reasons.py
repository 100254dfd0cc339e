"""Reasons by name: the meaning of counters, ends of stacks, refusals, problems of files.

The table has three parts: reason_table.py; fleet_reasons.py for agent and server; reason_sentences.py for reasons
whose text has arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyprof.diagnostics import Problem
from pyprof.errors import PyprofError
from pyprof.model import reason_sentences, reason_table
from pyprof.model.fleet_reasons import PUSH
from pyprof.model.reason import Reason
from pyprof.records import replace

ENDS = {reason.name: reason for reason in reason_table.ENDS}
"""Reasons why stacks end, by the label of the end."""

_OF_LANGUAGE = "no_"
_SPELLINGS = {"php": "PHP", "luajit": "LuaJIT", "net": ".NET"}

REFUSALS = {reason.name: reason for reason in reason_table.REFUSALS}
"""Reasons why pyprof refuses or fails, by PyprofError.reason."""

COUNTERS = (
    *reason_table.SAMPLING,
    *reason_table.TARGET,
    *reason_table.FILES,
    *reason_table.DUMPS,
    *reason_table.TABLES,
    *reason_table.RUN_TIME_CODE,
    *reason_table.INTERPRETER,
    *reason_table.SPOOL,
    *PUSH,
)
"""Reasons that are counted."""

_COUNTED = {reason.name: reason for reason in COUNTERS}

SENTENCES = {
    reason.name: reason
    for table in (
        reason_sentences.PROBLEMS,
        reason_sentences.NOTES,
        reason_sentences.PLAN,
        reason_sentences.MARKERS,
        reason_sentences.PAGE,
    )
    for reason in table
}
"""Reasons whose text has arguments, by name of the reason."""


def said(name: str, **arguments: object) -> str:
    """Return the sentence of a reason by its name, with its arguments filled in."""
    return SENTENCES[name].sentence.format_map(arguments)


def problem(name: str, **arguments: object) -> Problem:
    """Return the problem of a file by the name of its reason: a sentence, and the command that fixes it."""
    row = SENTENCES[name]
    return Problem(row.sentence.format_map(arguments), row.retry.format_map(arguments), name)


def problem_counted(name: str) -> Problem:
    """Return the problem of a file, by the name of its reason, that is also counted."""
    row = _COUNTED[name]
    return Problem(row.title, row.retry, name)


def problem_of(error: PyprofError) -> Problem:
    """Return the problem that an error describes. Its remedy is that of the error or of its reason."""
    return Problem(error.message, remedy(error), error.reason)


def remedy(error: PyprofError) -> str:
    """Return the remedy for an error: the hint of the error, else that of its reason.

    "" if nothing is known, as for an agent's refusal.
    """
    return error.hint or (REFUSALS[error.reason].retry if error.reason in REFUSALS else "")


def counted(key: str) -> Reason | None:
    """Return the reason that belongs to the key of a counter, None if the table lacks it."""
    return _COUNTED.get(key.partition(":")[0])


def counter_title(key: str) -> str:
    """Return the text for a counter's key, with its detail, or the key itself if the table lacks it."""
    found = counted(key)
    return found.title.replace("*", key.partition(":")[2]) if found else key


def end_reason(label: str) -> Reason | None:
    """Return the reason that belongs to the label of a stack's end, None if the table lacks it."""
    language = label.removeprefix(_OF_LANGUAGE)
    if label in ENDS or language == label:
        return ENDS.get(label)
    pattern = ENDS[f"{_OF_LANGUAGE}*"]
    spelling = _SPELLINGS.get(language, language.capitalize())
    return replace(pattern, name=label, title=pattern.title.replace("*", spelling))


def end_title(label: str) -> str:
    """Return the title for the label of a stack's end, or the label itself if the table lacks it."""
    found = end_reason(label)
    return found.end_title if found else label


def lacking(counts: Mapping[str, int]) -> list[str]:
    """Return sentences about what a profile lacks by its counters: "3 samples lost". Counters with the same text are
    added up.
    """
    sums: dict[str, int] = {}
    for key, count in counts.items():
        found = counted(key)
        if found is not None and found.lacks and count:
            words = found.lacks.replace("*", key.partition(":")[2])
            sums[words] = sums.get(words, 0) + count
    return [
        f"{count:,} " + words.replace("{s}", "s" * (count != 1)).replace("{es}", "es" * (count != 1))
        for words, count in sums.items()
    ]
