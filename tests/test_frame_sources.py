"""Tests that enumerations, options, readers, help, page and documentation agree with the table of frame sources."""

from __future__ import annotations

import re
from pathlib import Path

from pyprof.model.unwind_result import Trust
from pyprof.options import CODE, DEFAULT_SOURCES, FALLBACK, FRAME_SOURCES, KNOWN_SOURCES, SCAN, selectable
from pyprof.unwind.module_unwind_sources import add_symbol_reader
from tests.cli.support import pyprof

ROOT = Path(__file__).resolve().parent.parent
OF_RUN_TIME_CODE = ("libunwind_dynamic", "gdb_jit", "hotspot", "v8", "jitdump")
"""Frame sources for JIT code."""


def test_each_number_has_its_row() -> None:
    assert sorted(trust.label for trust in Trust) == sorted(source.name for source in FRAME_SOURCES)


def test_options_are_the_sources_that_can_be_chosen_and_tables_have_readers() -> None:
    assert (*DEFAULT_SOURCES, SCAN) == KNOWN_SOURCES
    assert {source.option for source in FRAME_SOURCES} - {""} == set(KNOWN_SOURCES)
    tables = list(add_symbol_reader(lambda file: None))
    assert [source.name for source in selectable()] == [*tables, *OF_RUN_TIME_CODE, CODE, FALLBACK, SCAN]


def test_page_shows_the_words_of_the_table() -> None:
    script = (ROOT / "exporters" / "assets" / "page.model.js").read_text()
    (body,) = re.findall(r"const TRUST_TITLES = {\n(.*?)};", script, re.S)
    shown = dict(re.findall(r'^ *(\w+): "(.*)",$', body, re.M))
    assert shown == {source.name: source.words for source in FRAME_SOURCES}


def test_help_names_each_source() -> None:
    words = " ".join(pyprof("record", "--help").stdout.split())
    assert all(source.described in words for source in selectable())
    manual = " ".join(pyprof("dump", "--help").stdout.split())
    assert all(source.described in manual for source in FRAME_SOURCES)
