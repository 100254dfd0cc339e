"""Tests of `pyprof diff`: table, data and exit code."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from pyprof.cli.comparison_table import table
from pyprof.lazy_dataclasses import replace
from tests.cli.support import one_sentence, pyprof
from tests.comparison.simulated import SHARES, recording, web_server
from tests.exporters.profiles import golden
from tests.recording.support import stored

PER = ("--per", "1000,1000")
HALF = {name: share / 2 for name, share in SHARES.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Store two recordings of one program, of which the second has a slower function."""
    folder = tmp_path_factory.mktemp("diff")
    slowed = recording(1, 20, SHARES | {"slowed": 1.4 * SHARES["slowed"]})
    return str(stored(recording(0, 20), folder, "a.pyprof")), str(stored(slowed, folder, "b.pyprof"))


def lines(*arguments: str) -> list[str]:
    done = pyprof("diff", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_table_marks_significant_changes(files: tuple[str, str]) -> None:
    found = lines(*files, *PER, "-n", "3")
    assert found[2].startswith("cpu per unit of work: ")
    assert found[3] in [
        f"*: more than chance, {some} of 35; the rest is noise." for some in ("1 function", "2 functions")
    ]
    assert found[7].split()[-2] == "slowed"
    assert "*" in found[7]
    assert not any("*" in line for line in found[8:])
    assert lines(*files, *PER, "-n", "1", "--sort", "total")[7].split()[-2] in ("slowed", "main")


def test_table_has_at_most_three_rows_that_may_be_chance(files: tuple[str, str]) -> None:
    found = lines(*files, *PER)
    rows = found[7 : found.index("", 7)]
    marked = ["*" in row for row in rows]
    assert marked == sorted(marked, reverse=True)
    assert marked.count(False) == 3
    assert len(lines(*files, *PER, "-n", "9")[7:-3]) == 9


def test_table_says_which_change_would_have_been_found(files: tuple[str, str]) -> None:
    text = " ".join(lines(*files, *PER)[-3:])
    assert re.search(r"An increase by [\d.]+ % of big, [\d.]+ % of slowed, [\d.]+ % of small1, or more, would be", text)
    assert "recordings 4 times as long find half of that." in text


def test_application_comes_first_and_native_code_counts_for_its_caller(tmp_path: Path) -> None:
    slowed = SHARES | {"slowed": 1.4 * SHARES["slowed"]}
    sides = web_server(0, 20), web_server(1, 20, slowed)
    files = [str(stored(each, tmp_path, f"{at}.pyprof")) for at, each in enumerate(sides)]
    found = lines(*files, *PER)
    assert found[6].endswith("function, native code included")
    names = [row.split()[-2] for row in found[7 : found.index("", 7)]]
    assert names[:2] == ["encode_slowed", "view_slowed"]
    assert not {"dispatch", "<module>", "slowed"} & {*names}, "they change because another function does"
    at = next(at for at, line in enumerate(found) if line.endswith("native function"))
    assert [row.split()[-2] for row in found[at + 1 : found.index("", at)]] == ["slowed"]
    assert lines(*files, *PER, "--sort", "total")[7].split()[-2] == "view_slowed"


def test_less_processor_time_as_a_whole_is_said_and_shares_are_compared(tmp_path: Path) -> None:
    busy, starved = (recording(seed, 20, shares) for seed, shares in ((0, SHARES), (1, HALF)))
    paths = [str(stored(each, tmp_path, f"{at}.pyprof")) for at, each in enumerate((starved, busy))]
    text = " ".join(lines(*paths))
    assert re.search(r"After has (9\d|10\d)\.\d % more cpu time a second than before, in all functions alike", text)
    assert "No change is more than chance" in text
    assert pyprof("diff", *paths, "--fail-over", "5%").returncode == 0
    assert "*: more than chance" in " ".join(lines(*paths, "--normalize", "time"))


def test_terminal_shows_noise_grey_and_growth_red() -> None:
    found = recording(0, 20).diff(recording(1, 20, SHARES | {"slowed": 0.4, "big": 0.1}))
    rows = [row for row in table(found, "own", (3, 3), 100, colour=True) if row.startswith("\x1b")]
    assert [row[:5] for row in rows] == ["\x1b[32m" if "big" in row else "\x1b[31m" for row in rows[:2]] + ["\x1b[90m"]


def test_what_all_functions_share_is_said_and_not_marked(tmp_path: Path) -> None:
    paths = [str(stored(recording(seed, 20), tmp_path, f"{seed}.pyprof")) for seed in (0, 1)]
    found = lines(*paths, "--per", "110,100")
    assert found[3].startswith("No change is more than chance")
    assert found[4].startswith("All functions together: +1")
    assert lines(*paths, "--per", "110,100", "--drift", "0")[3].startswith("*: more than chance")


def test_ranges_of_one_recording(files: tuple[str, str]) -> None:
    found = lines(f"{files[0]}@0-5", f"{files[0]}@5-", "--normalize", "samples")
    assert (found[0].split()[-2], found[1].split()[-2]) == ("5.0", "15.0")
    assert found[3].startswith("No change is more than chance")


def test_a_file_of_that_name_is_no_range(tmp_path: Path) -> None:
    path = stored(recording(0, 5), tmp_path, "a.pyprof@1-2")
    assert lines(str(path), str(path))[0].endswith(", 5.0 s")


def test_filters_choose_samples_of_both(files: tuple[str, str]) -> None:
    found = lines(*files, "--function", "^slowed$", *PER)
    assert {line.split()[-2] for line in found[7 : found.index("", 7)]} == {"slowed"}


@pytest.mark.parametrize(("limit", "code"), [("5%", 3), ("300%", 0)])
def test_exit_code_says_whether_a_function_grew(limit: str, code: int, files: tuple[str, str]) -> None:
    done = pyprof("diff", *files, *PER, "--fail-over", limit)
    assert done.returncode == code
    assert ("slowed (server) grew by more than 5 %" in done.stderr) == (code == 3)
    assert pyprof("diff", files[0], files[0], "--fail-over", limit).returncode == 0


def test_data_goes_to_a_file(files: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    done = pyprof("diff", *files, *PER, "-o", str(out))
    assert (done.returncode, done.stderr) == (0, f"pyprof: wrote {out}\n")
    assert orjson.loads(out.read_bytes())["functions"][0]["name"] == "slowed"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--per", "1"], "two numbers"),
        (["--per", "1,2", "--normalize", "time"], "not allowed with"),
        (["--fail-over", "much"], "not a percentage"),
        (["-o", "a.docx"], "does not say what to write"),
        (["--thread", "nobody"], "no samples"),
        (["--least", "100"], "at least 0 and below 1"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: list[str], complaint: str, files: tuple[str, str]) -> None:
    done = pyprof("diff", *files, *arguments)
    assert done.returncode in (1, 2)
    assert complaint in (one_sentence(done) if not done.stderr.startswith("usage") else done.stderr)


def test_files_that_cannot_be_compared_are_refused(files: tuple[str, str], tmp_path: Path) -> None:
    kinds = (golden().value_types[0], replace(golden().value_types[1], type="wall"))
    wall = stored(replace(golden(), value_types=kinds), tmp_path, "wall.pyprof")
    assert "they cannot be compared" in one_sentence(pyprof("diff", files[0], str(wall)))
    assert "between these two times" in one_sentence(pyprof("diff", f"{files[0]}@50-60", files[1]))
    assert "neither a number" in one_sentence(pyprof("diff", f"{files[0]}@soon-", files[1]))
    golden().save(tmp_path / "a.collapsed")
    untimed = str(tmp_path / "a.collapsed")
    assert lines(untimed, untimed)[3].startswith("Nothing is marked: it is not known when samples were taken")
    done = pyprof("diff", untimed, untimed, "--fail-over", "5%")
    assert (done.returncode, "cannot decide" in one_sentence(done)) == (2, True)
