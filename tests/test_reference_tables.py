"""Tests of the reference tables in the manual: each is in exactly one page and complete."""

from __future__ import annotations

import re
from pathlib import Path

from pyprof.model.loss_reason_texts import COUNTERS, ENDS, REFUSALS, SENTENCES
from pyprof.recording.schema import SCHEMA, parse_tables
from tooling.manual.reference_tables import PLACE, TABLES, with_tables

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}


def test_each_table_stands_in_one_page() -> None:
    assert sorted(name for text in PAGES.values() for name in PLACE.findall(text)) == sorted(TABLES)


def test_command_that_prints_the_table_stands_where_the_table_belongs() -> None:
    for text in PAGES.values():
        for place in PLACE.finditer(text):
            assert place[0].endswith(f"\n*`python tooling/manual/reference_tables.py {place[1]}` prints this table.*")


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
