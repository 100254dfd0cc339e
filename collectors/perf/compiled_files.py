"""The files that the compilers of a recording work on, by their command lines."""

from __future__ import annotations

from pyprof.collectors.linux import procfs
from pyprof.model.compilers import CompilerFiles, compiler_files, may_be_compiler


class CompiledFiles:
    """The source file of each process that runs a compiler, by (pid, start).

    A compiler may end before its records are consumed. So its command line is read as soon as its exec record is found
    in a ring. Steps of a compiler that are too short for that get the file of the driver that forked them, which lives
    as long as all of them.
    """

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], str] = {}
        self._read: dict[tuple[int, str], CompilerFiles] = {}

    def read_ahead(self, pid: int, comm: str) -> None:
        """Read the command line of a process whose exec record is still in a ring."""
        if may_be_compiler(comm):
            self._read[pid, comm] = compiler_files(comm, procfs.read_arguments(pid))

    def add_executed(self, pid: int, started: int, comm: str) -> None:
        """Note that a process has begun to run a program of this name."""
        read = self._read.pop((pid, comm), None)
        inherited = self._files.pop((pid, started), "")
        if may_be_compiler(comm):
            found = read or compiler_files(comm, procfs.read_arguments(pid))
            self._files[pid, started] = found.file(inherited)

    def add_forked(self, pid: int, started: int, parent: tuple[int, int]) -> None:
        """Give a new process the file of its parent."""
        if file := self._files.get(parent, ""):
            self._files[pid, started] = file

    def find(self, pid: int, started: int) -> str:
        """Return the file of a process, or "" if it runs no compiler."""
        return self._files.get((pid, started), "")

    def forget(self, pid: int, started: int) -> None:
        self._files.pop((pid, started), None)
