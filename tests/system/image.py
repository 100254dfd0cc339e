"""The root file system of the guest: Debian packages, wheels and programs in one archive for the kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
from compileall import compile_dir
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import BinaryIO

from pyprof.lazy_dataclasses import dataclass
from tests.support import PROGRAMS, need
from tests.system.programs import PROGRAMS_OF_GUEST
from tooling.release.debian_mirror import find_mirror

SUITE = "bookworm"
PACKAGES = ("base-files", "libc-bin", "dash", "coreutils", "mount", "python3", "elfutils", "procps", "libc6")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
WHEELS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")


@dataclass(frozen=True, slots=True)
class Machine:
    """A guest machine.

    Attributes:
        name: Name according to uname.
        debian: Name of the architecture in Debian.
        qemu: Command and options of qemu.
        console: Device of the console.
    """

    name: str
    debian: str
    qemu: tuple[str, ...]
    console: str


def make_image(project: Path, build: Path, machine: Machine, suite: str, only: str) -> tuple[Path, Path]:
    """Return the suite's kernel and the archive. Earlier downloads and unpacked files are reused."""
    kernel = build / f"vmlinuz-{suite}"
    base = build / "base"
    if not (build / "unpacked").exists():
        shutil.rmtree(base, ignore_errors=True)
        _unpack(Apt(build / "apt", machine.debian, SUITE).download(*PACKAGES), base)
        _precompile(base / "usr/lib/python3.11")
        (build / "unpacked").touch()
    if not kernel.exists():
        shutil.rmtree(build / "kernel", ignore_errors=True)
        _unpack([Apt(build / f"apt-{suite}", machine.debian, suite).kernel()], build / "kernel")
        (image,) = (build / "kernel").rglob("vmlinuz*")
        shutil.copy(image, kernel)
        shutil.rmtree(build / "kernel")
    own = build / "own"
    shutil.rmtree(own, ignore_errors=True)
    _install(project, own / "opt" / "pyprof", build, machine.name)
    shutil.copy(Path(__file__).with_name("guest.py"), own / "opt" / "guest.py")
    (own / "opt" / "only").write_text(only)
    _compile(own / "opt" / "programs", machine.name)
    archive = build / "initrd"
    with archive.open("wb") as out:  # the kernel accepts concatenated archives
        for folder in (base, own):
            _archive(folder, out)
    return kernel, archive


class Apt:
    """apt-get for another architecture or suite, with separate folders."""

    def __init__(self, folder: Path, architecture: str, suite: str) -> None:
        self.folder = folder
        self._kernel = f"linux-image-{architecture}"
        self.debs = folder / "cache" / "archives"
        for name in ("lists/partial", "cache/archives/partial", "etc"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        (folder / "etc" / "sources.list").write_text(f"deb [signed-by={KEYRING}] {find_mirror()} {suite} main\n")
        settings = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "Dir::State": folder,
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "Dir::Etc::sourcelist": folder / "etc" / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Install-Recommends": "false",
            "Debug::NoLocking": "true",
            "APT::Sandbox::User": "root",
        }
        self._options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        self._run("update")

    def _run(self, *words: str) -> str:
        return _run(["apt-get", "-q", *self._options, *words], cwd=self.folder)

    def download(self, *packages: str) -> list[Path]:
        """Download packages with all dependencies and return their files."""
        self._run("-y", "--download-only", "install", *packages)
        return sorted(self.debs.glob("*.deb"))

    def kernel(self) -> Path:
        """Download the package of the suite's kernel without its dependencies."""
        (name,) = self._needed(self._kernel, "linux-image-")
        (name,) = self._needed(name, "linux-binary-") or (name,)  # in sid the kernel is in a separate package
        self._run("download", name)
        (deb,) = self.folder.glob("linux-[ib]*.deb")
        return deb

    def _needed(self, package: str, prefix: str) -> set[str]:
        depends = _run(["apt-cache", *self._options, "depends", "--important", package])
        return {line.split()[-1] for line in depends.splitlines() if f"Depends: {prefix}" in line}


def _unpack(debs: list[Path], into: Path) -> None:
    """Unpack packages in the merged /usr layout without configuring them."""
    for name in ("bin", "sbin", "lib"):
        (into / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (into / name).exists():
            (into / name).symlink_to(f"usr/{name}")
    for deb in debs:
        tar = subprocess.run([need("dpkg"), "--fsys-tarfile", str(deb)], capture_output=True, check=True).stdout
        command = [need("tar"), "-C", str(into), "-x", "--keep-directory-symlink"]
        subprocess.run(command, input=tar, check=True)
    for waste in ("usr/share/doc", "usr/share/locale", "usr/share/man", "usr/share/perl"):
        shutil.rmtree(into / waste, ignore_errors=True)


def _install(project: Path, into: Path, build: Path, machine: str) -> None:
    """Install pyprof and its dependencies as wheels for the guest."""
    pip = [str(project / ".venv" / "bin" / "python"), "-m", "pip"]
    wheels = build / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    _run(["env", f"PYPROF_MACHINE={machine}", *pip, "wheel", "-q", "--no-deps", "-w", str(wheels), str(project)])
    (wheel,) = wheels.glob("*.whl")
    platforms = [word for platform in WHEELS for word in ("--platform", f"{platform}_{machine}")]
    _run([*pip, "install", "-q", "--target", str(into), *platforms, "--python-version", "3.11",
          "--only-binary=:all:", str(wheel)])  # fmt: skip
    _precompile(into)


def _precompile(folder: Path) -> None:
    """Compile Python files with unchecked hashes, because the archive's files have no times."""
    compile_dir(folder, quiet=2, force=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)


def _compile(into: Path, machine: str) -> None:
    into.mkdir(parents=True)
    for name, (compiler, source, *flags) in PROGRAMS_OF_GUEST[machine].items():
        _run([need(compiler), str(PROGRAMS / source), "-o", str(into / name), "-pthread", *flags])


def _archive(folder: Path, out: BinaryIO) -> None:
    """Write an archive in cpio's "newc" format (initramfs-buffer-format.rst), with folders before their contents."""

    def entry(name: str, mode: int, data: bytes) -> None:
        path = name.encode() + b"\0"
        fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
        out.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))

    for path in sorted(folder.rglob("*")):
        name, status = str(path.relative_to(folder)), path.lstat()
        if path.is_symlink():
            entry(name, status.st_mode, os.readlink(path).encode())
        else:
            entry(name, status.st_mode, b"" if path.is_dir() else path.read_bytes())
    entry("TRAILER!!!", 0, b"")


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout
