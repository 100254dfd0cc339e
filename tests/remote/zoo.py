"""Programs with exceptions, signal handlers, libraries and threads, built for each architecture with all its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.remote.programs import A64, ALL_CFI, ARM, BOTH_CFI, PPC, RISCV, S390, folder, symbol
from tests.support import PROGRAMS, build

PLAIN = ("-O2", "-fomit-frame-pointer", "-no-pie", "-pthread")
KEPT = ("-O2", "-fno-omit-frame-pointer", "-DFRAME_POINTERS", "-no-pie", "-pthread")


@dataclass(frozen=True)
class Machine:
    """An architecture and its builds.

    Attributes:
        prefix: Prefix of the cross compiler.
        emulator: qemu-user's emulator.
        builds: Values of --unwind for which a build has tables, separately and all together, by the build's flags.
        entry: Size of a breakpoint's instruction in bytes.
        skip: Distance in bytes from a function's symbol to its local entry point.
        flags: Flags of all builds.
    """

    prefix: str
    emulator: str
    builds: Mapping[tuple[str, ...], tuple[str, ...]]
    entry: int = 4
    skip: int = 0
    flags: tuple[str, ...] = field(default=())


_A64_TABLES = (ALL_CFI,)
_TABLES = (BOTH_CFI,)

MACHINES = {
    "a32": Machine(ARM, "qemu-arm", {("-marm", "-g"): ("exidx", "debug_frame", "debug_frame,exidx")}),
    "t32": Machine(ARM, "qemu-arm", {("-mthumb", "-g"): ("exidx", "debug_frame", "debug_frame,exidx")}, 2),
    "a64": Machine(
        A64,
        "qemu-aarch64",
        {_A64_TABLES: ("eh_frame", "debug_frame", "sframe", "sframe,eh_frame,debug_frame,fp"), KEPT: ("fp",)},
        flags=("-mbranch-protection=none",),
    ),
    "a64_pac": Machine(
        A64,
        "qemu-aarch64",
        {_A64_TABLES: ("eh_frame", "debug_frame", "sframe", "sframe,eh_frame,debug_frame,fp"), KEPT: ("fp",)},
        flags=("-mbranch-protection=standard",),
    ),
    "s390x": Machine(
        S390,
        "qemu-s390x",
        {_TABLES: ("eh_frame", "debug_frame", "eh_frame,debug_frame,fp"), ("-mbackchain", *KEPT): ("fp",)},
        2,
    ),
    "ppc64le": Machine(
        PPC, "qemu-ppc64le", {_TABLES: ("eh_frame", "debug_frame", "fp", "eh_frame,debug_frame,fp")}, skip=8
    ),
    "riscv64": Machine(
        RISCV,
        "qemu-riscv64",
        {_TABLES: ("eh_frame", "debug_frame", "eh_frame,debug_frame,fp"), KEPT: ("fp",)},
        2,
    ),
}


@dataclass(frozen=True)
class Stand:
    """A program stopped at a function, and its expected stacks.

    A stack is a regular expression over function names from root to leaf, joined by ";".

    Attributes:
        source: Source file.
        arguments: Arguments of the program.
        at: The function at which the program is stopped.
        names: Stack above main, or above the start of a thread.
        after: Functions that the program must reach before.
        root: Function below the stack.
        strange: Tables that do not reach the root, because the C and C++ libraries lack them.
    """

    source: str
    arguments: tuple[str, ...]
    at: str
    names: str
    after: tuple[str, ...] = ()
    static: bool = True
    root: str = "main"
    strange: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()

    def pattern(self, machine: str, sources: str) -> str:
        if sources in self.strange or f"{machine} {sources}" in self.strange:
            return ".*"
        names = self.names
        if sources == "fp":
            for leaf in self.leaves:
                names = names.replace(f"{leaf};", f"(?:{leaf};)?")
        return rf"(?:.*;)?{self.root};{names}"


_UP = r"tower::Step<{}>::up\(unsigned \w+\)"
_STEPS = ";".join(_UP.format(n) for n in range(4, -1, -1))
_ATTEMPT = r"all_kinds\(\);[^;]*attempt<int>\(int\)"
_RUNGS = [f"s_{n:02}" for n in range(1, 13)]
_OWN_TABLES = ("debug_frame", "sframe")
_D_LADDER = ";".join(f"d_{n:02}" for n in range(1, 31))


PLACES = {
    "thrown": Stand(
        "ladder_throw.cc",
        ("once",),
        "__gxx_personality_v0",
        rf"{_ATTEMPT};{_STEPS};__cxa_throw;.*;__gxx_personality_v0",
        # libgcc's table of _Unwind_RaiseException says EXIDX_CANTUNWIND; on s390x it keeps no back chain, on riscv64 no
        # frame records
        strange=(*_OWN_TABLES, "exidx", "debug_frame,exidx", "s390x fp", "riscv64 fp"),
        leaves=("_Unwind_RaiseException",),
    ),
    "cleaned up": Stand(
        "ladder_throw.cc",
        ("once",),
        "_ZN5tower5GuardD1Ev",
        rf"{_ATTEMPT}(?:;{_UP.format('[1-4]')}){{1,4}};tower::Guard::~Guard\(\)",
        after=("_Unwind_RaiseException",),
    ),
    "handled": Stand(
        "ladder_altstack.c",
        ("spin", "60"),
        "handler_top",
        ";".join([*_RUNGS, "s_top", "[^;]+", "handler", "handler_top"]),
        leaves=("s_top", "handler"),
    ),
    "called back": Stand(
        "ladder_plt.c",
        ("once",),
        "back",
        "round_trip;near_01;far_01;back",
        after=("main",),
        static=False,
        leaves=("far_01",),
    ),
    "one of many": Stand(
        "ladder.c",
        ("climb", "60"),
        "d_top",
        f"{_D_LADDER};d_top",
        root="d_thread",
    ),
}


@cache
def binaries(machine: str, source: str, static: bool) -> dict[Path, tuple[str, ...]]:
    """Return the values of --unwind for each build of the program for a machine."""
    found = {}
    recipe = MACHINES[machine]
    for number, (more, sources) in enumerate(recipe.builds.items()):
        common = (*(more if more[-len(KEPT) :] == KEPT else (*PLAIN, *more)), *recipe.flags, "-funwind-tables")
        into = folder() / f"{machine}-{number}"
        into.mkdir(exist_ok=True)
        compiler = recipe.prefix + ("g++" if source.endswith(".cc") else "gcc")
        link: tuple[str, ...] = ("-static",) if static else ()
        if not static:
            library = into / "libladder_plt.so"
            if not library.exists():
                flags = [flag for flag in common if flag != "-no-pie"]
                build(
                    PROGRAMS / "ladder_plt_lib.c", library, *flags, "-shared", "-fPIC", compiler=recipe.prefix + "gcc"
                )
            link = ("-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{into}")
        program = into / Path(source).stem
        found[build(PROGRAMS / source, program, *common, *link, compiler=compiler)] = sources
    return found


def place_of(machine: str, program: Path, name: str) -> int:
    """Return the address of a breakpoint at a function."""
    return symbol(program, name) + MACHINES[machine].skip
