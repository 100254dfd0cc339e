"""Runtimes that are detected by the file name of their program or library; their functions are not read.

Each class is a line of data: `evaluators` tells which stacks lack functions, the file names tell where the runtime
runs.
"""

from __future__ import annotations

from typing import ClassVar

from pyprof.interpreters.base import Detected, Interpreter, LiveProcess


class RecognisedRuntime(Interpreter):
    """A runtime of any version that is detected by file name.

    Attributes:
        programs: File name prefixes of programs that are the runtime.
        libraries: File name prefixes of libraries that embed the runtime in other programs.
    """

    programs: ClassVar[tuple[str, ...]]
    libraries: ClassVar[tuple[str, ...]] = ()

    def detect(self, process: LiveProcess) -> Detected | None:
        files = (module for module in process.space.modules if module.has_file)
        for nth, module in enumerate(files):
            if module.name.startswith(self.libraries if nth else self.programs + self.libraries):
                return Detected(self.language, "", module.path, unread="pyprof does not read them")
        return None


class PHP(RecognisedRuntime):
    language = "PHP"
    evaluators = ("execute_ex", "zend_execute")
    programs, libraries = ("php",), ("libphp",)


class Perl(RecognisedRuntime):
    language = "Perl"
    evaluators = ("Perl_runops_", "perl_run")
    programs = ("perl",)


class LuaJIT(RecognisedRuntime):
    language = "LuaJIT"
    evaluators = ("lj_vm_", "lj_BC_", "lj_cont_", "[JIT code of luajit")
    programs, libraries = ("luajit",), ("libluajit",)


class Lua(RecognisedRuntime):
    language = "Lua"
    evaluators = ("luaV_execute", "lua_call", "lua_pcall")  # luaV_execute has no exported name
    programs, libraries = ("lua5", "lua-5"), ("liblua5", "liblua.")


class Erlang(RecognisedRuntime):
    language = "Erlang"
    evaluators = ("process_main", "_Z12process_main", "[JIT code of beam.smp")
    programs = ("beam",)


class DotNet(RecognisedRuntime):
    language = ".NET"
    evaluators = ("[JIT code of dotnet", "coreclr_execute_assembly")
    programs, libraries = ("dotnet",), ("libcoreclr.so",)


RUNTIMES: tuple[type[RecognisedRuntime], ...] = (PHP, Perl, LuaJIT, Lua, Erlang, DotNet)
