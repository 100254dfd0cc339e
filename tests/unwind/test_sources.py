"""The list of sources is stated once for the command line and once as readers: they must agree."""

from __future__ import annotations

from pyprof.frame_sources import FALLBACK
from pyprof.options import DEFAULT_SOURCES, KNOWN_SOURCES, RUN_TIME_SOURCES
from pyprof.unwind.sources import with_symbols


def test_every_source_that_can_be_named_has_a_reader_or_is_no_table_of_a_file() -> None:
    assert (*with_symbols(lambda elf: None), *RUN_TIME_SOURCES, FALLBACK) == DEFAULT_SOURCES
    assert set(DEFAULT_SOURCES) <= set(KNOWN_SOURCES)
