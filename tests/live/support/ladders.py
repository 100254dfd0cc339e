"""The ladder programs of tests/programs, each built once in a run."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support import PROGRAMS, build, need

NO_FRAME_POINTER = ("-O2", "-fomit-frame-pointer")
NO_TABLES = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
SHARED = ("-shared", "-fPIC")


@dataclass(frozen=True)
class Recipe:
    """The build recipe of a ladder program.

    Attributes:
        source: Source file.
        flags: Flags of the compiler.
        with_: Further sources and libraries, where {folder} is the folder of the builds.
        compiler: The compiler.
        after: Programs that must be built before.
    """

    source: str
    flags: tuple[str, ...] = NO_FRAME_POINTER
    with_: tuple[str, ...] = ()
    compiler: str = "gcc"
    after: tuple[str, ...] = ()


RECIPES = {
    "ladder": Recipe("ladder.c"),
    "ladder_static": Recipe("ladder.c", (*NO_FRAME_POINTER, "-static")),
    "ladder_static_pie": Recipe("ladder.c", (*NO_FRAME_POINTER, "-static-pie")),
    "ladder_fp": Recipe("ladder.c", ("-O2", "-fno-omit-frame-pointer", "-DFRAME_POINTERS", *NO_TABLES)),
    "ladder_debug_frame": Recipe("ladder.c", (*NO_FRAME_POINTER, "-g", *NO_TABLES)),
    "ladder_deep": Recipe("ladder_deep.c"),
    "ladder_deeper": Recipe("ladder_deep.c", (*NO_FRAME_POINTER, "-DPAD=10")),
    "ladder_recursion": Recipe("ladder_recursion.c", (*NO_FRAME_POINTER, "-D_GNU_SOURCE", "-pthread")),
    "ladder_recursion_fp": Recipe("ladder_recursion.c", ("-O0", "-D_GNU_SOURCE", "-pthread")),
    "ladder_beside": Recipe("ladder_beside.c", (*NO_FRAME_POINTER, "-D_GNU_SOURCE", "-pthread")),
    "ladder_gap": Recipe("ladder_gap.c", (*NO_FRAME_POINTER, "-fno-stack-clash-protection", "-pthread")),
    "ladder_red_zone": Recipe("ladder_red_zone.c"),
    "ladder_room": Recipe("ladder_room.c", (*NO_FRAME_POINTER, "-fno-stack-clash-protection", "-pthread")),
    "ladder_contexts": Recipe("ladder_contexts.c"),
    "ladder_altstack": Recipe("ladder_altstack.c"),
    "ladder_throw": Recipe("ladder_throw.cc", compiler="g++"),
    "ladder_signal": Recipe("ladder_signal.c", with_=(str(PROGRAMS / "ladder_leaf.S"),)),
    "libladder_plt.so": Recipe("ladder_plt_lib.c", (*NO_FRAME_POINTER, *SHARED, "-Wl,-z,lazy")),
    "ladder_plt": Recipe(
        "ladder_plt.c",
        (*NO_FRAME_POINTER, "-Wl,-z,lazy"),
        with_=("-Wl,--no-as-needed", "{folder}/libladder_plt.so", "-Wl,-rpath,{folder}"),
        after=("libladder_plt.so",),
    ),
    "ladder_drap": Recipe("ladder_drap.c", (*NO_FRAME_POINTER, "-mavx")),
    "libone.so": Recipe("ladder_dlopen_lib.c", (*NO_FRAME_POINTER, *SHARED, "-DPREFIX=one", "-DSHIFT=0")),
    "libother.so": Recipe("ladder_dlopen_lib.c", (*NO_FRAME_POINTER, *SHARED, "-DPREFIX=other", "-DSHIFT=5")),
    "ladder_dlopen": Recipe("ladder_dlopen.c", after=("libone.so", "libother.so")),
    "ladder_libc": Recipe("ladder_libc.c"),
    "ladder_musl": Recipe("ladder_libc.c", (*NO_FRAME_POINTER, *NO_TABLES, "-static", "-s"), compiler="musl-gcc"),
    "ladder_fork": Recipe("ladder_fork.c"),
    "ladder_rs": Recipe("ladder.rs", ("-O", "-C", "panic=unwind"), compiler="rustc"),
}


@cache
def folder() -> Path:
    """Return the folder of this run's builds, which is removed at its end."""
    path = Path(tempfile.mkdtemp(prefix="pyprof-ladders-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def ladder(name: str) -> Path:
    """Return the ladder program with this name in RECIPES. "NAME.stripped" is the same program without symbols."""
    output = folder() / name
    if name.endswith(".stripped"):
        whole = ladder(name.removesuffix(".stripped"))
        shutil.copy(whole, output)
        _strip(output)
        return output
    recipe = RECIPES[name]
    for other in recipe.after:
        ladder(other)
    extra = [text.format(folder=folder()) for text in recipe.with_]
    return build(PROGRAMS / recipe.source, output, *recipe.flags, *extra, compiler=recipe.compiler)


def _strip(path: Path) -> None:
    subprocess.run([need("strip"), str(path)], check=True, timeout=60)


def rungs(prefix: str, top: int = 30) -> list[str]:
    """Return the function names of a ladder up to a rung, from root to leaf."""
    return [f"{prefix}_{n:02}" for n in range(1, top + 1)]
