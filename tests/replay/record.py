"""The command that records the saved recordings: a log of a real program and the files that its stacks need.

`python -m tests.replay record NAME...` needs root, x86-64, gcc, gdb, qemu-system-arm and Debian's python3.
"""

from __future__ import annotations

import difflib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyprof.collectors.base import Collector
from pyprof.collectors.gdb_stub.collector import GdbRemoteCollector
from pyprof.collectors.postmortem.core_process import CoreFileProcess
from pyprof.collectors.registry import open_collector
from pyprof.collectors.targets.process_selection import select_processes
from pyprof.model.unwind_result import lookup_pc
from pyprof.objfile.elf_file import ElfFile
from pyprof.options import CollectOptions, RemoteOptions, TargetOptions, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.sample_windows import Window
from pyprof.session.session import InputFiles, Session
from tests.remote.programs import BARE
from tests.remote.stubs import qemu_system_arm
from tests.replay.batch_log import LoggedCollector
from tests.replay.expected import as_text
from tests.replay.playing import FILES, LOGS, codes_of, outputs, unpacked
from tests.replay.reduce import reduced
from tests.support import PROGRAMS, build, need

FOLDER = Path("/tmp/pyprof-replay")
"""Folder of the programs, which thus have the same path on every machine."""
OWN = Path(__file__).parent / "programs"
Opened = tuple[Collector, InputFiles]


@contextmanager
def running(*command: str | Path) -> Iterator[int]:
    """Start a program and yield its pid once it is ready."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, env={})
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _native() -> Path:
    return build(OWN / "native.c", FOLDER / "native", "-O2", "-g", "-pthread")


def _files(diagnostics: Diagnostics) -> InputFiles:
    return InputFiles(UnwindOptions(), diagnostics)


@contextmanager
def _process(name: str, options: CollectOptions, *command: str | Path) -> Iterator[Opened]:
    diagnostics = Diagnostics()
    files = _files(diagnostics)
    with running(*command) as pid:
        yield (
            open_collector(name, select_processes(TargetOptions(pids=(pid,))), options, diagnostics, files.runtimes),
            files,
        )


@contextmanager
def native() -> Iterator[Opened]:
    with _process("ptrace", CollectOptions(rate_hz=101), _native()) as opened:
        yield opened


@contextmanager
def python() -> Iterator[Opened]:
    with _process("ptrace", CollectOptions(rate_hz=101), "/usr/bin/python3", OWN / "python.py") as opened:
        yield opened


@contextmanager
def offcpu() -> Iterator[Opened]:
    with _process("perf", CollectOptions(rate_hz=53, idle=True), _native()) as opened:
        yield opened


@contextmanager
def remote() -> Iterator[Opened]:
    source = PROGRAMS / "remote_bare.c"
    flags = ("-O2", "-fomit-frame-pointer", "-funwind-tables", *BARE)
    script = f"-Wl,-T,{PROGRAMS / 'remote_bare.ld'}"
    program = build(source, FOLDER / "board.elf", *flags, script, compiler="arm-linux-gnueabihf-gcc")
    with qemu_system_arm(program) as address:
        diagnostics = Diagnostics()
        options = RemoteOptions(address, exe=str(program))
        yield GdbRemoteCollector(options, CollectOptions(rate_hz=97), diagnostics), _files(diagnostics)


@contextmanager
def core() -> Iterator[Opened]:
    program = _native()
    with running(program) as pid:
        subprocess.run([need("gcore"), "-o", FOLDER / "core", str(pid)], check=True, capture_output=True)
    diagnostics = Diagnostics()
    yield CoreFileProcess(str(FOLDER / f"core.{pid}"), "", "", 1 << 16, diagnostics).saved, _files(diagnostics)


@dataclass(frozen=True)
class Scene:
    """A recording to make.

    Attributes:
        opened: Function that starts the program and opens the collector.
        mode: Mode of the recording.
        rate_hz: Sampling rate in Hz.
        samples: Number of samples to record.
    """

    opened: Callable[[], AbstractContextManager[Opened]]
    mode: str
    rate_hz: float
    samples: int


SCENES = {
    "native": Scene(native, "cpu", 101.0, 120),
    "python": Scene(python, "cpu", 101.0, 120),
    "offcpu": Scene(offcpu, "wall", 53.0, 150),
    "remote": Scene(remote, "cpu", 97.0, 60),
    "core": Scene(core, "cpu", 1.0, 1 << 20),
}


def record(name: str) -> Path:
    """Record one scene and return its log. Check that the reduced files give the same outputs as the complete ones."""
    scene = SCENES[name]
    FOLDER.mkdir(exist_ok=True)
    log = LOGS / f"{name}.zip"
    with scene.opened() as (collector, files):
        logged = LoggedCollector(collector, str(log))
        session = Session(logged, UnwindOptions(), Diagnostics(), files)

        def enough() -> None:
            if session.recorder.samples >= scene.samples:
                logged.stop()

        window = session.run(logged, enough)
        assert session.failure is None, session.failure
        logged.extra = {"mode": scene.mode, "rate_hz": scene.rate_hz, "codes": codes_of(session)}
        session.profile(window, name, scene.rate_hz, scene.mode)
        needed = _needed(session, window)
        stored = logged.finish()
    whole = FOLDER / "whole"
    for path, svmas in needed.items():
        data = Path(path).read_bytes()
        place = whole / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        stored.writestr(FILES + path.lstrip("/"), reduced(data, ElfFile.from_bytes(data, path), svmas))
    stored.close()
    expected = as_text(outputs(log, whole))
    shutil.rmtree(whole)
    with unpacked(log) as folder:
        found = as_text(outputs(log, folder))
    assert found == expected, "the reduced files lack something:\n" + "\n".join(
        difflib.unified_diff(expected.splitlines(), found.splitlines(), "whole", "reduced", lineterm="", n=0)
    )
    return log


def _needed(session: Session, window: Window) -> dict[str, set[int]]:
    """Return the addresses in stacks by path of the object file."""
    found: dict[str, set[int]] = {}
    for key in window.stacks.frames:
        lookup = lookup_pc(key.pc, key.exact)
        space = window.spaces.get(key.space)
        image = session.images.image(space, lookup) if space is not None else None
        if image is not None and image.module.has_file and not image.from_memory:
            found.setdefault(image.module.path, set()).add(image.svma(lookup))
    return found
