"""Tests of the list of formats: lookup by name and by file suffix, cheap import, deterministic output."""

from __future__ import annotations

import base64
import copy
import gzip
import re
import subprocess
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from pyprof.errors import UsageError
from pyprof.exporters.base import Exporter, ExportOptions
from pyprof.exporters.registry import FORMATS, Format, find_format, find_format_for_file, format_names
from pyprof.model.profile import ThreadInfo
from tests.exporters.profiles import Builder, code, golden
from tests.exporters.support import export


def test_names_are_those_of_the_command_line() -> None:
    assert format_names() == (
        "flamegraph",
        "speedscope",
        "collapsed",
        "pprof",
        "chrome",
        "firefox",
        "otlp",
        "recording",
    )


def test_unknown_name_is_a_usage_error_that_lists_the_formats() -> None:
    with pytest.raises(UsageError) as caught:
        find_format("svg")
    assert all(name in caught.value.hint for name in format_names())


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("x.html", "flamegraph"),
        ("/tmp/a.json/x.HTM", "flamegraph"),
        ("x.speedscope.json", "speedscope"),
        ("x.speedscope.json.gz", "speedscope"),
        ("x.json", "speedscope"),
        ("x.trace.json", "chrome"),
        ("x.firefox.json.gz", "firefox"),
        ("x.firefox.json", "firefox"),
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
    found = find_format_for_file(file)
    assert (found and found.name) == name


def test_no_suffix_means_two_formats() -> None:
    suffixes = [suffix for entry in FORMATS for suffix in entry.suffixes]
    assert len(suffixes) == len(set(suffixes))


def test_registry_is_imported_without_numpy_or_any_writer() -> None:
    script = (
        "import sys, pyprof.exporters.registry as r; r.format_names(); r.find_format_for_file('x.html');"
        "print([m for m in sys.modules if m == 'numpy' or m.startswith('pyprof.exporters.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['pyprof.exporters.registry']"


@pytest.mark.parametrize("entry", FORMATS, ids=format_names())
@pytest.mark.parametrize("threads", [False, True])
def test_equal_profiles_are_equal_bytes(entry: Format, threads: bool) -> None:
    exporter: Exporter = entry
    one, two = BytesIO(), BytesIO()
    exporter.write(golden(), one, ExportOptions(threads=threads))
    exporter.write(copy.deepcopy(golden()), two, ExportOptions(threads=threads))
    assert one.getvalue() == two.getvalue()


@pytest.fixture(scope="module")
def of_other_seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write all formats in processes with different hash seeds, and return a folder for each seed."""
    script = (
        "import sys; from tests.exporters.profiles import golden; from tests.exporters.support import export\n"
        "for name in sys.argv[2:]: open(f'{sys.argv[1]}/{name}', 'wb').write(export(name, golden()))"
    )
    folders = [tmp_path_factory.mktemp(f"seed{seed}") for seed in (1, 2)]
    for seed, folder in enumerate(folders, 1):
        command = [sys.executable, "-c", script, str(folder), *format_names()]
        subprocess.run(command, env={"PYTHONHASHSEED": str(seed), "PATH": ""}, timeout=60, check=True)
    return folders


@pytest.mark.parametrize("name", format_names())
def test_output_does_not_depend_on_hash_seeds_or_the_file(name: str, of_other_seeds: list[Path]) -> None:
    assert [(folder / name).read_bytes() for folder in of_other_seeds] == [export(name, golden())] * 2


def texts_of(written: bytes) -> str:
    """Return the whole text of an output, including compressed parts."""
    if written.startswith(b"\x1f\x8b"):
        written = gzip.decompress(written)
    packed = re.findall(rb"H4sI[A-Za-z0-9+/=]+", written)
    return b"".join([written, *(gzip.decompress(base64.b64decode(piece)) for piece in packed)]).decode(
        "utf-8", "replace"
    )


@pytest.mark.parametrize("name", [name for name in format_names() if name != "recording"])
def test_changes_of_writing_direction_are_escaped_in_every_format(name: str) -> None:
    """Export names with bidirectional control characters, which would reorder a viewer's text.

    A recording keeps them.
    """
    letters = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    builder = Builder(threads=[ThreadInfo(100, 100, f"thread{letters}", f"process{letters}")])
    builder.sample(
        builder.node([code(f"function{letters}", file=f"/src/file{letters}.c", line=7), code("caf\u00e9 \u05d0")])
    )
    text = texts_of(export(name, replace(builder.build(), title=f"title{letters}"), ExportOptions(threads=True)))
    assert not {*letters} & {*text}
    assert "caf\u00e9 \u05d0" in text
    escaped = re.escape("".join(f"\\u{ord(letter):04x}" for letter in letters)).replace(r"\\", r"\\{1,2}")
    assert re.search(f"function{escaped}", text)


@pytest.mark.parametrize("name", format_names())
def test_text_formats_are_utf_8_and_others_are_not_for_terminals(name: str) -> None:
    if find_format(name).text:
        assert export(name, golden()).decode("utf-8").endswith("\n")
    else:
        assert name in ("flamegraph", "pprof", "firefox", "otlp", "recording")


@pytest.mark.parametrize("chosen", [find_format_for_file("a.Speedscope.JSON.gz"), find_format("speedscope", "a.gz")])
def test_name_that_ends_in_gz_packs_a_format_of_text_alone(chosen: Format) -> None:
    out = BytesIO()
    chosen.write(golden(), out, ExportOptions())
    assert not chosen.text
    assert gzip.decompress(out.getvalue()) == export("speedscope", golden(), ExportOptions())
    assert find_format("pprof", "a.pb.gz") == find_format("pprof")
    assert find_format("speedscope", "a.json") == find_format("speedscope")
