"""Tests of separate debug files, created by the tools that distributions use."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from pyprof.model.address_space import Mapping, Module
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.debug_files import DebugFiles
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.mapped_object_files import Image
from pyprof.objfile.untrusted_file_access import Rights
from pyprof.problem_counters import Diagnostics
from tests.objfile.live import library, where
from tests.support import need

pytestmark = pytest.mark.system


def objcopy(*words: str | Path) -> None:
    subprocess.run([need("objcopy"), *map(str, words)], check=True, timeout=60)


def split(folder: Path, *flags: str) -> tuple[Path, Path]:
    """Return a stripped program with a debug link and its debug file."""
    program, debug = where(folder, "where", "-g", *flags), folder / "where.debug"
    objcopy("--only-keep-debug", program, debug)
    objcopy("--strip-all", program)
    objcopy(f"--add-gnu-debuglink={debug}", program)
    return program, debug


def find(program: Path, diagnostics: Diagnostics, *dirs: Path, root: str = "") -> ObjectFile | None:
    files = DebugFiles(diagnostics, [str(d) for d in dirs])
    return files.find(ElfFile.open(str(program)), str(program), root)


@pytest.mark.parametrize("place", ["beside", ".debug", "global"])
@pytest.mark.parametrize("flags", [(), ("-Wl,--build-id=none",)], ids=["build-id", "crc"])
def test_debug_link_is_followed(place: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    program, debug = split(folder, *flags)
    if place != "beside":
        to = folder / ".debug" if place == ".debug" else Path(f"{tmp_path}/debug{folder}")
        to.mkdir(parents=True)
        debug = debug.rename(to / debug.name)
    found = find(program, Diagnostics(), tmp_path / "debug")
    assert found is not None
    assert found.name == str(debug)
    assert found.section(".debug_info") is not None


@pytest.mark.parametrize("flags", [(), ("-Wl,--build-id=none",)], ids=["build-id", "crc"])
def test_debug_file_of_another_build_is_refused(flags: tuple[str, ...], tmp_path: Path) -> None:
    program, debug = split(tmp_path, *flags)
    other = tmp_path / "other"
    other.mkdir()
    _, wrong = split(other, *flags, "-DWAYS=3")
    wrong.replace(debug)
    diagnostics = Diagnostics()
    assert find(program, diagnostics) is None
    assert diagnostics.counts["debug_file_of_other_build"] == 1


def test_debug_file_is_found_by_build_id_in_the_targets_root(tmp_path: Path) -> None:
    program, debug = split(tmp_path)
    build_id = ElfFile.open(str(program)).build_id
    to = tmp_path / "root/usr/lib/debug/.build-id" / build_id[:2]
    to.mkdir(parents=True)
    debug.rename(to / f"{build_id[2:]}.debug")
    found = find(program, Diagnostics(), Path("/usr/lib/debug"), root=str(tmp_path / "root"))
    assert found is not None
    assert found.build_id == build_id


def test_debuginfod_cache_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, debug = split(tmp_path)
    cache = tmp_path / "cache" / ElfFile.open(str(program)).build_id
    cache.mkdir(parents=True)
    debug.rename(cache / "debuginfo")
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path / "cache"))
    assert find(program, Diagnostics()) is not None


def test_file_without_link_has_no_debug_file(tmp_path: Path) -> None:
    assert find(library(tmp_path), Diagnostics()) is None


def test_unreadable_debug_file_is_counted(tmp_path: Path) -> None:
    program, debug = split(tmp_path)
    debug.write_bytes(b"\x7fELF, not really")
    diagnostics = Diagnostics()
    assert find(program, diagnostics) is None
    assert diagnostics.counts["debug_file_unreadable"] == 1


def test_file_shared_by_dwz_is_found(tmp_path: Path) -> None:
    dwz = need("dwz")
    debugs: list[Path] = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        debugs.append(split(folder, f"-DWAYS={len(debugs)}")[1])
    subprocess.run([dwz, "-m", str(tmp_path / "common"), *map(str, debugs)], check=True, timeout=60)
    diagnostics = Diagnostics()
    found = DebugFiles(diagnostics, []).find_alternate(ElfFile.open(str(debugs[0])), "")
    assert found is not None
    assert found.name == str(tmp_path / "common")
    (tmp_path / "common").unlink()
    assert DebugFiles(diagnostics, []).find_alternate(ElfFile.open(str(debugs[0])), "") is None
    assert diagnostics.counts["shared_debug_file_not_found"] == 1


OWNER = Rights(uid=os.geteuid())
STRANGER = Rights(uid=os.geteuid() + 4711)


def module_of(path: Path) -> Module:
    mapping = Mapping(0, 4096, "r-xp", 0, "00:00", 1, str(path))
    return Module(0, 4096, str(path), "00:00", 1, False, (mapping,))


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Return a folder that only its owner may search."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.parametrize("root", ["", "/", "/proc/self/root"])
def test_linked_debug_file_that_the_target_cannot_read_is_not_opened(root: str, private: Path) -> None:
    program, debug = split(private)
    file = ElfFile.open(str(program))
    for rights, found in (OWNER, str(debug)), (STRANGER, None):
        image = Image(module_of(program), file, 0, root, debug_files=DebugFiles(Diagnostics(), []), rights=rights)
        assert (image.debug and image.debug.name) == found


def test_shared_debug_file_that_the_target_cannot_read_is_not_opened(private: Path) -> None:
    dwz = need("dwz")
    _, debug = split(private)
    twin = private / "twin"
    twin.mkdir()
    debugs = debug, split(twin, "-DWAYS=3")[1]
    subprocess.run([dwz, "-m", str(private / "common"), *map(str, debugs)], check=True, timeout=60)
    file = ElfFile.open(str(debug))
    for rights, found in (OWNER, str(private / "common")), (STRANGER, None):
        image = Image(module_of(debug), file, 0, debug_files=DebugFiles(Diagnostics(), []), rights=rights)
        alternate = image.alternate(file)
        assert (alternate and alternate.name) == found


def test_debug_file_in_the_targets_root_by_build_id_is_opened_by_its_rights(private: Path) -> None:
    program, debug = split(private)
    build_id = ElfFile.open(str(program)).build_id
    folder = private / "root/usr/lib/debug/.build-id" / build_id[:2]
    folder.mkdir(parents=True)
    debug.rename(folder / f"{build_id[2:]}.debug")
    file, root = ElfFile.open(str(program)), str(private / "root")
    (private / "root/usr").chmod(0o700)
    for rights, has in (OWNER, True), (STRANGER, False):
        found = DebugFiles(Diagnostics(), ["/usr/lib/debug"]).find(file, str(program), root, rights)
        assert (found is not None) == has
    ours = DebugFiles(Diagnostics(), [f"{root}/usr/lib/debug"]).find(file, str(program), "", STRANGER)
    assert ours is not None, "the user named this directory"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file that root alone may read")
@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
@pytest.mark.parametrize("which", ["debug", "shared"])
def test_debug_file_that_a_target_replaced_is_not_opened(which: str, kind: str, private: Path) -> None:
    """Replace a debug file by a link to a file of root, which the target may not read, by a pipe, or by a device."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        program, debug = split(folder)
        debugs, replaced = DebugFiles(Diagnostics(), []), debug
        file = ElfFile.open(str(program))

        def search(rights: Rights) -> ObjectFile | None:
            if which == "debug":
                return DebugFiles(Diagnostics(), []).find(file, str(program), "", rights)
            return debugs.find_alternate(file, "", rights)

        if which == "shared":
            other = folder / "other"
            other.mkdir()
            replaced = folder / "common"
            twins = debug, split(other, "-DWAYS=3")[1]
            subprocess.run([need("dwz"), "-m", str(replaced), *map(str, twins)], check=True, timeout=60)
            file = ElfFile.open(str(debug))
        assert search(STRANGER) is not None
        secret = private / "secret"
        shutil.move(replaced, secret)
        if kind == "link":
            replaced.symlink_to(secret)
            assert search(OWNER) is not None
        elif kind == "pipe":
            os.mkfifo(replaced)
        else:
            replaced.symlink_to("/dev/zero")
        assert search(STRANGER) is None
