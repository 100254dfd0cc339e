"""Finds the file that a compiler works on, in its command line.

A build starts hundreds of processes with the same name. Their files distinguish them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_COMPILERS = frozenset({
    *("cc1", "cc1plus", "cc1obj", "cc1objplus", "lto1", "f951", "gnat1", "d21", "go1"),
    *("cc", "c++", "gcc", "g++", "gfortran", "clang", "clang++", "clang-cl", "flang", "flang-new", "icx", "icpx"),
    *("nvcc", "cicc", "ptxas", "as", "nasm", "yasm", "rustc", "javac", "kotlinc", "scalac", "swiftc", "swift-frontend"),
    *("ghc", "ocamlc", "ocamlc.opt", "ocamlopt", "ocamlopt.opt", "compile", "asm"),
})  # fmt: skip
"""File names of compilers and assemblers, of their drivers, and of the programs that the drivers start."""
_LINKERS = frozenset({"ld", "ld.bfd", "ld.gold", "ld.lld", "lld", "mold", "collect2"})
_SOURCES = frozenset({
    *("c", "cc", "cp", "cxx", "cpp", "c++", "C", "CPP", "i", "ii", "m", "mm", "mi", "s", "S", "sx", "asm"),
    *("f", "for", "F", "f90", "F90", "f95", "f03", "f08", "rs", "go", "java", "kt", "kts", "scala", "swift"),
    *("hs", "lhs", "ml", "adb", "ads", "cu", "ptx", "bc", "ll"),
})  # fmt: skip
"""Suffixes of source files of compilers."""
_WITH_VALUE = frozenset({
    *("-o", "-MF", "-MT", "-MQ", "-MD", "-MMD", "-include", "-imacros", "-main-file-name"),
    *("-I", "-D", "-U", "-L", "-isystem", "-iquote", "-idirafter", "-coverage-notes-file", "-coverage-data-file"),
    *("-dumpbase", "-dumpbase-ext", "-dumpdir", "-auxbase", "-auxbase-strip", "-aux-info", "-fdebug-compilation-dir"),
    *("-d", "-cp", "-classpath", "-sourcepath"),
})  # fmt: skip
"""Options of compilers whose value is the next argument and may look like a source file."""
_OUTPUT = "-o"
_TEMPORARY = ("/tmp/", "/var/tmp/")  # noqa: S108 - compared, not opened
"""Folders of temporary files that one step of a compiler writes for the next step."""
_MAX_COMM = 15
"""Maximum number of bytes of a process's name (comm) that the kernel keeps."""
_MAX_FILE = 120
"""Maximum number of characters of the name of a compiler's source file that are shown, counted from its end."""


def may_be_compiler(comm: str) -> bool:
    """Return True if a process with this name may be a compiler.

    Any process whose name the kernel truncated may be one, because the end of its name is unknown.
    """
    return _is_compiler(comm) or len(comm.encode(errors="surrogateescape")) >= _MAX_COMM


class CompilerFiles(NamedTuple):
    """The source and output files in a compiler's command line.

    Attributes:
        source: The first source file, with the number of others; "" if there is none.
        output: The output file, "" if there is none.
        is_linker: True if the program is a linker.
    """

    source: str = ""
    output: str = ""
    is_linker: bool = False

    def file(self, of_driver: str = "") -> str:
        """Return the file by which this compiler process differs from others: its source file, or its output.

        Args:
            of_driver: Result of this method for the compiler driver that started this process, "" if there is none.
        """
        return (self.output or of_driver) if self.is_linker else self.source or of_driver or self.output


def compiler_files(comm: str, arguments: Sequence[str]) -> CompilerFiles:
    """Return the source and output files that a compiler's command line names, none for other programs. Temporary files
    are left out.

    Args:
        comm: Name of the process. It must match the command line.
        arguments: The command line, which begins with the program's name.
    """
    program = arguments[0].rsplit("/", 1)[-1] if arguments else ""
    if not _is_compiler(program) or program[:_MAX_COMM] != comm:
        return CompilerFiles()
    sources, output = dict[str, None](), ""
    for before, argument in pairwise(arguments):
        if before == _OUTPUT:
            output = argument
        elif before not in _WITH_VALUE and not argument.startswith("-") and _is_source(argument):
            sources[argument] = None
    named = [source for source in sources if not source.startswith(_TEMPORARY)]
    source = _bounded(named[0]) + (f" +{len(named) - 1}" if len(named) > 1 else "") if named else ""
    output = "" if output.startswith(("-", *_TEMPORARY)) else _bounded(output)
    return CompilerFiles(source, output, _plain_names(program)[0] in _LINKERS)


def _is_compiler(name: str) -> bool:
    return any(each in _COMPILERS or each in _LINKERS for each in _plain_names(name))


def _plain_names(name: str) -> tuple[str, str]:
    """Return the names under which a compiler may be listed: without a cross compiler's target
    ("arm-linux-gnueabihf-gcc") and without a version ("clang-14").

    Returns:
        (last part of the name, last two parts for names with a hyphen such as "clang-cl").
    """
    parts = name.split("-")
    if len(parts) > 1 and parts[-1].replace(".", "").isdecimal():
        parts.pop()
    return parts[-1], "-".join(parts[-2:])


def _is_source(path: str) -> bool:
    stem, _, suffix = path.rpartition(".")
    return bool(stem) and suffix in _SOURCES


def _bounded(path: str) -> str:
    return path if len(path) <= _MAX_FILE else "…" + path[1 - _MAX_FILE :]


def process_name(comm: str, file: str) -> str:
    """Return the name of a process for users: its name and, for a compiler, the file that it works on."""
    return f"{comm} {file}" if file else comm


def program_name(process: str) -> str:
    """Return the name of a process for users without the file by which it differs from other processes of the same
    program.
    """
    comm, _, file = process.partition(" ")
    return comm if file and may_be_compiler(comm) else process
