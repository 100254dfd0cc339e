"""The data of a crash dump about its modules, and candidates for their files on this machine.

Unlike a core file, a dump does not contain the modules' memory. A file is the right one if its id is the stated one.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.model.modules import Module, StatedId
from pyprof.objfile.file_access import debuginfod_cache
from pyprof.objfile.minidump.crash_dump import ELF_MACHINES, CrashDump, DumpModule

BUILD_ID_DIR = "/usr/lib/debug/.build-id"
TRIPLETS = {
    "x86": "i386-linux-gnu",
    "amd64": "x86_64-linux-gnu",
    "arm": "arm-linux-gnueabihf",
    "arm64": "aarch64-linux-gnu",
}
AT_PHDR, AT_ENTRY = 3, 9


class DumpFiles:
    """The files of the modules in a crash dump; `exe` and `sysroot` are the user's, or ""."""

    def __init__(self, dump: CrashDump, exe: str, sysroot: str) -> None:
        self._processor = dump.processor
        self._exe = exe
        self._root = sysroot.rstrip("/")
        self._modules = {module.base: module for module in dump.modules}
        self._program = _program(dump)
        self._entry = dump.auxv.get(AT_ENTRY, 0)

    @property
    def program(self) -> str:
        """Path of the program as the crash dump states it."""
        return self._program.path if self._program else ""

    def find_stated(self, module: Module) -> StatedId | None:
        """Return the build id that a crash dump states for a module, or None if the module is in no list of modules.
        See AddressSpace.stated.
        """
        known = self._modules.get(module.start)
        if known is None:
            return None
        entry = self._entry - known.base if known.base <= self._entry < known.base + known.size else 0
        return StatedId(known.debug_id, known.build_id, known.debug_name, *ELF_MACHINES[self._processor], entry)

    def find_file(self, module: Module) -> Iterator[tuple[str, bool]]:
        """Yield candidates for the file of a crash dump's module, as (path, trusted). See model.modules.FindFiles."""
        known = self._modules.get(module.start)
        if known is None:
            return
        if self._exe and known is self._program:
            yield self._exe, True
        path = known.path.removesuffix(" (deleted)")
        roots = dict.fromkeys((self._root, ""))
        if path.startswith("/"):
            yield from ((root + path, bool(root)) for root in roots)
        elif path and "\\" not in path:  # Crashpad names libraries by their DT_SONAME
            for root in roots:
                for folder in (f"/lib/{TRIPLETS[self._processor]}", "/lib64", "/lib", "/usr/lib"):
                    yield f"{root}{folder}/{path}", False
        if len(known.build_id) > 4:
            for root in roots:
                yield f"{root}{BUILD_ID_DIR}/{known.build_id[:2]}/{known.build_id[2:]}", False
            yield f"{debuginfod_cache()}/{known.build_id}/executable", False


def _program(dump: CrashDump) -> DumpModule | None:
    """Return the module that is the program of a crash dump: the one that auxv refers to, else the first one."""
    for kind in (AT_PHDR, AT_ENTRY):
        avma = dump.auxv.get(kind, 0)
        for module in dump.modules:
            if module.base <= avma < module.base + module.size:
                return module
    return dump.modules[0] if dump.modules else None
