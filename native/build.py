"""Compile the native stack walker for each machine with the pinned compiler, and describe the result in a
manifest.

`python native/build.py [FOLDER]` writes the objects and `manifest.json` into a folder, by default into the
package pyprof.unwind. It needs the extra `native` (ziglang). The same sources and compiler give the same
bytes, wherever they stand.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT.parent / "unwind" / "native"
SOURCES = ("walk/walk.c", "flow/flow.c")
MACHINES = ("x86_64", "aarch64")
FLAGS = (
    *("-O2", "-g0", "-std=gnu11", "-ffreestanding", "-fno-stack-protector", "-fno-sanitize=all", "-fvisibility=hidden"),
    *("-fPIC", "-Wall", "-Wextra", "-Werror", "-shared", "-nostdlib", "-Wl,-z,noexecstack", "-Wl,--build-id=none"),
    "-Wl,-s",
)
"""Compiler flags for every machine. The code is freestanding and links no library, so it runs with any libc."""
LIBC = "gnu.2.17"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compile_walk(machine: str, folder: Path) -> Path:
    """Compile the stack walker and the analysis of machine code for one machine to one shared object, and
    return its path.
    """
    made = folder / f"walk.{machine}.so"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-{LIBC}"]
    subprocess.run([*compiler, *FLAGS, *SOURCES, "-o", str(made)], check=True, cwd=ROOT, timeout=300)
    made.chmod(0o755)
    return made


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    objects = [compile_walk(machine, folder) for machine in MACHINES]
    sources = sorted(path for path in ROOT.rglob("*") if path.suffix in (".c", ".h"))
    described = {
        "compiler": f"ziglang {metadata.version('ziglang')}",
        "flags": [*FLAGS, *(f"-target {machine}-linux-{LIBC}" for machine in MACHINES)],
        "sources": {str(path.relative_to(ROOT)): digest(path) for path in sources},
        "objects": {path.name: digest(path) for path in objects},
    }
    (folder / "manifest.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)
