"""Write the reference tables of the manual: `python tooling/manual/reference_tables.py FOLDER`, run by `make docs`.
With the name of a table in place of a folder, print that table.

A page has the line `<!-- table: NAME -->` where a table belongs. This script replaces the line by the table, which it
makes from the tables in the code. So the manual cannot differ from the code, and the repository has no copy of a table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pyprof.cli.top_view_state import KEYS
from pyprof.fleet.agent.health import NOT_READY, UNHEALTHY
from pyprof.fleet.server.authorization import STATUS
from pyprof.model.fleet_loss_reasons import ASKS, CONDITIONS, REQUESTS
from pyprof.model.loss_reason_texts import (
    CAUSES,
    COUNTERS,
    ENDS,
    MARKERS,
    NOTES,
    PAGE,
    PLAN,
    PROBLEMS,
    REFUSALS,
    WARNINGS,
)
from pyprof.model.reason_type import Reason
from pyprof.options import FRAME_SOURCES
from pyprof.recording.schema import parse_tables

PLACE = re.compile(r"^<!-- table: (\w+) -->\n.*$", re.MULTILINE)
"""Pattern of the lines of a page that a table replaces; its group is the name of the table. The second line is for
readers of the repository: it says which command prints the table.
"""


def rows(columns: Iterable[str], cells: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, from the column headings and the cells of its rows."""
    columns = tuple(columns)
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in cells:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def reasons(heading: str, named: Iterable[tuple[str, Reason]]) -> Iterator[str]:
    columns = (heading, "meaning", "hint")
    return rows(columns, ((name, reason.sentence, reason.hint) for name, reason in named))


def code(reasons: Iterable[Reason]) -> Iterator[tuple[str, Reason]]:
    return ((f"`{reason.name}`", reason) for reason in reasons)


def recording_tables() -> Iterator[str]:
    """Yield Markdown that documents the tables of a recording file: for each a heading, a sentence and its columns."""
    for table in parse_tables().values():
        yield from (f"### {table.name}", "", table.meaning, "")
        cells = ((f"`{each.name}`", each.type.removesuffix(" NOT NULL"), each.meaning) for each in table.columns)
        yield from rows(("column", "type", "meaning"), cells)
        yield ""


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "counters": lambda: rows(
        ("counter", "title", "meaning", "hint"),
        ((f"`{each.name}`", each.title, each.sentence, each.hint) for each in COUNTERS),
    ),
    "ends": lambda: reasons("end", ((f"`{name}`: {reason.end_title}", reason) for name, reason in ENDS.items())),
    "problems": lambda: reasons("problem", code(PROBLEMS)),
    "notes": lambda: reasons("note", code(NOTES)),
    "warnings": lambda: reasons("warning", code(WARNINGS)),
    "plan": lambda: rows(("rule", "meaning"), ((f"`{each.name}`", each.sentence) for each in (*PLAN, *CAUSES))),
    "markers": lambda: reasons("marker", code(MARKERS)),
    "page_sentences": lambda: reasons("sentence", code(PAGE)),
    "refusals": lambda: reasons("refusal", code(REFUSALS.values())),
    "server_refusals": lambda: rows(
        ("reason", "status", "meaning"),
        ((f"`{reason.name}`", str(STATUS[reason.name]), reason.meaning) for reason in REQUESTS),
    ),
    "agent_refusals": lambda: rows(("reason", "meaning"), ((f"`{each.name}`", each.meaning) for each in ASKS)),
    "agent_conditions": lambda: rows(
        ("reason", "`/healthz`, `/readyz`", "meaning", "hint"),
        (
            (
                f"`{each.name}`",
                f"{503 if each.name in UNHEALTHY else 200}, {503 if each.name in NOT_READY else 200}",
                each.sentence,
                each.hint,
            )
            for each in CONDITIONS
        ),
    ),
    "frame_sources": lambda: rows(
        ("source", "allowed by `--unwind`", "meaning"),
        ((f"`{each.name}`", f"`{each.option}`" if each.option else "–", each.meaning) for each in FRAME_SOURCES),
    ),
    "top_keys": lambda: rows(("key", "effect"), ((key.label, key.does) for key in KEYS)),
    "recording_tables": recording_tables,
}
"""The functions that yield the lines of each reference table, by the name that pages use for it."""


def with_tables(page: str) -> str:
    """Return the text of a page of the manual with the reference tables inserted."""
    return PLACE.sub(lambda place: "\n".join(TABLES[place[1]]()), page)


if __name__ == "__main__":
    if sys.argv[1] in TABLES:
        print("\n".join(TABLES[sys.argv[1]]()))
        sys.exit()
    for path in sorted(Path(sys.argv[1]).rglob("*.md")):
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
