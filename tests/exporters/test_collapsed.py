"""Tests of collapsed stacks: the golden profile's text, and no loss with any names."""

from __future__ import annotations

import re

from hypothesis import given

from pyprof.exporters.base import ExportOptions
from pyprof.model.profile import Profile
from tests.exporters.profiles import Builder, code, deep, golden, marker, profiles, unknown
from tests.exporters.support import PLAIN, PROCESSES, THREADS, export

SPEEDSCOPE_LINE = re.compile(r"^(.*) (\d+)$")


def lines(profile: Profile, options: ExportOptions = PLAIN) -> list[str]:
    text = export("collapsed", profile, options).decode("utf-8")
    assert not text or text.endswith("\n")
    return text.splitlines()


def test_stack_is_written_root_first_with_its_count() -> None:
    assert "_start;main;parse;memcpy 3" in lines(golden())


def test_inlined_functions_stand_inside_the_function_that_holds_them() -> None:
    assert "_start;main;handle(Request&);clamp;std::min(int, int);memcpy 5" in lines(golden())


def test_unnamed_code_and_markers_keep_their_place() -> None:
    builder = Builder()
    builder.sample(builder.node([marker("[cut]"), unknown(2, 0x12), unknown(-1, 0xDEAD)]))
    assert lines(builder.build()) == ["[cut];libplugin.so+0x12;0xdead 1"]
    full = ExportOptions(full_paths=True)
    assert lines(builder.build(), full) == ["[cut];/opt/server/lib/libplugin.so+0x12;0xdead 1"]


def test_thread_and_process_are_roots_when_asked_for() -> None:
    found = lines(golden(), THREADS)
    assert "server (pid 100);worker\\x3b1 (tid 101);clone;work;parse;memcpy 4" in found
    assert all(line.startswith(("server (pid 100);", "child (pid 200);thread (tid 200);")) for line in found)


def test_process_alone_is_the_root_when_asked_for() -> None:
    found = lines(golden(), PROCESSES)
    assert "server (pid 100);clone;work;parse;memcpy 4" in found
    assert {line.split(";")[0] for line in found} == {"server (pid 100)", "child (pid 200)"}


def test_process_is_no_root_where_there_is_only_one() -> None:
    builder = Builder()
    builder.sample(builder.node([code("main")]))
    assert lines(builder.build(), THREADS) == ["main (tid 100);main 1"]
    assert lines(builder.build(), PROCESSES) == ["main 1"]


def test_changes_of_writing_direction_are_escaped() -> None:
    builder = Builder()
    builder.sample(builder.node([code("evil\u202egnp.exe\u2066\u200f\u061c"), code("caf\u00e9 \u05d0")]))
    assert lines(builder.build()) == ["evil\\u202egnp.exe\\u2066\\u200f\\u061c;caf\u00e9 \u05d0 1"]


def test_separators_in_names_are_escaped() -> None:
    builder = Builder()
    builder.sample(builder.node([code("a;b\nc\x00d\u2028\udc80 7")]))
    assert lines(builder.build()) == [r"a\x3bb\nc\x00d\u2028\udc80 7 1"]


def test_same_functions_at_other_addresses_are_one_line() -> None:
    found = lines(golden())
    assert len({line.rsplit(" ", 1)[0] for line in found}) == len(found)
    assert found == sorted(found, key=lambda line: line.rsplit(" ", 1)[0].encode().split(b";"))


def test_stack_without_frames_is_counted_as_unknown() -> None:
    builder = Builder()
    builder.sample(0)
    assert lines(builder.build()) == ["[unknown] 1"]


def test_empty_profile_is_an_empty_file() -> None:
    assert export("collapsed", Builder().build()) == b""


def test_deep_stack_is_one_line_of_all_its_frames() -> None:
    assert max(line.count(";") for line in lines(deep())) == 19_999


@given(profiles())
def test_counts_add_up_and_every_line_parses(profile: Profile) -> None:
    for options in (PLAIN, THREADS):
        matches = [SPEEDSCOPE_LINE.match(line) for line in lines(profile, options)]
        assert sum(int(match.group(2)) for match in matches if match) == profile.values[:, 0].sum()
