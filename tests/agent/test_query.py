"""Tests of `pyprof query` and `pyprof agent` commands on existing spools."""

from __future__ import annotations

import datetime
import os
import threading
from pathlib import Path

import orjson
import pytest

from pyprof.cli.terminal_output import Log, log_thread_failures, printable
from pyprof.fleet.systemd import Notifier
from pyprof.lazy_dataclasses import replace
from tests.agent.filled import MINUTE_NS, opened, segment
from tests.exporters.pprof_reader import read
from tests.exporters.profiles import golden
from tests.warm import run

OBEYED = "\x1b\x7f\x9b\u202e\u2028"
"""Control characters that a terminal or an editor obeys."""
NOON = datetime.datetime.combine(datetime.date.today(), datetime.time(12))


def spool(folder: Path) -> str:
    """Fill a spool with the ten minutes after noon of two days, and return its path."""
    for days in (0, 1):
        noon = int((NOON - datetime.timedelta(days=days)).timestamp()) * 10**9
        opened(folder).store_window([segment(golden(), "web", noon + minute * MINUTE_NS) for minute in range(1, 11)])
    return str(folder)


def test_span_of_time_is_shown_as_report_shows_it(tmp_path: Path) -> None:
    folder = spool(tmp_path)
    done = run("query", "--spool", folder, "--since", "12:00", "--until", "12:05", "--service", "web", "-n", "3")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("web, since 12:00 until 12:05: ")
    assert lines[0].endswith("in 300 s")
    assert "memcpy" in lines[4]
    out = tmp_path / "x.pb.gz"
    assert (
        run("query", "--spool", folder, "--since", "yesterday 12:00", "--until", "12:20", "-o", str(out)).returncode
        == 0
    )
    read(out.read_bytes())
    page = tmp_path / "x.html"
    assert run("query", "--spool", folder, "--since", "2d", "--until", "12:20", "-o", str(page)).returncode == 0
    assert page.read_bytes().startswith(b"<!")


def test_functions_begin_with_the_time_that_has_no_sample(tmp_path: Path) -> None:
    profile = golden()
    noon = int(NOON.timestamp()) * 10**9
    values = profile.values.copy()
    values[:, -1] = 1_000_000_000
    values[profile.thread != 0, 0] = 0
    window = segment(replace(profile, values=values), "web", noon + MINUTE_NS)
    opened(tmp_path).store_window([window])
    done = run("query", "--spool", str(tmp_path), "--since", "12:00", "--until", "12:05")
    row = next(line for line in done.stdout.splitlines() if line.endswith("[not sampled]"))
    assert float(row.split()[0]) == pytest.approx(100 * float((profile.thread != 0).mean()), abs=0.06)
    sampled = run("query", "--spool", spool(tmp_path / "b"), "--since", "12:00", "--until", "12:05")
    assert "[not sampled]" not in sampled.stdout


def test_two_spans_are_compared_as_diff_does(tmp_path: Path) -> None:
    folder = spool(tmp_path)
    spans = ("yesterday 12:00-12:10", "today 12:00-12:05")
    done = run("query", "--spool", folder, "--service", "web", "--diff", *spans)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "before: web, yesterday 12:00-12:10, 600 s"
    assert "(+0.0 %)" in done.stdout
    out = tmp_path / "x.json"
    assert run("query", "--spool", folder, "--diff", *spans, "-o", str(out)).returncode == 0
    assert out.stat().st_size > 100


def test_time_between_windows_is_no_recorded_time(tmp_path: Path) -> None:
    noon = int(NOON.timestamp()) * 10**9
    opened(tmp_path).store_window([segment(golden(), "web", noon + minute * MINUTE_NS) for minute in (1, 2, 5)])
    done = run("query", "--spool", str(tmp_path), "--since", "12:00", "--until", "12:05")
    assert done.stdout.splitlines()[0].endswith("in 180 s")


def test_comparison_shares_time_without_samples_among_functions(tmp_path: Path) -> None:
    profile, noon = golden(), int(NOON.timestamp()) * 10**9
    values = profile.values.copy()
    values[:, -1] = 1_000_000_000
    whole = replace(profile, values=values.copy())
    values[profile.thread != 0, 0] = 0
    part = replace(profile, values=values)
    values = values.copy()
    values[:, 0] = 0
    none = replace(profile, values=values)
    sides = [segment(each, "web", noon + at * MINUTE_NS) for at, each in enumerate((whole, part, none), 1)]
    opened(tmp_path).store_window(sides)
    spans = [f"12:0{at}-12:0{at + 1}" for at in range(3)]
    for at in (1, 2):
        done = run("query", "--spool", str(tmp_path), "--diff", spans[0], spans[at])
        assert "(+0.0 %)" in done.stdout, "totals are exact"
        assert "gone" not in done.stdout
        assert "[not sampled]" in done.stdout


