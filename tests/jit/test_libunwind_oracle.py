"""Tests of libunwind's dynamic unwind info at every instruction of registered code, against the single-step oracle.

dyn.c registers copies of functions in every format through the real _U_dyn_register, with the structures of libunwind
1.6 to 1.8 and with those of earlier and later versions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.model.unwind_result import Trust
from pyprof.options import DEFAULT_SOURCES
from tests.jit.programs_built import dyn
from tests.live.support.recording import dump, running
from tests.oracle.run import Oracle, Plan

pytestmark = [pytest.mark.live, pytest.mark.system]

LAYOUTS = ("offset", "plain")
REGISTERED = [
    "by_directives", "by_shared_regions_1", "by_shared_regions_2", "by_frame_pointer", "by_other_register",
    "by_early_return_1", "by_early_return_2", "by_call", "by_alias", "by_alias_of_alias",
    "by_table", "by_remote_table", "by_ip_offset", "by_remote_table_64",
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_instruction_of_registered_code_is_exact(layout: str, tmp_path: Path) -> None:
    result = Oracle([str(dyn(tmp_path, layout)), "run"], Plan(start="main", only="[anon]")).run()
    assert result.mismatches == []
    assert result.compared == result.exact > 700
    assert result.deepest > 30


def test_without_what_is_registered_the_same_code_cannot_be_unwound(tmp_path: Path) -> None:
    sources = tuple(name for name in DEFAULT_SOURCES if name != "libunwind_dynamic")
    result = Oracle([str(dyn(tmp_path, "offset")), "run"], Plan(start="main", only="[anon]", sources=sources)).run()
    assert result.exact < 0.3 * result.compared


@pytest.mark.parametrize("kind", [*LAYOUTS, "static", "stripped"])
def test_every_format_has_its_frame_its_name_and_its_trust(kind: str, tmp_path: Path) -> None:
    """Dump a program with registered code.

    Args:
        kind: "offset" or "plain" for the layouts of the shared libunwind, "static" for a copy in the program with
            symbols, or "stripped" for static with symbols in a separate file.
    """
    with running(dyn(tmp_path, kind), "spin") as program:
        (thread,) = dump(program.pid)["threads"]
    assert thread["end"] == "root"
    frames = thread["frames"]
    made = [frame for frame in frames if frame["module"] == "[jit] libunwind"]
    assert [frame["function"] for frame in made] == REGISTERED
    callers = [frames[frames.index(frame) + 1] for frame in made]
    assert {frame["trust"] for frame in callers} == {Trust.LIBUNWIND_DYNAMIC.label}
    assert [frame["function"] for frame in callers] == ["call_next"] * 8 + ["call_next"] * 5 + ["main"]
