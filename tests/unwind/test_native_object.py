"""Tests of the native walker's objects: they are made of their sources, and others are refused."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyprof.unwind import native_unwinder
from pyprof.unwind.code_analysis import x86_control_flow
from pyprof.unwind.code_analysis.function_analysis_bindings import ROW, RUN, FlowRow
from pyprof.unwind.native_unwinder import (
    FOLDER,
    NativeCodeError,
    SpaceRow,
    TableRow,
    WalkerState,
    WalkRow,
    Why,
    open_library,
)
from tests.support import missing, need

pytestmark = [pytest.mark.live, pytest.mark.system]

SOURCES = Path(__file__).resolve().parents[2] / "native"
MACHINES = ("x86_64", "aarch64")


def manifest(folder: Path = FOLDER) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((folder / "manifest.json").read_bytes())
    return found


def test_manifest_describes_the_sources_and_the_objects() -> None:
    described = manifest()
    sources = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.[ch]")}
    assert set(described["sources"]) == sources
    assert set(described["objects"]) == {f"walk.{machine}.so" for machine in MACHINES}
    for folder, kind in ((SOURCES, "sources"), (FOLDER, "objects")):
        for name, digest in described[kind].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, f"{name}: run `make native`"


def test_objects_are_those_that_the_pinned_compiler_makes(tmp_path: Path) -> None:
    if importlib.util.find_spec("ziglang") is None:
        missing("needs the compiler of native/: pip install -e '.[native]'")
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(tmp_path / "cache"), "ZIG_LOCAL_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(SOURCES / "build.py"), str(tmp_path / "made")]
    subprocess.run(command, check=True, timeout=250, env=environment)
    assert manifest(tmp_path / "made") == manifest()


def test_objects_need_no_library_and_have_no_relocations() -> None:
    for machine in MACHINES:
        path = str(FOLDER / f"walk.{machine}.so")
        found = subprocess.check_output([need("readelf"), "--dynamic", "--relocs", path], text=True, timeout=20)
        assert "(SYMTAB)" in found
        assert not [word for word in ("(NEEDED)", "(INIT", "Relocation section") if word in found]


@pytest.mark.parametrize(
    ("header", "kinds"),
    [
        ("walk/walk.h", {"walk": WalkRow, "space": SpaceRow, "table": TableRow}),
        ("flow/flow.h", {"flow": FlowRow}),
    ],
)
def test_structures_are_those_of_the_source(
    tmp_path: Path, header: str, kinds: dict[str, type[ctypes.Structure]]
) -> None:
    """Compile a program that compares each field's offset, and each number, with those of Python."""
    facts = []
    for name, kind in kinds.items():
        facts.append(f"sizeof(struct {name}) == {ctypes.sizeof(kind)}")
        for field, *_ in kind._fields_:
            facts.append(f"offsetof(struct {name}, {field}) == {getattr(kind, field).offset}")
    if header == "walk/walk.h":
        numbers = ("WHY", Why), ("STATE", WalkerState)
        facts += [f"{name}_{each.name} == {each.value}" for name, enum in numbers for each in enum]
    else:
        facts += [f"{name} == {getattr(x86_control_flow, name)}" for name in LIMITS]
        facts += [f"sizeof(struct row) == {ROW.size}", f"sizeof(struct run) == {RUN.size}"]
    text = "".join(f'_Static_assert({fact}, "{fact}");\n' for fact in facts)
    program = tmp_path / "facts.c"
    program.write_text(f'#include <stddef.h>\n#include "{SOURCES}/{header}"\n{text}')
    subprocess.run([need("gcc"), "-std=gnu11", "-fsyntax-only", program], check=True, timeout=60)
    (first, kind), *_ = kinds.items()
    fields = {field for field, *_ in kind._fields_}
    (body,) = re.findall(rf"struct {first} \{{(.*?)\n\}};", (SOURCES / header).read_text(), re.S)
    declared = re.findall(r"[\w ]+[ *]+((?:\*?\w+(?:, )?)+);", re.sub(r"/\*.*?\*/", "", body, flags=re.S))
    assert {name.strip("* ") for names in declared for name in names.split(",")} == fields


LIMITS = ("MAX_INSTRUCTIONS", "MAX_STEPS", "MAX_WORK", "STATE_STEPS", "MAX_TRIALS", "MAX_TABLE", "MAX_TABLES",
          "MAX_UNRESOLVED")  # fmt: skip


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a folder with copies of the objects and their manifest."""
    return Path(shutil.copytree(FOLDER, tmp_path / "native"))


def test_object_that_its_manifest_does_not_describe_is_refused(copied: Path) -> None:
    machine = os.uname().machine
    path = copied / f"walk.{machine}.so"
    open_library(copied, machine)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(NativeCodeError, match="is not the object that its manifest describes"):
        open_library(copied, machine)
    path.unlink()
    with pytest.raises(NativeCodeError, match="cannot be loaded"):
        open_library(copied, machine)


def test_machine_without_an_object_is_named(copied: Path) -> None:
    with pytest.raises(NativeCodeError, match="pyprof has no native code for riscv64"):
        open_library(copied, "riscv64")
    (copied / "manifest.json").write_text("{")
    with pytest.raises(NativeCodeError, match="cannot be loaded"):
        open_library(copied, "riscv64")


def test_doctor_says_why_stacks_are_walked_in_python(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyprof.cli import doctor

    native_unwinder._opened.cache_clear()
    monkeypatch.setattr(native_unwinder, "FOLDER", copied)
    (copied / "manifest.json").unlink()
    try:
        doctor.show([doctor.check_native_walker()])
        assert "stacks are walked in Python, which is slower" in capsys.readouterr().out
        assert native_unwinder.find_library() is None
    finally:
        monkeypatch.undo()
        native_unwinder._opened.cache_clear()
    doctor.show([doctor.check_native_walker()])
    assert "stacks are walked by native code" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "module", "seconds"),
    [("walk/walk.c", "tests.unwind.hostile_walks", "5"), ("flow/flow.c", "tests.unwind.hostile_code", "2")],
)
def test_recorded_and_hostile_input_makes_no_access_out_of_bounds(
    tmp_path: Path, source: str, module: str, seconds: str
) -> None:
    """Pass it to a build with address and undefined-behaviour sanitizers, which ends the process at an error."""
    library = tmp_path / "sanitized.so"
    gcc = need("gcc")
    flags = ("-O1", "-g", "-std=gnu11", "-fPIC", "-shared", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    subprocess.run([gcc, *flags, SOURCES / source, "-o", library], check=True, timeout=120)
    runtime = subprocess.check_output([gcc, "-print-file-name=libasan.so"], text=True, timeout=20).strip()
    environment = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-m", module, str(library), seconds]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, cwd=SOURCES.parent)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) > 0
