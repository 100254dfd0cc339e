"""Tests of `pyprof report`: conversion to any format, filters and tables."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import numpy as np
import pytest

from pyprof.cli.arguments import moment, seconds_since
from pyprof.exporters.base import ExportOptions
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile
from pyprof.model.summary import FunctionsMissing, Language
from pyprof.model.unwind_result import Trust
from pyprof.recording.reader import load_recording
from tests.cli.support import one_sentence, pyprof
from tests.exporters.profiles import START_NS, golden
from tests.exporters.support import export
from tests.recording.support import edited, stored


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(golden(), tmp_path_factory.mktemp("recording"))


def lines(*arguments: str | Path) -> list[str]:
    done = pyprof("report", *map(str, arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "suffix", [".html", ".speedscope.json", ".collapsed", ".pb.gz", ".trace.json", ".json.gz", ".otlp", ".pyprof"]
)
def test_output_is_that_of_the_recording(suffix: str, recording: Path, tmp_path: Path) -> None:
    out = tmp_path / f"a{suffix}"
    done = pyprof("report", str(recording), "-o", str(out), "-t", "--full-paths")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"pyprof: wrote {out}\n"
    known = {".html": "flamegraph", ".pb.gz": "pprof", ".trace.json": "chrome", ".pyprof": "recording"}
    name = (known | {".json.gz": "firefox"}).get(suffix)
    options = ExportOptions(threads=True, full_paths=True)
    assert out.read_bytes() == export(name or suffix.split(".")[1], golden(), options)


def test_table_has_the_dearest_functions_first(recording: Path) -> None:
    found = lines(recording, "-n", "2")
    assert found[0].startswith("server (pid 100): ")
    assert found[1] == "labels: env=prod, note=<b>&"
    assert [line.split()[-2] for line in found[4:6]] == ["memcpy", "eval"]
    as_recorded = lines(recording, "-n", "99", "--native", "all")
    assert "eval" in [line.split()[-2] for line in as_recorded[4:]]
    assert "" not in as_recorded[4:], "one table"


def test_table_and_comparison_say_which_functions_are_missing(tmp_path: Path) -> None:
    profile = golden()
    missing = FunctionsMissing("Perl", (1,), profile.summary.shown.total, "")
    path = stored(replace(profile, summary=replace(profile.summary, functions_missing=(missing,))), tmp_path)
    said = "Perl functions are missing in 1 process: pyprof does not read them"
    assert said in pyprof("report", str(path)).stderr
    assert said in " ".join(pyprof("diff", str(path), str(path)).stdout.split())


def test_filters_choose_samples(recording: Path) -> None:
    everything = lines(recording, "-f", "collapsed")
    through = lines(recording, "-f", "collapsed", "--function", "^parse$")
    without = lines(recording, "-f", "collapsed", "--exclude", "^parse$")
    assert through
    assert all(";parse" in line for line in through)
    assert sorted(through + without) == sorted(everything)
    assert lines(recording, "-f", "collapsed", "--label", "env=prod", "--label", "env=other") == everything
    none = pyprof("report", str(recording), "--label", "env=other")
    assert one_sentence(none).startswith("pyprof: none of the ")
    only = lines(recording, "-f", "collapsed", "-t", "--thread", "^worker", "--from", "0.04", "--to", "0.12")
    expected = golden().cut(0.04, 0.12).filter(thread="^worker")
    assert "\n".join(only) + "\n" == export("collapsed", expected, ExportOptions(threads=True)).decode()


def test_time_of_day_is_a_moment_of_the_recording(recording: Path) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(START_NS / 1e9 + 1))
    assert lines(recording, "-f", "collapsed", "--to", clock) == lines(recording, "-f", "collapsed")


@pytest.mark.parametrize(
    ("begin", "hours", "clock", "expected"),
    [
        ("18:00", 14, "07:00", 13 * 3600),
        ("23:50", 1, "00:10", 20 * 60),
        ("23:50", 0.2, "00:10", 20 * 60),
        ("00:05", 0.1, "23:55", 23 * 3600 + 50 * 60),
        ("14:03", 0.1, "14:00", -180),
        ("14:03", 0.1, "14:05", 120),
    ],
)
def test_time_of_day_is_within_the_recording_or_next_to_it(
    begin: str, hours: float, clock: str, expected: float
) -> None:
    start = datetime.datetime.combine(datetime.date(2026, 1, 20), datetime.time.fromisoformat(begin))
    assert seconds_since(moment(clock), int(start.timestamp() * 1e9), int(hours * 3600e9)) == expected


@pytest.mark.parametrize("text", ["14:03Z", "14:03+02:00", "nan", "soon", "25:00"])
def test_invalid_local_time_is_refused(text: str, recording: Path) -> None:
    done = pyprof("report", str(recording), "--from", text)
    assert done.returncode == 2
    assert "neither a number of seconds nor a local time of day" in done.stderr


def test_part_of_the_time_is_a_profile_of_that_time(recording: Path, tmp_path: Path) -> None:
    assert lines(recording)[0] == "server (pid 100): 230 ms (cpu) in 3.0 s"
    assert lines(recording, "--from", "0.1", "--to", "0.15")[0] == "server (pid 100): 50.0 ms (cpu) in 50.0 ms"
    assert lines(recording, "--to", "inf")[0] == lines(recording)[0]
    assert "has no time between" in one_sentence(pyprof("report", str(recording), "--from", "inf"))
    out = tmp_path / "part.pyprof"
    lines(recording, "--from", "0.1", "--to", "0.15", "-o", str(out))
    assert (load_recording(out).start_ns, load_recording(out).duration_ns) == (START_NS + 100_000_000, 50_000_000)


def test_time_that_is_not_known_is_not_said(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("main;f 3\nmain;g 5\n")
    done = pyprof("report", str(path))
    assert done.stdout.startswith("a.txt: 8 samples\n")
    assert done.stderr == "pyprof: Read from collapsed stacks, which have no times and threads\n"


def test_nothing_is_known_of_what_others_files_lack(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("main;f 3\n")
    assert lines(path, "--missing") == ["What is missing is not known: a recording says it at its end."]


def test_time_of_a_file_without_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("main;f 3\nmain;g 5\n")
    assert "have no times" in one_sentence(pyprof("report", str(path), "--from", "0"))


def test_callers_and_callees_of_a_function(recording: Path) -> None:
    callers = lines(recording, "--callers", "memcpy")
    assert ["parse" in line for line in callers[1:]] == [True, False]
    assert "std::min(int, int)" in callers[2]
    callees = lines(recording, "--callees", "parse")
    assert callees[0].startswith("callees of parse: ")
    assert any("memcpy" in line for line in callees)
    assert any("[in itself]" in line for line in callees)


def test_function_name_with_any_characters_stays_the_same(recording: Path) -> None:
    found = lines(recording, "--callers", "std::min(int, int)")
    assert len(found) > 1
    assert not found[0].endswith(": 0 ns (cpu)")


def test_missing_names_the_command(recording: Path) -> None:
    assert "      apt-get install libplugin-dbg" in lines(recording, "--missing")


def test_query_prints_rows_with_tabs(recording: Path) -> None:
    assert lines(recording, "--sql", "SELECT tid, name FROM threads LIMIT 2") == [
        "tid\tname",
        "100\tmain",
        "101\tworker;1",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--thread", "nobody"], "none of the"),
        (["--callers", "f", "-o", "a.html"], "--callers is a table"),
        (["-f", "top", "-o", "a.txt"], "top is a table"),
        (["-f", "svg"], "no output format"),
        (["-o", "a.unknown"], "does not say which format"),
        (["--sql", "SELECT nonsense"], "the query fails"),
        (["--sql", "SELECT 1", "--from", "2"], "--sql and --from"),
        (["--callers", "nobody_at_all"], "no function has nobody_at_all in its name"),
        (["--callees", "operator[]"], "operator[] is neither a function"),
        (["--from", "2", "--to", "1"], "--from is not before --to"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: list[str], complaint: str, recording: Path) -> None:
    assert complaint in one_sentence(pyprof("report", str(recording), *arguments))


def test_interrupted_recording_is_reported_and_says_so(tmp_path: Path) -> None:
    path = stored(golden(), tmp_path)
    with edited(path) as database:
        for table in ("summary", "counters", "ends", "frame_sources", "problems", "module_sums", "notes", '"end"'):
            database.execute(f"DELETE FROM {table}")
        database.execute("DELETE FROM meta WHERE key = 'duration_ns'")
    done = pyprof("report", str(path))
    assert "interrupted" in done.stderr
    assert golden().top(1)[0].name in done.stdout
    assert "interrupted" in pyprof("report", str(path), "--sql", "SELECT 1").stderr
    assert "is not known" in pyprof("report", str(path), "--missing").stdout
    assert "-wal" not in done.stderr
    with edited(path) as database:
        database.execute("DELETE FROM windows")
    assert f"{path}-wal" in pyprof("report", str(path)).stderr


def test_log_of_a_killed_recording_is_not_left_beside_another_one(recording: Path, tmp_path: Path) -> None:
    """Delete stale -wal and -shm files, which SQLite would apply to the new file."""
    path = tmp_path / "b.pyprof"
    for write in (lambda: pyprof("report", str(recording), "-o", str(path)), lambda: golden().save(path)):
        for left in ("-wal", "-shm"):
            Path(f"{path}{left}").write_bytes(b"left")
        write()
        assert [entry.name for entry in tmp_path.iterdir()] == ["b.pyprof"]


def test_merged_file_has_the_samples_of_all_and_a_log_beside_it_goes(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "both.pyprof"
    Path(f"{path}-wal").write_bytes(b"left")
    done = pyprof("merge", str(recording), str(recording), "-o", str(path))
    assert (done.returncode, done.stderr) == (0, f"pyprof: wrote {path}\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["both.pyprof"]
    assert load_recording(path).total == 2 * golden().total
    assert pyprof("merge", str(path), "-o", "-").stdout.splitlines() == lines(path, "-f", "collapsed")
    assert "no such file" in one_sentence(pyprof("merge", str(path), "nowhere", "-o", "-")).lower()


def test_recursion_is_one_frame_on_request(tmp_path: Path) -> None:
    from tests.exporters.profiles import Builder, code

    builder = Builder()
    again = [code("f", rel=0x10), code("f", rel=0x20), code("f", rel=0x10)]
    builder.sample(builder.node([code("main"), *again, code("g", rel=0x900), *again]))
    path = stored(replace(builder.build()), tmp_path)
    assert lines(path, "-f", "collapsed", "--collapse-recursion") == ["main;f;g;f 1"]


def _interpreted() -> Profile:
    """Return a profile with an evaluator of libpython, a Python function, an extension, malloc, and a native thread."""
    names = [
        ("_start", 0),
        ("_PyEval_EvalFrameDefault", 1),
        ("busy", -1),
        ("dumps", 2),
        ("malloc", 2),
        ("PyObject_Free", 1),
    ]
    frames = tuple(
        Frame(
            FrameKind.NATIVE if module >= 0 else FrameKind.INTERPRETER,
            at,
            at,
            at,
            module,
            (Line(name, name),),
            Trust.FP,
            name,
        )
        for at, (name, module) in enumerate(names)
    )
    modules = tuple(
        ModuleInfo(f"/{name}", "", at << 12, (at + 1) << 12, 0, True, True) for at, name in enumerate("abc")
    )
    tree = np.array([-1, 0, 1, 2, 3, 4, 3, 1], np.int32), np.array([-1, 0, 1, 2, 3, 4, 5, 1], np.int32)
    return replace(
        golden(),
        frames=frames,
        modules=modules,
        parent=tree[0],
        frame=tree[1],
        stack=np.array([5, 6, 7], np.int32),
        summary=replace(golden().summary, languages=(Language("Python", ("_PyEval_",), ""),)),
        **{name: getattr(golden(), name)[:3] for name in ("time_ns", "thread", "values")},
        state=None,
        cpu=None,
    )


@pytest.mark.parametrize(
    ("native", "stacks"),
    [
        ("all", ["_PyEval_EvalFrameDefault;busy;PyObject_Free", "_PyEval_EvalFrameDefault;busy;dumps;malloc"]),
        ("extensions", ["busy", "busy;dumps;malloc"]),
        ("calls", ["busy", "busy;dumps"]),
        ("none", ["busy", "busy"]),
    ],
)
def test_native_frames_are_left_out_as_while_recording(native: str, stacks: list[str], tmp_path: Path) -> None:
    """Filter native frames. Stacks without a Python frame stay as they are."""
    found = lines(stored(_interpreted(), tmp_path), "--native", native, "-f", "collapsed")
    root = "" if native == "none" else "_start;"
    counted = [stack for line in found for stack in [line.rpartition(" ")[0]] * int(line.rpartition(" ")[2])]
    assert sorted(counted) == sorted(["_start;_PyEval_EvalFrameDefault", *(root + stack for stack in stacks)])
