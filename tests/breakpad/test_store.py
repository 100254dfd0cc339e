"""Tests of the lookup of symbol files, which must belong to the mapped module."""

from __future__ import annotations

import gzip
import http.server
import lzma
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyprof.errors import UsageError
from pyprof.model.address_space import Module, StatedId
from pyprof.objfile.base import AbsentFile
from pyprof.objfile.breakpad_records import breakpad_id, hash_text, is_same_id
from pyprof.objfile.breakpad_symbol_search import DIFFERS, SymbolStore
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from tests.support import build

pytestmark = pytest.mark.system

SOURCE = "int main(void) { return 0; }\n"
BUILD_ID = "aabbccdd11223344556677889900112233445566"
ID = "DDCCBBAA2211443355667788990011220"
OTHER = "00CCBBAA2211443355667788990011220"


@pytest.fixture(scope="module")
def elf(tmp_path_factory: pytest.TempPathFactory) -> ElfFile:
    """Build a program named "app" with a chosen build ID."""
    folder = tmp_path_factory.mktemp("app")
    (folder / "app.c").write_text(SOURCE)
    return ElfFile.open(str(build(folder / "app.c", folder / "app", f"-Wl,--build-id=0x{BUILD_ID}")))


def text(module_id: str = ID, name: str = "app", code_id: str = "") -> bytes:
    info = f"INFO CODE_ID {code_id}\n" if code_id else ""
    return f"MODULE Linux x86_64 {module_id} {name}\n{info}PUBLIC 1000 0 f\n".encode()


def put(folder: Path, content: bytes, module_id: str = ID, suffix: str = "") -> Path:
    path = folder / "app" / module_id / f"app.sym{suffix}"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_id_is_the_build_id_as_a_guid(elf: ElfFile) -> None:
    assert elf.build_id == BUILD_ID
    assert breakpad_id(elf) == ID


