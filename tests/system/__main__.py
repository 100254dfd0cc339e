"""pyprof in an AArch64 Debian of its own: `make test-system`.

qemu-system-aarch64 boots Debian's kernel on a root file system that lies in memory, made of Debian's packages, of
pyprof with its dependencies as AArch64 wheels, and of cross-compiled programs. Inside, guest.py runs pyprof natively on
processes of that system and prints one line a check. What it printed is kept in build/system/console.log.

Takes some minutes (a processor is emulated instruction by instruction), downloads 120 MB the first time, and needs
root's apt-get only for its packages. Not part of `make test`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tests.support import need
from tests.system.image import make_image

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "system"
CPU = "max,pauth-impdef=on"  # signed return addresses, by a signature that is quick to emulate
MEMORY = "3G"


def boot(kernel: Path, initrd: Path, console: Path, limit_s: float, cpu: str) -> None:
    """Run the guest until it powers off; its console goes to the file and to standard output."""
    command = [need("qemu-system-aarch64"), "-M", "virt", "-cpu", cpu, "-smp", "2", "-m", MEMORY, "-nographic"]
    command += ["-no-reboot", "-net", "none", "-kernel", str(kernel), "-initrd", str(initrd)]
    command += ["-append", "console=ttyAMA0 quiet panic=-1 rdinit=/usr/bin/python3 -- -u /opt/guest.py"]
    deadline = time.monotonic() + limit_s
    with (
        console.open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as guest,
    ):
        assert guest.stdout is not None
        try:
            for line in guest.stdout:
                log.write(line)
                log.flush()
                sys.stdout.write(line.decode("utf-8", "replace"))
                sys.stdout.flush()
                if time.monotonic() > deadline:
                    break
        finally:
            guest.kill()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system", description=__doc__)
    parser.add_argument("--limit", type=float, default=1800, metavar="SECONDS", help="stop the guest after so long")
    parser.add_argument("--cpu", default=CPU, help=f"what qemu emulates ({CPU})")
    parser.add_argument("--only", default="", metavar="WORD,…", help="only checks with one of these words")
    arguments = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    kernel, initrd = make_image(ROOT, BUILD, arguments.only)
    console = BUILD / "console.log"
    boot(kernel, initrd, console, arguments.limit, arguments.cpu)
    lines = console.read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith("FAILED ")]
    passed = [line for line in lines if line.startswith("passed ")]
    whole = any(line.startswith("all checks done") for line in lines)
    print(f"{len(passed)} passed, {len(failed)} failed" + ("" if whole else ", the guest did not reach its end"))
    return 0 if whole and passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
