"""Tests that counters, problems and notes of older files get their identifiers.

version-4-counters.pyprof and counters-by-sentence.pb.gz have each counter and each problem by its sentence. They were
written by the last version that had sentences; the counts are 1, 2, 3...
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from pyprof.importers.pprof import read_pprof
from pyprof.importers.pprof_tables import read_summary
from pyprof.model.loss_reason_texts import SENTENCES, Note, counted, counter_title, make_note
from pyprof.model.summary import Summary
from pyprof.problem_counters import Problem
from pyprof.recording.reader import INTERRUPTED, load_recording
from pyprof.recording.upgrades import counter_key, problem_reason
from tests.recording.support import FIXTURES, edited

SENTENCES_OF_4 = 158
"""Number of counters in the two files."""


def recording() -> Summary:
    return load_recording(FIXTURES / "version-4-counters.pyprof").summary


def segment() -> Summary:
    return read_pprof((FIXTURES / "counters-by-sentence.pb.gz").read_bytes(), "x").summary


@pytest.mark.parametrize("read", [recording, segment])
def test_each_counter_of_an_older_file_has_its_row(read: Callable[[], Summary]) -> None:
    errors = read().errors
    assert [key for key in errors if counted(key) is None] == []
    assert sum(errors.values()) == SENTENCES_OF_4 * (SENTENCES_OF_4 + 1) // 2
    assert len(errors) == SENTENCES_OF_4 - 2, "those of children and processes are the same"
    assert errors["process_ended_early"] == 24 + 25
    assert errors["unwind_table_broken:.eh_frame"] > 0


def test_each_problem_of_an_older_recording_has_its_reason() -> None:
    (module,) = [each for each in recording().modules if each.path == "/usr/lib/libm.so.6"]
    assert len(module.problems) == 22
    assert [each for each in module.problems if each.reason not in SENTENCES and counted(each.reason) is None] == []


def test_problem_of_a_pprof_file_has_its_reason_whether_stated_or_not() -> None:
    text = "no symbols: only exported names"
    for stated in ((), ("exported_names_only",)):
        found = read_summary(orjson.dumps({"lacks": [["/lib/a.so", "", text, "", *stated]]}))
        assert found.modules[0].problems == (Problem(text, "", "exported_names_only"),)


def test_title_of_a_counter_leads_to_its_identifier_as_long_as_it_is_not_changed() -> None:
    key = "unwind_entry_broken:libunwind"
    assert counter_key(counter_title(key)) == key


@pytest.mark.parametrize("name", ["samples_lost", "unwind_table_broken:.eh_frame", "", ":", ": broken, not used"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert counter_key(name) == name


def test_unknown_problem_has_no_reason() -> None:
    assert problem_reason("something else") == ""


OLD_NOTES = {
    "The recording was interrupted or is still running: it ends with the last second that was written.": INTERRUPTED,
    "Time in the kernel has no samples; to sample it: sudo sysctl kernel.perf_event_paranoid=1": make_note(
        "kernel_not_sampled"
    ),
    "Sampled by perf_events (cpu-clock): the target was never stopped": make_note(
        "older_sentence", text="Sampled by perf_events (cpu-clock): the target was never stopped"
    ),
    "rate lowered {wanted:x}": make_note("older_sentence", text="rate lowered {wanted:x}"),
}
"""Notes by their sentences in recordings of version 5."""


def test_each_note_of_an_older_recording_has_its_reason_or_is_kept_as_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.pyprof"
    path.write_bytes((FIXTURES / "version-5.pyprof").read_bytes())
    with edited(path) as database:
        database.execute("DELETE FROM notes")
        database.executemany("INSERT INTO notes VALUES (?, ?)", enumerate(OLD_NOTES, 1))
    notes = load_recording(path).summary.notes
    assert notes == tuple(OLD_NOTES.values())
    assert notes[2].text == "Sampled by perf_events (cpu-clock): the target was never stopped"
    assert notes[3].text == "rate lowered {wanted:x}"


@pytest.mark.parametrize("version", range(1, 6))
def test_note_of_the_first_recording_of_each_version_is_kept(version: int) -> None:
    (note,) = load_recording(FIXTURES / f"version-{version}.pyprof").summary.notes
    assert note == Note("older_sentence", (("text", "The rate fell for 0.2 s to keep --max-overhead."),))
