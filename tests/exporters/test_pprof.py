"""Tests of pprof files: Go's pprof and a strict reader accept them, and they are complete."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given

from pyprof.exporters.pprof import order_modules
from pyprof.exporters.protobuf_encoding import encode_varint
from pyprof.model.marker_frames import Mark, MarkKind
from pyprof.model.profile import ModuleInfo, Profile
from pyprof.symbolize.symbolizer import make_marker_frame as merge_marker
from tests.exporters.pprof_reader import Read, read, varints
from tests.exporters.profiles import LABELS, Builder, code, deep, golden, marker, profiles, unknown
from tests.exporters.support import THREADS, export
from tests.support import need


def names(found: Read, locations: list[int]) -> list[str]:
    """Return function names from leaf to root, with inlined functions first."""
    return [found.functions[function - 1][0] for at in locations for function, _ in found.locations[at - 1][2]]


@pytest.fixture(scope="module")
def golden_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pprof") / "golden.pb.gz"
    path.write_bytes(export("pprof", golden()))
    return path


def go_pprof(path: Path, *flags: str) -> str:
    environment = {**os.environ, "HOME": str(path.parent), "PPROF_TMPDIR": str(path.parent)}
    command = [need("go"), "tool", "pprof", "-symbolize=none", *flags, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.system
def test_go_pprof_top_names_functions_and_totals(golden_file: Path) -> None:
    top = go_pprof(golden_file, "-top")
    assert "Type: cpu\n" in top
    assert "Duration: 3s, Total samples = 230ms" in top
    assert re.search(r"120ms 52\.17% +52\.17% +120ms 52\.17% +memcpy\n", top)
    assert "clamp (inline)" in top


@pytest.mark.system
def test_go_pprof_subtracts_one_file_from_another(golden_file: Path, tmp_path: Path) -> None:
    less = tmp_path / "less.pb.gz"
    less.write_bytes(export("pprof", golden().filter(exclude="^parse$")))
    top = go_pprof(less, "-top", f"-diff_base={golden_file}")
    assert re.search(r"-70ms 30\.43% .* memcpy\n", top)
    assert re.search(r"-20ms +8\.70% .* parse\n", top)


@pytest.mark.system
def test_go_pprof_raw_shows_addresses_lines_and_mappings(golden_file: Path) -> None:
    raw = go_pprof(golden_file, "-raw")
    assert "samples/count cpu/nanoseconds[dflt]" in raw
    assert "1: 0x400000/0x600000/0x1000 /opt/server/bin/server " + "bb" * 20 + " [FN][FL][LN][IN]" in raw
    inlined = raw[raw.index("std::min(int, int)") :]
    assert inlined.index("clamp") < inlined.index("handle(Request&)"), "innermost first"
    assert re.search(r"\d+: 0x7f1000001233 M=3 \n", raw), "unnamed code keeps its address, at the call"


@pytest.mark.system
def test_go_pprof_peek_shows_callers(golden_file: Path) -> None:
    peek = go_pprof(golden_file, "-peek", "^parse$")
    assert re.search(r"50ms 55\.56% \|   main\n.*40ms 44\.44% \|   work\n", peek)


@pytest.mark.system
def test_go_pprof_makes_roots_of_labels(golden_file: Path) -> None:
    top = go_pprof(golden_file, "-top", "-cum", "-tagroot=process,tid")
    assert re.search(r"60ms 26\.09% +101\n", top)
    assert "30ms" in go_pprof(golden_file, "-top", "-tagfocus=pid=200")


@pytest.mark.system
def test_go_pprof_reads_a_stack_20000_frames_deep(tmp_path: Path) -> None:
    path = tmp_path / "deep.pb.gz"
    path.write_bytes(export("pprof", deep()))
    assert "the_leaf" in go_pprof(path, "-top")


def test_labels_are_of_the_thread() -> None:
    labels = [sample[2] for sample in read(export("pprof", golden())).samples]
    assert {"pid": "100", "tid": "101", "thread": "worker;1", "process": "server", **dict(LABELS)} in labels
    assert {"pid": "200", "tid": "200", "process": "child", **dict(LABELS)} in labels


def test_sample_whose_frames_could_not_all_be_matched_is_labelled() -> None:
    builder = Builder()
    mark = merge_marker(Mark(MarkKind.MERGE, unplaced=1))
    builder.sample(builder.node([code("python"), mark, marker("[cut]")][::-1]))
    builder.sample(builder.node([code("native")]))
    labels = [sample[2] for sample in read(export("pprof", builder.build())).samples]
    assert [found.get("merge") for found in labels] == ["partial, 1 run unplaced", None]


def test_threads_are_labels_even_when_asked_for_as_roots() -> None:
    assert export("pprof", golden(), THREADS) == export("pprof", golden())


def test_period_type_and_default_are_the_primary_value() -> None:
    found = read(export("pprof", golden()))
    assert found.sample_types == [("samples", "count"), ("cpu", "nanoseconds")]
    assert found.strings[int(found.header[14])] == "cpu"
    assert found.header[12] == golden().period_ns
    assert (found.header[9], found.header[10]) == (golden().start_ns, golden().duration_ns)


def test_unnamed_code_has_no_line_and_a_marker_has_no_address() -> None:
    builder = Builder()
    builder.sample(builder.node([marker("[cut]"), unknown(2, 0x12), unknown(-1, 0xDEAD)]))
    found = read(export("pprof", builder.build()))
    bare, in_module, cut = (found.locations[at - 1] for at in found.samples[0][0])
    assert bare == (0, 0xDEAC, [])
    assert in_module == (3, 0x7F10_0000_0011, [])
    assert cut[:2] == (0, 0)
    assert names(found, found.samples[0][0]) == ["[cut]"]


@pytest.mark.parametrize(
    ("paths", "first"),
    [
        (["/lib/libc.so.6", "/bin/app", "/lib/x.so"], "/bin/app"),
        (["[vdso]", "/lib/ld-linux.so.2", "/memfd:jit (deleted)", "/opt/a.sober"], "/opt/a.sober"),
        (["/lib/libc.so.6", "[vdso]"], "/lib/libc.so.6"),
    ],
)
def test_program_is_the_first_mapping(paths: list[str], first: str) -> None:
    modules = [ModuleInfo(path, "", 0, 1, 0, False, False) for path in paths]
    order = order_modules(modules)
    assert modules[order[0]].path == first
    assert sorted(order) == list(range(len(paths)))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**63 - 1, -1, -(2**63)])
def test_varint_reads_back(value: int) -> None:
    assert list(varints(encode_varint(value))) == [value]


@given(profiles())
def test_every_profile_is_valid_and_complete(profile: Profile) -> None:
    found = read(export("pprof", profile))
    for column in range(profile.values.shape[1]):
        assert sum(sample[1][column] for sample in found.samples) == profile.values[:, column].sum()
    depths = sorted(len(sample[0]) for sample in found.samples)
    assert depths == sorted(len(profile.path(leaf)) for _, leaf, _ in profile.totals())
