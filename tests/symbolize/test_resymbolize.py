"""Tests of symbolizing a recording later, with files elsewhere that have the same build ID."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest

from pyprof.importers.registry import load as load_any
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, FrameKind, ModuleInfo, Profile
from pyprof.model.unwind_result import Trust
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.symbol_servers import cached_path, download_debug_files, server_urls
from pyprof.recording.reader import load_recording
from pyprof.symbolize.resymbolize import Places, add_names, find_unnamed_modules
from tests.cli.support import one_sentence, pyprof
from tests.exporters.profiles import Builder
from tests.exporters.support import export
from tests.recording.support import stored
from tests.support import build, need

pytestmark = pytest.mark.system

SOURCE = Path(__file__).parent / "programs" / "inlines.cc"
BUILD_ID = "ab" * 20
START = 0x5555_0000_0000
_PATIENCE_S = 60


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a stripped program (root/opt/prog), its debug file (debug/.build-id/...) and another build (other/prog)."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("root/opt", "other", f"debug/.build-id/{BUILD_ID[:2]}"):
        (folder / name).mkdir(parents=True)
    whole, *_ = (
        build(SOURCE, folder / name, "-g", "-O2", f"-Wl,--build-id=0x{build_id}", compiler="g++")
        for name, build_id in (("whole", BUILD_ID), ("other/prog", "cd" * 20))
    )
    debug = folder / "debug/.build-id" / BUILD_ID[:2] / f"{BUILD_ID[2:]}.debug"
    objcopy = need("objcopy")
    subprocess.run([objcopy, "--only-keep-debug", whole, debug], check=True)
    subprocess.run([objcopy, "--strip-all", whole, folder / "root/opt/prog"], check=True)
    return folder


def address(program: Path, function: str) -> int:
    lines = subprocess.run([need("nm"), program], capture_output=True, text=True, check=True).stdout.splitlines()
    return next(int(line.split()[0], 16) for line in lines if line.split()[-1] == function)


@pytest.fixture(scope="module")
def recording(files: Path) -> Profile:
    """Return a profile of one stack: a return address in main, in a file that is missing."""
    rel = address(files / "whole", "main") + 6
    module = ModuleInfo("/opt/prog", BUILD_ID, START, START + 0x10000, 0, has_functions=False, has_lines=False)
    frame = Frame(FrameKind.NATIVE, START + rel, START + rel - 1, rel, 0, (), Trust.EH_FRAME, f"prog+{rel:#x}")
    builder = Builder()
    builder.sample(builder.node([frame]))
    return builder.build(modules=(module,))


def functions(profile: Profile) -> list[str]:
    return [line.system_name for frame in profile.frames for line in frame.lines]


@contextmanager
def served(folder: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[list[str]]:
    """Serve a folder over HTTP and yield the list of requested paths."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_: object) -> None:
            asked.append(self.path)

        def log_message(self, *_: object) -> None:
            """Suppress output on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("DEBUGINFOD_URLS", f"ftp://nowhere http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(cache))
    try:
        yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_files_of_the_same_build_give_names_and_lines(files: Path, recording: Profile) -> None:
    debug = str(files / "debug")
    for places in (Places((debug,)), Places((debug,), (str(files / "root"),)), Places((str(files / "whole"),))):
        found = add_names(recording, places)
        assert functions(found)[-1] == "main"
        assert found.frames[0].title == "main"
        assert found.frames[0].lines[-1].file == str(SOURCE)
        assert found.modules[0].has_functions
        assert found.modules[0].has_lines
        assert find_unnamed_modules(found) == []
    assert recording.frames[0].lines == ()


@pytest.mark.parametrize("name", ["prog", "prog.debug", "opt/prog", "opt/prog.debug"])
def test_file_in_a_folder_is_found_by_its_name(name: str, files: Path, recording: Profile, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(files / "debug/.build-id" / BUILD_ID[:2] / f"{BUILD_ID[2:]}.debug")
    assert functions(add_names(recording, Places((str(tmp_path),))))[-1] == "main"


@pytest.mark.parametrize("linker", ["bfd", "lld"])
def test_pprof_file_which_knows_mappings_only_gets_the_names_of_the_files_segments(linker: str, tmp_path: Path) -> None:
    need(f"ld.{linker}")
    flags = ("-O2", f"-fuse-ld={linker}", f"-Wl,--build-id=0x{BUILD_ID}")
    program = build(SOURCE, tmp_path / "prog", *flags, compiler="g++")
    code = next(each for each in ElfFile.open(str(program)).loads if each.executable)
    assert (code.vaddr != code.offset) == (linker == "lld")
    page = START + (code.vaddr & -0x1000)
    module = ModuleInfo("/opt/prog", BUILD_ID, page, page + 0x10000, code.offset & -0x1000, False, False)
    rel = address(program, "main") + 6
    frame = Frame(FrameKind.NATIVE, START + rel, START + rel - 1, rel, 0, (), Trust.EH_FRAME, f"prog+{rel:#x}")
    builder = Builder()
    builder.sample(builder.node([frame]))
    recorded = builder.build(modules=(module,))
    (tmp_path / "a.pb.gz").write_bytes(export("pprof", recorded))
    for profile in (recorded, load_any(str(tmp_path / "a.pb.gz"))):
        found = add_names(profile, Places((str(program),)))
        assert functions(found)[-1] == "main"
        assert found.frames[0].rel == rel - (profile is not recorded)


def test_file_of_another_build_gives_nothing(files: Path, recording: Profile) -> None:
    for places in (Places((str(files / "other"),)), Places((str(files / "other/prog"),), (str(files / "other"),))):
        assert add_names(recording, places) == recording
    assert [info.path for info in find_unnamed_modules(recording)] == ["/opt/prog"]
    unknown = replace(recording, modules=(replace(recording.modules[0], build_id=""),))
    assert add_names(unknown, Places((str(files / "whole"),))) == unknown


def test_names_that_lie_beyond_the_file_or_are_no_places_of_it_stay_away(files: Path, recording: Profile) -> None:
    (frame,) = recording.frames
    for rel, back in ((1 << 45, 1), (1 << 63, 1), (frame.rel, 1 << 40), (frame.rel, -8)):
        lying = replace(frame, rel=rel, lookup=frame.pc - back)
        found = add_names(replace(recording, frames=(lying,)), Places((str(files / "whole"),)))
        assert functions(found) == []


def test_report_names_a_recording_and_keeps_it_elsewhere(files: Path, recording: Profile, tmp_path: Path) -> None:
    path, out = stored(recording, tmp_path), tmp_path / "named.pyprof"
    before = path.read_bytes()
    arguments = ("report", str(path), "--sysroot", str(files / "root"), "--symbols", str(files / "debug"))
    done = pyprof(*arguments, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert functions(load_recording(out))[-1] == "main"
    (frame,) = load_recording(out).frames
    assert all(line.later for line in frame.lines)
    as_recorded = replace(frame, lines=tuple(replace(line, later=False) for line in frame.lines))
    at_once = replace(load_recording(out), frames=(as_recorded,))
    assert add_names(at_once, Places((str(files / "whole"),))).frames == (as_recorded,)
    assert path.read_bytes() == before
    assert "main" in pyprof(*arguments).stdout
    assert "no such file" in one_sentence(pyprof("report", str(path), "--symbols", str(tmp_path / "nothing")))
    assert "names no server" in one_sentence(pyprof("report", str(path), "--debuginfod"))


def test_server_gives_what_it_has_once_and_what_is_another_file_is_not_kept(
    files: Path, recording: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web, cache = tmp_path / "web", tmp_path / "cache"
    lying, gone = "ef" * 20, "01" * 20
    for build_id, file in ((BUILD_ID, "whole"), (lying, "other/prog")):
        (web / "buildid" / build_id).mkdir(parents=True)
        (web / "buildid" / build_id / "debuginfo").write_bytes((files / file).read_bytes())
    with served(web, monkeypatch, cache) as asked:
        assert download_debug_files([gone, BUILD_ID, "../../x"], server_urls(), 30) == []
        assert len(asked) == 3
        assert functions(add_names(recording, Places()))[-1] == "main"
        asked.clear()
        assert download_debug_files([BUILD_ID], server_urls(), 30) == []
        assert asked == []
        (problem,) = download_debug_files([lying, gone], server_urls(), 30)
        assert "another build-id" in problem
    assert not Path(cached_path(lying, "debuginfo")).exists()
    assert [entry.name for entry in Path(cached_path(BUILD_ID, "")).iterdir()] == ["debuginfo"]


def test_debian_server_gives_names_to_report(files: Path, recording: Profile, tmp_path: Path) -> None:
    """Run elfutils' own debuginfod on a local port."""
    path, cache = stored(recording, tmp_path), tmp_path / "cache"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [need("debuginfod"), "-d", ":memory:", "-p", port, "-F", str(files / "debug")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {"DEBUGINFOD_URLS": url, "DEBUGINFOD_CACHE_PATH": str(cache)}
    try:
        end = time.monotonic() + _PATIENCE_S
        while not _answers(f"{url}/buildid/{BUILD_ID}/debuginfo"):
            assert time.monotonic() < end, "it does not look at its files"
            time.sleep(0.02)
        assert "main" in pyprof("report", str(path), "--debuginfod", env=environment).stdout
    finally:
        server.terminate()
        server.wait()
    assert [entry.name for entry in (cache / BUILD_ID).iterdir()] == ["debuginfo"]


def _answers(url: str) -> bool:
    try:
        with urlopen(url):
            return True
    except OSError:
        return False


def test_build_ids_that_are_none_cost_no_server(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web, cache = tmp_path / "web", tmp_path / "cache"
    (web / "buildid" / BUILD_ID).mkdir(parents=True)
    (web / "buildid" / BUILD_ID / "debuginfo").write_bytes((files / "whole").read_bytes())
    with served(web, monkeypatch, cache) as asked:
        assert (
            download_debug_files(["a" * 3000, "\xe9\xe9\xe9\xe9", "AB" * 20, "..", BUILD_ID], server_urls(), 30) == []
        )
    assert len(asked) == 1
    assert [entry.name for entry in cache.iterdir()] == [BUILD_ID]


def test_files_that_the_kernel_makes_up_are_not_read_for_a_recording(
    recording: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use paths of kernel files, because a recording may contain any path.

    A read of /proc/kmsg consumes its messages.
    """
    read: list[int] = []
    monkeypatch.setattr("pyprof.symbolize.resymbolize.open_object_file", read.append)
    for path in ("/proc/self/environ", "/sys/kernel/notes", "/dev/zero"):
        lying = replace(recording, modules=(replace(recording.modules[0], path=path),))
        assert functions(add_names(lying, Places((), ("/",)))) == []
    assert read == []


def test_fetching_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path))
    assert download_debug_files([BUILD_ID], ["http://127.0.0.1:9"], 0) == ["not all files came within 0 s"]
