"""Tests of the target's files: the stub transfers those that are missing on this machine, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyprof.collectors.gdb_stub.remote_serial import PacketLink, escape_payload
from pyprof.collectors.gdb_stub.stub_requests import Stub
from pyprof.collectors.gdb_stub.target_modules import RemoteFiles
from pyprof.model.address_space import AddressSpace, Mapping
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.problem_counters import Diagnostics
from tests.live.support.ladders import ladder
from tests.remote.liar import honest, lying, reply

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


class FileServer:
    """A stub that serves files by path."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = list(files.items())
        self.opened: list[str] = []

    def __call__(self, request: bytes) -> bytes | None:
        if request.startswith(b"vFile:open:"):
            path = os.fsdecode(bytes.fromhex(request[11:].split(b",")[0].decode()))
            self.opened.append(path)
            places = [n for n, (name, _) in enumerate(self._files) if name == path]
            return reply(b"F%x" % places[0] if places else b"F-1,2")
        if request.startswith(b"vFile:pread:"):
            fd, size, offset = (int(word, 16) for word in request[12:].split(b","))
            data = self._files[fd][1][offset : offset + size]
            raw = b"F%x;" % len(data) + escape_payload(data)
            return b"+$" + raw + b"#%02x" % (sum(raw) & 255)
        return reply(b"F0") if request.startswith(b"vFile:close") else None


def mappings_of(elf: ElfFile, path: str) -> tuple[Mapping, ...]:
    return tuple(
        Mapping(
            s.vaddr & -4096,
            s.vaddr + s.filesz + 4095 & -4096,
            "r-xp" if s.flags & 1 else "r--p",
            s.offset & -4096,
            "gdb",
            1,
            path,
        )
        for s in elf.loads
        if not s.flags & 2
    )


def test_file_that_is_not_here_is_fetched_and_used(tmp_path: Path) -> None:
    program = ladder("ladder_static")
    content, elf = program.read_bytes(), ElfFile.open(str(program))
    far = f"/not/on/this/machine/{program.name}"
    server = FileServer({far: content})

    def read(avma: int, size: int) -> bytes:
        return bytes(elf.at_svma(avma, size))

    with lying(server) as liar:
        stub = Stub(PacketLink.connect(liar.address))
        stub.negotiate_features()
        diagnostics = Diagnostics()
        files = RemoteFiles(stub, far, "", str(tmp_path), diagnostics)
        mappings = mappings_of(elf, far)
        files.fetch_missing(mappings, read)
        files.fetch_missing(mappings, read)
        assert server.opened == [far]
        assert diagnostics.counts["file_fetched_from_stub"] == 1
        space = AddressSpace(1, 0, 1, mappings, read, str(tmp_path), files.find)
        image = ImageStore(diagnostics).image(space, elf.entry)
        assert image is not None
        assert not image.from_memory
        assert ".symtab" in image.file.sections
        fetched = [path for path, _ in files.find(image.module)][-1]
        assert Path(fetched).read_bytes() == content
        files.close()
        assert not Path(fetched).exists()
        stub.link.close()


def test_file_that_is_here_is_not_fetched() -> None:
    program = ladder("ladder_static")
    elf = ElfFile.open(str(program))
    server = FileServer({})
    with lying(server) as liar:
        stub = Stub(PacketLink.connect(liar.address))
        stub.negotiate_features()
        files = RemoteFiles(stub, str(program), "", "", Diagnostics())
        files.fetch_missing(mappings_of(elf, str(program)), lambda avma, size: bytes(elf.at_svma(avma, size)))
        assert server.opened == []
        stub.link.close()


def test_stub_without_files_costs_one_question() -> None:
    with lying(lambda _: None) as liar:
        stub = Stub(PacketLink.connect(liar.address))
        stub.negotiate_features()
        assert stub.read_whole_file("/proc/1/maps", 1 << 20) is None
        assert honest(b"vFile:open:00,0,0") == b""
        stub.link.close()
