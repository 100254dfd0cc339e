"""Tests of runtimes that are only recognized: the summary says that their functions are missing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pyprof.interpreters.registry import RUNTIMES
from pyprof.model.analysis.stack_quality import contents
from pyprof.model.loss_reason_texts import end_title
from pyprof.model.profile import FrameKind
from pyprof.model.summary import lacks
from pyprof.session.pipeline.profile_assembly import LANGUAGES
from pyprof.symbolize.symbol_table import naming_command
from tests.cli.support import pyprof
from tests.exporters.profiles import Builder, code
from tests.interpreters.runs import PIECES_S, record
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

PROGRAMS = {
    "PHP": ("php", "-r", 'function spin() { for (;;) { md5("x"); } } echo "1\\n"; spin();'),
    "Perl": ("perl", "-e", '$| = 1; sub spin { for (;;) { $x = reverse("x") } } print "1\\n"; spin()'),
    "Lua": ("lua5.4", "-e", "local x; print(1) io.stdout:flush() while true do x = ('x'):rep(9) end"),
}


@pytest.mark.parametrize("language", PROGRAMS)
def test_functions_of_a_runtime_are_said_not_to_be_shown(language: str, tmp_path: Path) -> None:
    program, *arguments = PROGRAMS[language]
    with subprocess.Popen([need(program), *arguments], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"1\n"
            summary = next(
                found
                for seconds in PIECES_S
                if (found := record(process.pid, tmp_path / "out.collapsed", "-d", str(seconds)))["shown"]["total"]
            )
            doctor = pyprof("doctor", str(process.pid)).stdout
        finally:
            process.kill()
    shown = summary["shown"]
    assert shown["not_shown"].keys() == {language}
    assert shown["not_shown"][language] > 0.5 * shown["total"]
    assert re.search(rf"it runs {language} in /\S+: {language} functions are missing", doctor)


def test_no_option_is_named_for_a_program_that_cannot_name_its_jit_code() -> None:
    assert naming_command("[JIT code of luajit]") == ""
    assert "node" in naming_command("[JIT code of server]")


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.language)
def test_each_evaluator_tells_its_language(runtime: type) -> None:
    for evaluator in runtime.evaluators:  # type: ignore[attr-defined]
        builder = Builder()
        name = f"{evaluator}: memfd:code]" if evaluator.startswith("[") else evaluator
        frame = code("x", rel=0x10)
        line = frame.lines[0]
        lines = (type(line)(name, "" if name.startswith("[") else name),)
        frame = type(frame)(FrameKind.NATIVE, frame.pc, frame.lookup, frame.rel, 1, lines, frame.trust, name)
        builder.sample(builder.node([code("main"), frame, code("helper")]), cpu_ns=10)
        builder.sample(builder.node([code("main")]), cpu_ns=1)
        label = lacks(runtime.language)  # type: ignore[attr-defined]
        assert contents(builder.build(), LANGUAGES).shown.ends == {"root": 1, label: 10}
        assert end_title(label) == f"without {runtime.language} functions"  # type: ignore[attr-defined]
