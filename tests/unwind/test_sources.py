"""The list of sources is stated once for the command line and once as readers: they must agree."""

from __future__ import annotations

from pyprof.frame_sources import FALLBACK, selectable
from pyprof.options import DEFAULT_SOURCES, KNOWN_SOURCES
from pyprof.unwind.sources import with_symbols


def test_every_source_that_can_be_named_has_a_reader_or_is_no_table_of_a_file() -> None:
    of_run_time_code = (source.name for source in selectable() if source.run_time)
    assert (*with_symbols(lambda elf: None), *of_run_time_code, FALLBACK) == DEFAULT_SOURCES
    assert set(DEFAULT_SOURCES) <= set(KNOWN_SOURCES)
