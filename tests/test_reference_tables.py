"""Tests of the reference tables in the manual: each is in exactly one page and complete."""

from __future__ import annotations

import re
from pathlib import Path

from pyprof.model.loss_reason_texts import COUNTERS, ENDS, REFUSALS, SENTENCES
from pyprof.recording.schema import SCHEMA, parse_tables
from tests import warm
from tooling.manual.reference_tables import PLACE, TABLES, with_tables

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}


def test_each_table_stands_in_one_page() -> None:
    assert sorted(name for text in PAGES.values() for name in PLACE.findall(text)) == sorted(TABLES)


COMMANDS = {
    "agent_conditions": "pyprof agent conditions",
    "agent_refusals": "pyprof agent refusals",
    "server_refusals": "pyprof server --print-refusals",
}
"""Commands of the installed package that print a table."""


def test_command_that_prints_the_table_stands_where_the_table_belongs() -> None:
    for text in PAGES.values():
        for place in PLACE.finditer(text):
            command = COMMANDS.get(place[1], f"python tooling/manual/reference_tables.py {place[1]}")
            assert place[0].endswith(f"\n*`{command}` prints this table.*")


def test_commands_of_the_package_print_each_row_of_their_table() -> None:
    for name, command in COMMANDS.items():
        said = warm.run(*command.split()[1:]).stdout
        rows = re.findall(r"^\| `(\w+)`", "\n".join(TABLES[name]()), re.MULTILINE)
        assert rows
        assert all(re.search(rf"^{row}\b", said, re.MULTILINE) for row in rows), name


def test_manual_has_each_counter_end_refusal_and_sentence() -> None:
    manual = "\n".join(with_tables(text) for text in PAGES.values())
    lines = set(manual.splitlines())
    assert all(f"| `{each.name}` | {each.title} | {each.sentence} | {each.hint} |" in lines for each in COUNTERS)
    assert all(any(line.startswith(f"| `{name}`: ") for line in lines) for name in ENDS)
    assert all(f"| `{name}` | {each.sentence} | {each.hint} |" in lines for name, each in REFUSALS.items())
    assert all(any(line.startswith(f"| `{name}` | ") for line in lines) for name in SENTENCES)


def test_manual_has_each_column_of_a_recording() -> None:
    lines = list(TABLES["recording_tables"]())
    columns = sum(line.startswith("| `") for line in lines)
    assert columns == sum(len(table.columns) for table in parse_tables().values())
    assert columns == len(re.findall(r"^  (?!PRIMARY)\S.*-- .", SCHEMA, re.MULTILINE))
    assert len([line for line in lines if line.startswith("### ")]) == SCHEMA.count("CREATE TABLE")
