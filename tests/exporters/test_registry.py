"""The list of formats: found by name and by file, cheap to import, every format pure."""

from __future__ import annotations

import copy
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest

from pyprof.errors import UsageError
from pyprof.exporters.base import Exporter, ExportOptions
from pyprof.exporters.registry import FORMATS, Format, by_file, by_name, names
from tests.exporters.profiles import golden
from tests.exporters.support import export


def test_names_are_those_of_the_command_line() -> None:
    assert names() == ("flamegraph", "speedscope", "collapsed", "pprof", "chrome", "firefox", "otlp", "recording")


def test_unknown_name_is_a_usage_error_that_lists_the_formats() -> None:
    with pytest.raises(UsageError) as caught:
        by_name("svg")
    assert all(name in caught.value.hint for name in names())


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("x.html", "flamegraph"),
        ("/tmp/a.json/x.HTM", "flamegraph"),
        ("x.speedscope.json", "speedscope"),
        ("x.json", "speedscope"),
        ("x.trace.json", "chrome"),
        ("x.firefox.json.gz", "firefox"),
        ("x.json.gz", "firefox"),
        ("x.folded", "collapsed"),
        ("x.pb.gz", "pprof"),
        ("x.pyprof", "recording"),
        ("x.gz", None),
        ("/tmp/x.html/data", None),
        ("-", None),
    ],
)
def test_suffix_names_the_format(file: str, name: str | None) -> None:
    found = by_file(file)
    assert (found and found.name) == name


def test_no_suffix_means_two_formats() -> None:
    suffixes = [suffix for entry in FORMATS for suffix in entry.suffixes]
    assert len(suffixes) == len(set(suffixes))


def test_registry_is_imported_without_numpy_or_any_writer() -> None:
    script = (
        "import sys, pyprof.exporters.registry as r; r.names(); r.by_file('x.html');"
        "print([m for m in sys.modules if m == 'numpy' or m.startswith('pyprof.exporters.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['pyprof.exporters.registry']"


@pytest.mark.parametrize("entry", FORMATS, ids=names())
@pytest.mark.parametrize("threads", [False, True])
def test_equal_profiles_are_equal_bytes(entry: Format, threads: bool) -> None:
    exporter: Exporter = entry
    one, two = BytesIO(), BytesIO()
    exporter.write(golden(), one, ExportOptions(threads=threads))
    exporter.write(copy.deepcopy(golden()), two, ExportOptions(threads=threads))
    assert one.getvalue() == two.getvalue()


@pytest.mark.parametrize("entry", FORMATS, ids=names())
def test_output_does_not_depend_on_hash_seeds_or_the_file(entry: Format, tmp_path: Path) -> None:
    script = (
        "import sys; from tests.exporters.profiles import golden; from tests.exporters.support import export;"
        "open(sys.argv[2], 'wb').write(export(sys.argv[1], golden()))"
    )
    written = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.out"
        command = [sys.executable, "-c", script, entry.name, str(path)]
        subprocess.run(command, env={"PYTHONHASHSEED": seed, "PATH": ""}, timeout=60, check=True)
        written.append(path.read_bytes())
    assert written == [export(entry.name, golden())] * 2


@pytest.mark.parametrize("name", names())
def test_text_formats_are_utf_8_and_others_are_not_for_terminals(name: str) -> None:
    if by_name(name).text:
        assert export(name, golden()).decode("utf-8").endswith("\n")
    else:
        assert name in ("flamegraph", "pprof", "firefox", "otlp", "recording")