def test_missing_service_lists_the_existing_ones(tmp_path: Path) -> None:
    folder = spool(tmp_path)
    done = run("query", "--spool", folder, "--since", "12:00", "--until", "12:05", "--service", "wbe")
    assert done.returncode == 1
    assert "hint: the services are web" in done.stderr
    for words in (["--since", "soon"], ["--since", "1h", "--until", "2h"], ["--diff", "a", "b"], ["-f", "nix"]):
        assert run("query", "--spool", folder, *words).returncode == 2


def test_configuration_is_printed_and_checked(tmp_path: Path) -> None:
    printed = run("agent", "--print-config")
    config = tmp_path / "agent.toml"
    config.write_text(printed.stdout)
    done = run("agent", "--config", str(config), "--check")
    assert (done.returncode, done.stdout) == (0, f"{config}: 1 rule, no error\n")
    config.write_text("[spool]\nmax_fles = 3\n[[rule]]\nnme = 1\n")
    done = run("agent", "--config", str(config), "--check")
    assert done.returncode == 2
    assert [line.removeprefix(f"{config}: ")[:6] for line in done.stdout.splitlines()] == ["line 2", "line 4"]
    assert run("agent", "--config", str(config)).returncode == 2
    config.write_text(f'[[rule]]\nexe = "/*"\n[[rule]]\nexe = "{os.readlink("/proc/self/exe")}"\n')
    (warned, _) = run("agent", "--config", str(config), "--check").stdout.splitlines()
    assert warned.startswith(f"{config}: warning: line 3: earlier rules decide about all processes")
    pushes = [f'[[push]]\nname = "{name}"\n' for name in ("fleet", "nas")]
    pushes[0] += f'type = "pyprof"\nurl = "http://127.0.0.1:1"\ntoken_file = "{tmp_path}/none"\n'
    pushes[1] += f'type = "folder"\npath = "{tmp_path}/nas"\n'
    config.write_text("".join((*pushes, '[[rule]]\nname = "x"\n[[rule]]\nname = "*"\n')))
    done = run("agent", "--config", str(config), "--check")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            f"{config}: warning: line 10: this rule fits no process that runs now",
            f"{config}: warning: push fleet: {tmp_path}/none cannot be read: No such file or directory",
            f"{config}: warning: push nas: {tmp_path}/nas is no folder",
            f"{config}: 2 rules, no error",
        ],
    )
    (tmp_path / "none").write_text("0123456789abcdef\n")
    for mode, code in ((0o644, 2), (0o600, 0)):
        (tmp_path / "none").chmod(mode)
        done = run("agent", "--config", str(config), "--check")
        assert (done.returncode, "others may read or change" in done.stdout) == (code, code == 2)
    assert run("agent", "--config", str(tmp_path)).returncode == 2
    config.write_text('[record]\ngroup = "nosuchgroup-"\n[[rule]]\nname = "x"\n')
    done = run("agent", "--config", str(config), "--check")
    assert (done.returncode, "there is no group 'nosuchgroup-'" in done.stderr) == (2, True)


def test_log_lines_are_text_or_objects() -> None:
    lines: list[str] = []
    Log(lines.append, False)("info", "window", samples=1234, dropped={"a": 2})
    Log(lines.append, True)("error", "not recording", error='"\n')
    assert lines[0] == "window: samples 1,234, dropped a: 2"
    assert lines[1].endswith('"level":"error","event":"not recording","error":"\\"\\n"}')


def test_thread_that_ends_by_an_error_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    log_thread_failures(Log(lines.append, True))
    thread = threading.Thread(target=lambda: [][0], name="pyprof index")
    thread.start()
    thread.join()
    (line,) = map(orjson.loads, lines)
    assert (line["event"], line["thread"]) == ("thread failed", "pyprof index")
    assert line["error"] == "IndexError: list index out of range"
    assert line["where"].startswith(f"{__file__}:")


def test_names_that_a_terminal_would_obey_are_escaped_in_the_log_and_json_stays_json() -> None:
    lines: list[str] = []
    for as_json in (False, True):
        Log(lambda text: lines.append(printable(text)), as_json)("error", "not recording", error=OBEYED)
    assert not set(OBEYED) & set("".join(lines))
    assert orjson.loads(lines[1])["error"] == "\x1b\x7f\\u009b\\u202e\u2028"


def test_service_manager_that_is_not_there_is_not_told() -> None:
    for environment in ({}, {"NOTIFY_SOCKET": "/nowhere/x", "WATCHDOG_USEC": "1"}, {"NOTIFY_SOCKET": "@x"}):
        notifier = Notifier(environment)
        notifier.send("READY=1")
        notifier.alive()
