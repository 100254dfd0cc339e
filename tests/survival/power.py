"""A campaign of power cuts: it kills a virtual machine during a recording at a random moment and reads its disk.

    python -m tests.survival --kills 0 --recordings 0 --power-cuts 20 --kernel FOLDER

The guest has this machine's files, mounted read-only, a Debian kernel and a separate ext4 disk. Its processor is
emulated. FOLDER contains the unpacked kernel package: `dpkg -x linux-image-….deb FOLDER`. The disk contains what the
guest had synced, because qemu does not sync by itself. Data that was only written is lost.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from pyprof.errors import RecordingError
from pyprof.recording.reader import load_recording
from tests.support import need
from tests.survival.recordings import Left, lacks, program

MODULES = ("virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "crc32c_generic", "ext4")
DISK_MB = 64
BOOT_S = 100.0
WAIT_S = 25.0, 45.0
"""Time after the file has appeared, minimum and maximum in seconds, for an emulated guest that is many times slower."""
RUN = """\
{python} -c '
import os, time
def size(name):
    return os.stat(name).st_size if os.path.exists(name) else 0
while True:
    print("now", time.time(), size("/mnt/a.pyprof"), size("/mnt/a.pyprof-wal"), flush=True)
    time.sleep(0.05)' &
exec {python} -m pyprof record -q -r 499 --collector ptrace -o /mnt/a.pyprof -- /mnt/spin
"""


def cut_power(folder: Path, kernel: Path, times: int, rng: random.Random) -> list[Left]:
    """Cut the power several times and return what each cut left.

    Args:
        folder: Folder for disks and outputs.
        kernel: Folder of the unpacked kernel package.
        times: Number of cuts.
        rng: Random number generator.
    """
    guest = folder / "guest"
    guest.mkdir()
    program(folder).rename(guest / "spin")
    (guest / "run").write_text(RUN.format(python=shlex.quote(sys.executable)))
    start = folder / "initrd"
    start.write_bytes(_initrd(folder, kernel))
    return [_cut(folder, guest, kernel, rng.uniform(*WAIT_S)) for _ in range(times)]


def _cut(folder: Path, guest: Path, kernel: Path, wait_s: float) -> Left:
    disk = folder / "disk"
    disk.unlink(missing_ok=True)
    _run("mkfs.ext4", "-q", "-F", "-d", str(guest), str(disk), f"{DISK_MB}M")
    (image,) = kernel.glob("boot/vmlinuz-*")
    command = [need("qemu-system-x86_64"), "-accel", "tcg", "-cpu", "max", "-m", "1G", "-smp", "1", "-nographic"]
    command += ["-no-reboot", "-net", "none", "-kernel", str(image), "-initrd", str(folder / "initrd")]
    command += ["-append", "console=ttyS0 quiet panic=-1"]
    command += ["-drive", f"file={disk},format=raw,if=virtio,cache=writeback"]
    command += ["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]
    command += shlex.split(os.environ.get("QEMU_FLAGS", ""))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said: list[bytes] = []
    reader = threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + BOOT_S
        while not any(there for _, there, _ in _said(said)):
            if time.monotonic() > deadline or process.poll() is not None:
                return Left(0.0, 0, f"the guest does not start: {b''.join(said)[-1500:]!r}")
            time.sleep(0.05)
        time.sleep(wait_s)
    finally:
        process.kill()
        process.wait()
    reader.join()
    return _left(folder, disk, _said(said))


def _said(lines: Iterable[bytes]) -> list[tuple[float, int, int]]:
    """Return (time of the guest's clock, size of the file, size of the log) of each report."""
    found = [line.split() for line in lines if re.fullmatch(rb"now \d+\.\d+ \d+ \d+\s*", line)]
    return [(float(at), int(file), int(log)) for _, at, file, log in found]


def _left(folder: Path, disk: Path, said: list[tuple[float, int, int]]) -> Left:
    """Return what a cut left.

    ext4's journal is replayed first, as at a boot. The transaction of the log's last size may be incomplete; everything
    before must be on the disk.

    Args:
        folder: Folder for the recording.
        disk: The disk's image.
        said: The guest's reports up to the cut.
    """
    at = said[-1][0]
    subprocess.run([need("e2fsck"), "-fy", str(disk)], capture_output=True, check=False)
    for name in ("a.pyprof", "a.pyprof-wal"):
        (folder / name).unlink(missing_ok=True)
        _run("debugfs", "-R", f"dump /{name} {folder / name}", str(disk))
    try:
        profile = load_recording(folder / "a.pyprof")
    except (RecordingError, OSError) as error:
        return Left(0.0, 0, f"not read: {error}")
    grown = sorted({log for _, _, log in said})
    synced, there = (grown[-2] if len(grown) > 1 else 0), (folder / "a.pyprof-wal").stat().st_size
    since = next(when for when, _, log in said if log == grown[-1])
    print(f"log: {there} bytes on the disk, {grown[-1]} seen, {synced} before {at - since:.2f} s ago", flush=True)
    if there < synced:
        return Left(0.0, 0, f"the log has {there} bytes, and had {synced}")
    samples = len(profile.stack)
    if not samples:
        return Left(at - profile.start_ns / 1e9, 0, "")
    old = at - profile.time_ns.min() / 1e9 > 2
    return Left(float(at - profile.time_ns.max() / 1e9), samples, lacks(profile) if old else "")


def _initrd(folder: Path, kernel: Path) -> bytes:
    """Return a cpio archive with the kernel modules in loading order and the first process."""
    _run("gcc", "-O1", "-static", str(Path(__file__).with_name("power_init.c")), "-o", str(folder / "init"))
    files = {path.stem: path for path in kernel.glob("lib/modules/*/kernel/**/*.ko")}
    order: list[str] = []

    def want(name: str) -> None:
        known = name if name in files else name.replace("_", "-")
        if known not in files or known in order:
            return  # built into the kernel, or already listed
        found = re.search(rb"\0depends=([^\0]*)\0", b"\0" + files[known].read_bytes())
        for other in (found[1].decode() if found else "").split(","):
            if other:
                want(other)
        order.append(known)

    for name in MODULES:
        want(name)
    out = [_entry("init", 0o100755, (folder / "init").read_bytes()), _entry("dev", 0o040755, b"")]
    out += [_entry("dev/console", 0o020600, b"", (5, 1))]
    out += [_entry(f"{at:03}.ko", 0o100644, files[name].read_bytes()) for at, name in enumerate(order)]
    return b"".join([*out, _entry("TRAILER!!!", 0, b"")])


def _entry(name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> bytes:
    """Return an entry in cpio's "newc" format."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


def _run(tool: str, *words: str) -> None:
    subprocess.run([need(tool), *words], check=True, capture_output=True)
