"""Tests that start-up frames of real programs are folded: the first visible frames are their own code."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.exporters.flamegraph_tree import FlameTree, build_flame_tree
from pyprof.model.profile import FrameKind, Profile
from tests.exporters.conftest import OpenPage
from tests.exporters.support import PLAIN
from tests.session.support import recorded
from tests.support import PROGRAMS, missing, need
from tests.support import build as compiled

pytestmark = [pytest.mark.live, pytest.mark.system]


def first_seen(profile: Profile) -> tuple[FlameTree, set[str], set[str]]:
    """Return the tree, the names of the outermost frames that are not start-up frames, and those of the start-up
    frames.
    """
    tree = build_flame_tree(profile, PLAIN)
    name = [tree.frames[frame][0] for frame in tree.frame]
    kind = [tree.frames[frame][3] for frame in tree.frame]
    own = [at for at in range(1, len(name)) if at not in tree.start and kind[at] != FrameKind.MARKER]
    outermost = [at for at in own if tree.parent[at] in tree.start | {0}]
    return tree, {name[at] for at in outermost}, {name[at] for at in tree.start}


@contextlib.contextmanager
def running(*command: str | Path) -> Iterator[int]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


@pytest.fixture(scope="module")
def rust(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    program = tmp_path_factory.mktemp("rust") / "pool"
    compiled(PROGRAMS / "pool.rs", program, "-O", "--crate-name=pool", compiler="rustc")
    with running(program) as pid:
        return recorded("auto", [pid])


def test_first_of_a_rust_program_that_is_seen_is_its_own_code(rust: Profile) -> None:
    _, seen, folded = first_seen(rust)
    assert {"_start", "main", "std::rt::lang_start_internal"} <= folded
    assert any("thread_start" in name for name in folded)
    assert {name.split("::")[0] for name in seen} == {"pool"}


def test_labels_of_a_rust_program_tell_a_function(rust: Profile, open_page: OpenPage) -> None:
    page = open_page(rust)
    names = page.browser.run("model.frames.map(f => f.name).filter(n => n.includes('::'))")
    assert len(names) > 20
    assert any(name.startswith("<") for name in names)
    assert not [name for name in names if re.search(r"::h[0-9a-f]{16}$|\$(LT|GT|u20)\$", name)]
    fit = "model.frames.filter(f => f.name.includes('::')).flatMap(f => [8, 14, 20, 30].map(n => fitName(f.name, n)))"
    labels = page.browser.run(fit)
    assert not [text for text in labels if re.match(r"[^<]*>|.*::$|.*<$", text)]


THREADS = """
import threading, time
def busy():
    while time.time() < end: sum(range(500))
class Own(threading.Thread):
    def run(self): busy()
end = time.time() + 120
print("ready", flush=True)
threading.Thread(target=busy, daemon=True).start()
Own(daemon=True).start()
busy()
"""


def test_first_of_a_python_program_that_is_seen_is_its_own_code(tmp_path: Path) -> None:
    script = tmp_path / "threads.py"
    script.write_text(THREADS)
    with running(sys.executable, script) as pid:
        profile = recorded("ptrace", [pid])
    _, seen, folded = first_seen(profile)
    assert {"_start", "Thread._bootstrap_inner", "Thread.run"} <= folded
    assert seen == {"<module>", "busy", "Own.run"}


def test_first_of_a_stripped_program_that_is_seen_is_its_main(tmp_path: Path) -> None:
    xz = shutil.which("xz")
    if xz is None:
        need("xz")
    assert xz
    if "no symbols" not in subprocess.run([need("nm"), xz], capture_output=True, text=True, check=False).stderr:
        missing("needs an xz without symbols")
    with subprocess.Popen([xz, "-9", "-c", "/dev/zero"], stdout=subprocess.DEVNULL) as process:
        try:
            profile = recorded("auto", [process.pid])
        finally:
            process.kill()
    tree, seen, folded = first_seen(profile)
    assert folded
    assert all(re.fullmatch(r"xz!0x[0-9a-f]+", name) for name in seen - {"main"})
    nameless = [name for name, group, _, _ in tree.frames if group.startswith("liblzma") and re.search(r"[!+]0x", name)]
    assert len(nameless) > 1
    assert not [name for name in nameless if "+0x" in name], "each is a function"