def test_short_build_id_is_padded(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(SOURCE)
    elf = ElfFile.open(str(build(tmp_path / "a.c", tmp_path / "a", "-Wl,--build-id=0x10FAA6BBAAB83DB3")))
    assert breakpad_id(elf) == "BBA6FA10B8AAB33D00000000000000000"


def test_id_without_build_id_is_the_code_in_lanes(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(SOURCE)
    elf = ElfFile.open(str(build(tmp_path / "a.c", tmp_path / "a", "-Wl,--build-id=none")))
    section = elf.sections[".text"]
    assert section.size < 4096
    lanes = [0] * 16
    code = Path(elf.name).read_bytes()[section.offset :]
    for at in range(0, section.size, 16):
        for lane in range(16):
            lanes[lane] ^= code[at + lane]
    assert hash_text(elf) == bytes(lanes)
    assert breakpad_id(elf).endswith(bytes(lanes[8:]).hex().upper() + "0")
    sym = tmp_path / "a.sym"
    sym.write_bytes(text(breakpad_id(elf), "a", hash_text(elf).hex().upper()))  # dump_syms also writes the hash
    assert SymbolStore([str(sym)], Diagnostics()).find(elf) is not None


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_file_is_found_by_its_id_with_any_name_and_compression(
    pack: Callable[[bytes], bytes], elf: ElfFile, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    path.write_bytes(pack(text(name="renamed", code_id=BUILD_ID.upper())))
    diagnostics = Diagnostics()
    found = SymbolStore([str(path)], diagnostics).find(elf)
    assert found is not None
    assert found.public_at(0x1000) is not None
    assert not diagnostics.counts


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_folder_is_searched_by_name_and_id(
    suffix: str, pack: Callable[[bytes], bytes], elf: ElfFile, tmp_path: Path
) -> None:
    path = put(tmp_path, pack(text()), suffix=suffix)
    put(tmp_path, text(OTHER), OTHER)
    found = SymbolStore([str(tmp_path)], Diagnostics()).find(elf)
    assert found is not None
    assert found.name == str(path)


def test_folder_with_ids_in_lower_case_is_searched_too(elf: ElfFile, tmp_path: Path) -> None:
    put(tmp_path, text(ID.lower()), ID.lower())
    assert SymbolStore([str(tmp_path)], Diagnostics()).find(elf) is not None


@pytest.mark.parametrize("where", ["file", "folder", "lying folder"])
def test_symbol_file_of_another_build_is_said_and_refused(where: str, elf: ElfFile, tmp_path: Path) -> None:
    path = put(tmp_path, text(OTHER), ID if where == "lying folder" else OTHER)
    diagnostics = Diagnostics()
    store = SymbolStore([str(path if where == "file" else tmp_path)], diagnostics)
    assert store.find(elf) is None
    assert diagnostics.counts == {DIFFERS: 1}
    [problem] = diagnostics.problems[elf.name]
    assert ID in problem.text
    assert OTHER in problem.text


def test_code_id_must_agree_too(elf: ElfFile, tmp_path: Path) -> None:
    path = put(tmp_path, text(code_id=BUILD_ID[:-2] + "67"))
    diagnostics = Diagnostics()
    assert SymbolStore([str(path)], diagnostics).find(elf) is None
    assert diagnostics.counts == {DIFFERS: 1}


def test_symbol_file_of_another_module_is_no_problem(elf: ElfFile, tmp_path: Path) -> None:
    path = put(tmp_path, text(OTHER, "libother.so"))
    diagnostics = Diagnostics()
    assert SymbolStore([str(path), str(tmp_path / "app")], diagnostics).find(elf) is None
    assert not diagnostics.counts


@pytest.mark.parametrize("content", [b"", b"no", gzip.compress(text(), mtime=0)[:-12], b"\xfd7zXZ\0broken"])
def test_file_that_cannot_be_read_is_counted(content: bytes, elf: ElfFile, tmp_path: Path) -> None:
    path = tmp_path / "a.sym"
    path.write_bytes(content)
    diagnostics = Diagnostics()
    assert SymbolStore([str(path)], diagnostics).find(elf) is None
    assert diagnostics.counts == {"symbol_file_not_opened": 1}


def test_file_that_nothing_maps_is_not_looked_up_for_the_walk(elf: ElfFile, tmp_path: Path) -> None:
    put(tmp_path, text())
    store = SymbolStore([str(tmp_path)], Diagnostics())
    assert store.find_mapped(elf) is None
    store.register_file(elf, "/usr/lib/renamed/app")
    assert store.find_mapped(elf) is not None


def test_place_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        SymbolStore([str(tmp_path / "none")], Diagnostics())


@contextmanager
def serving(answers: dict[str, tuple[int, dict[str, str], bytes]]) -> Iterator[tuple[str, list[str]]]:
    """Run a local server, and yield its URL and the list of requested paths."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            code, headers, body = answers.get(self.path, (404, {}, b"none"))
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/symbols/", asked
        finally:
            server.shutdown()
            thread.join()


PATH = f"/symbols/app/{ID}/app.sym"


@pytest.mark.parametrize(
    ("headers", "pack"), [({}, bytes), ({"Content-Encoding": "gzip"}, gzip.compress), ({}, gzip.compress)]
)
def test_server_is_asked_once_and_then_the_cache(
    headers: dict[str, str], pack: Callable[[bytes], bytes], elf: ElfFile, tmp_path: Path
) -> None:
    with serving({PATH: (200, headers, pack(text()))}) as (url, asked):
        for _ in range(2):
            found = SymbolStore([url], Diagnostics(), str(tmp_path)).find(elf)
            assert found is not None
            assert found.public_at(0x1000) is not None
        assert asked == [PATH]
    assert (tmp_path / "app" / ID / "app.sym").is_file()
    assert SymbolStore([url], Diagnostics(), str(tmp_path)).find(elf) is not None


def test_file_of_a_windows_module_is_below_its_pdb_without_the_suffix(tmp_path: Path) -> None:
    identifier = "5A9832E5287241C1838ED98914E9B7FF1"
    stated = StatedId(identifier, "", "test_app.pdb", 3, 32, "little")
    module = Module(0x400000, 0x42D000, "c:\\test_app.exe", "dump", 1, False, ())
    absent = AbsentFile(module, stated, lambda avma, size: b"")
    path = f"/symbols/test_app.pdb/{identifier}/test_app.sym"
    body = f"MODULE windows x86 {identifier} test_app.pdb\nPUBLIC 1000 0 it\n".encode()
    with serving({path: (200, {}, body)}) as (url, asked):
        store = SymbolStore([url], Diagnostics(), str(tmp_path / "cache"))
        store.register_file(absent, "test_app.pdb")
        assert store.find(absent) is not None
        assert asked == [path]
    (tmp_path / "cache" / "test_app.pdb" / identifier / "test_app.sym").rename(tmp_path / "kept.sym")
    place = tmp_path / "folder" / "test_app.pdb" / identifier
    place.mkdir(parents=True)
    (place / "test_app.sym.xz").write_bytes(lzma.compress(body))
    store = SymbolStore([str(tmp_path / "folder")], Diagnostics())
    store.register_file(absent, "test_app.pdb")
    assert store.find(absent) is not None


@pytest.mark.parametrize("name", ["", "..", "a\0b", "x" * 300])
def test_name_that_is_none_is_not_looked_for(name: str, elf: ElfFile, tmp_path: Path) -> None:
    """Ignore invalid module names, which a crash dump may contain."""
    diagnostics = Diagnostics()
    with serving({}) as (url, asked):
        store = SymbolStore([url, str(tmp_path)], diagnostics, str(tmp_path))
        store.register_file(elf, name)
        assert store.find(elf) is None
        assert not asked
    assert not diagnostics.counts


def test_ids_of_old_pdbs_are_compared_whole() -> None:
    assert is_same_id("4110A2C52", "4110a2c52")
    assert not is_same_id("4110A2C52", "4110A2C53")
    assert not is_same_id("", "")


def test_server_that_has_no_file_is_no_problem_and_leaves_nothing(elf: ElfFile, tmp_path: Path) -> None:
    diagnostics = Diagnostics()
    with serving({}) as (url, asked):
        assert SymbolStore([url], diagnostics, str(tmp_path)).find(elf) is None
        assert asked == [PATH]
    assert not diagnostics.counts
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "answer", [(500, {}, b""), (200, {"Content-Length": "9999"}, text()), (200, {"Content-Encoding": "gzip"}, b"no")]
)
def test_server_that_fails_is_not_asked_again(
    answer: tuple[int, dict[str, str], bytes], elf: ElfFile, tmp_path: Path
) -> None:
    diagnostics = Diagnostics()
    with serving({PATH: answer}) as (url, asked):
        store = SymbolStore([url], diagnostics, str(tmp_path))
        assert store.find(elf) is None
        other = ElfFile.open(elf.name)
        assert store.find(other) is None
        assert len(asked) == 1
    assert diagnostics.counts == {"symbol_server_timeout": 1}
    assert kept(tmp_path) == []


def kept(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_server_that_is_not_there_is_said(elf: ElfFile, tmp_path: Path) -> None:
    diagnostics = Diagnostics()
    with serving({}) as (url, _):
        pass
    assert SymbolStore([url], diagnostics, str(tmp_path)).find(elf) is None
    assert diagnostics.counts == {"symbol_server_timeout": 1}
    assert url.rstrip("/") in diagnostics.problems


def test_server_that_lies_about_the_id_is_refused_and_its_file_not_kept(elf: ElfFile, tmp_path: Path) -> None:
    diagnostics = Diagnostics()
    with serving({PATH: (200, {}, text(OTHER))}) as (url, _):
        assert SymbolStore([url], diagnostics, str(tmp_path)).find(elf) is None
    assert diagnostics.counts == {DIFFERS: 1}
    assert kept(tmp_path) == []
