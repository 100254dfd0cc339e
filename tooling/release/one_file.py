"""Build one executable file for x86-64 that contains pyprof and Python, for each Linux with glibc 2.28 or later.

The interpreter is linked from the static libraries of Debian's CPython and of the libraries that it needs, and from
extension modules in Debian's source package of CPython. apt checks the signatures of the packages. The linker sees only
the functions of glibc 2.28. launch.c unpacks interpreter, standard library and packages, and starts pyprof.

    python tooling/release/one_file.py WHEEL OUT

The script needs the extra `native` (the compiler) and apt-get.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_D_TAG
from elftools.elf.gnuversions import GNUVerNeedSection
from packageurl import PackageURL

from tooling.release.debian_mirror import find_mirror
from tooling.release.debian_package import bill_of_materials, install_packages

HERE = Path(__file__).parent / "one_file_c"
SUITE, PYTHON = "trixie", "3.13"
GLIBC = [2, 28]
"""The glibc version that the file requires: the oldest for which NumPy has wheels."""
TRIPLE = "x86_64-linux-gnu"
HEADERS, LIBRARIES = "debian/usr/include", f"debian/usr/lib/{TRIPLE}"
ARCHIVES = ("ssl", "crypto", "sqlite3", "ffi", "lzma", "expat", "zstd", "z")
"""Names of the static libraries with which the interpreter is linked, in the linker's order."""
DEVELOPMENT = [
    f"libpython{PYTHON}-dev",
    *("libssl-dev", "libsqlite3-dev", "libffi-dev", "liblzma-dev", "libexpat1-dev", "libzstd-dev", "zlib1g-dev"),
]
"""Debian's packages that contain the static libraries and the headers."""
OLD_SUITE = "bullseye"
"""Debian suite whose compiler libraries (libstdc++, libgcc) run on the required glibc."""
SHARED = {"libstdc++6": "libstdc++.so.6", "libgcc-s1": "libgcc_s.so.1", "zlib1g": "libz.so.1"}
"""Packages of OLD_SUITE, with the shared library that is taken from each. Wheels may need these libraries, and a
minimal system lacks them.
"""
LICENCES = ("libffi8", f"gcc-10-base/{OLD_SUITE}")
"""Debian's packages that contain licences of other packages."""
MODULES = (
    *("_asynciomodule.c", "_contextvarsmodule.c", "_hashopenssl.c", "_lzmamodule.c", "_queuemodule.c", "_ssl.c"),
    *(f"_ctypes/{name}.c" for name in ("_ctypes", "callbacks", "callproc", "stgdict", "cfield")),
    *("_multiprocessing/multiprocessing.c", "_multiprocessing/semaphore.c", "_sqlite/*.c", "_hacl/Hacl_Hash_SHA2.c"),
    *("mmapmodule.c", "resource.c", "termios.c"),
)
"""Source files of the extension modules that Debian's static Python library lacks."""
FLAGS = (
    *("-O2", "-g0", "-w", "-DNDEBUG", "-fwrapv", "-fno-strict-aliasing", "-fno-sanitize=all"),
    *("-DPy_BUILD_CORE", "-DPy_BUILD_CORE_BUILTIN", '-DMODULE_NAME="sqlite3"'),
    *(f"-I{HEADERS}{folder}" for folder in ("", f"/{TRIPLE}", f"/python{PYTHON}", f"/python{PYTHON}/internal")),
    *("-Isource/Modules", "-Isource/Modules/_hacl/include"),
)
UNUSED = ("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "pydoc_data", "venv", "_pyrepl", "curses")
"""Parts of the standard library that pyprof never imports, and that the file leaves out."""
AUTHORITIES = ("/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
"""Files with certificates of authorities in Fedora and SUSE. Debian's OpenSSL looks for certificates in Debian's folder
only.
"""
EDITS = {
    "subprocess.py": ("hasattr(os, 'POSIX_SPAWN_CLOSEFROM')", "False"),  # glibc 2.34
    "ssl.py": (
        "        self.set_default_verify_paths()\n",
        "        self.set_default_verify_paths()\n"
        f"        for file in filter(os.path.exists, {AUTHORITIES}):\n"
        "            self.load_verify_locations(file)\n",
    ),
}
"""Changes to files of the standard library: the text that is replaced in each file, and the new text."""
EXTRAS = ("zstandard",)
"""Packages beyond those that pyprof requires. zstandard is needed for sections of ELF files that are compressed with
zstd.
"""
MAIN = "from pyprof_start import main\n\nmain()\n"
COMPRESS = """
import sys, zstandard
with open(sys.argv[1], "rb") as plain, open(sys.argv[2], "wb") as packed:
    zstandard.ZstdCompressor(int(sys.argv[3])).copy_stream(plain, packed)
"""
LEVEL = 19
"""Compression level of zstd for the payload of the one-file executable."""


def fetch(folder: Path) -> dict[str, str]:
    """Download Debian's packages and unpack them into the folders `debian` and `source`. Return the versions of the
    packages.
    """
    apt = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "status").touch()
    site = f"[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {find_mirror()}"
    lines = [f"deb {site} {SUITE} main", f"deb-src {site} {SUITE} main", f"deb {site} {OLD_SUITE} main"]
    (apt / "sources").write_text("\n".join(lines) + "\n")
    settings = {
        "Dir::State": apt,
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Acquire::Languages": "none",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    packages = [*DEVELOPMENT, *(f"{name}/{OLD_SUITE}" for name in SHARED), *LICENCES]
    subprocess.run([*command, "update"], check=True)
    subprocess.run([*command, "download", *packages], check=True, cwd=apt)
    subprocess.run([*command, "source", f"python{PYTHON}"], check=True, cwd=apt, stdout=subprocess.DEVNULL)
    (source,) = apt.glob(f"python{PYTHON}-*/")
    source.rename(folder / "source")
    versions = {}
    for package in apt.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(folder / "debian")], check=True)
        name, version = subprocess.check_output(["dpkg-deb", "--show", str(package)], text=True).split()
        versions[name] = version
    return versions


def compiler() -> list[str]:
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"x86_64-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"]


def link_interpreter(folder: Path) -> None:
    """Compile the extension modules and link the interpreter into the file `python`."""
    config = folder / HEADERS / TRIPLE / f"python{PYTHON}/pyconfig.h"
    config.write_text(config.read_text().replace("#define HAVE_BLUETOOTH_BLUETOOTH_H 1", ""))  # needs its headers
    modules = folder / "source/Modules"
    sources = sorted(str(path.relative_to(folder)) for name in MODULES for path in modules.glob(name))
    shutil.copy(HERE / "python.c", folder)
    archives = [f"{LIBRARIES}/lib{name}.a" for name in (f"python{PYTHON}", *ARCHIVES)]
    command = [*compiler(), *FLAGS, "python.c", *sources, *archives]
    command += ["-lm", "-ldl", "-lutil", "-lpthread", "-rdynamic", "-s", "-Wl,-rpath,$ORIGIN/lib", "-o", "python"]
    subprocess.run(command, check=True, cwd=folder)
    program = folder / "python"
    program.write_bytes(with_inherited_path(program.read_bytes()))


def with_inherited_path(program: bytes) -> bytes:
    """Return an ELF file with DT_RUNPATH replaced by DT_RPATH, which also applies to the libraries of extension
    modules.
    """
    changed = bytearray(program)
    dynamic = ELFFile(io.BytesIO(program)).get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    for number, tag in enumerate(dynamic.iter_tags()):
        if tag.entry.d_tag == "DT_RUNPATH":
            changed[dynamic["sh_offset"] + number * dynamic["sh_entsize"]] = ENUM_D_TAG["DT_RPATH"]
    return bytes(changed)


def check_glibc(tree: Path) -> None:
    """Check that no ELF file in a folder tree needs a symbol of a glibc later than GLIBC.

    Raises:
        ValueError: A file needs such a symbol.
    """
    for path in (path for path in tree.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
            needed = ELFFile(file).get_section_by_name(".gnu.version_r")
            for _, versions in needed.iter_versions() if isinstance(needed, GNUVerNeedSection) else ():
                for name in (version.name for version in versions):
                    library, _, number = name.partition("_")
                    if library == "GLIBC" and [*map(int, number.split("."))] > GLIBC:
                        raise ValueError(f"{path.relative_to(tree)} needs {name}")


def make_tree(folder: Path, wheel: Path) -> Path:
    """Make the folder tree that the one file carries: interpreter, main program, standard library, packages and their
    licences.
    """
    tree = folder / "tree"
    library = tree / f"lib/python{PYTHON}"
    shutil.copytree(folder / "source/Lib", library, ignore=shutil.ignore_patterns(*UNUSED))
    (library / "lib-dynload").mkdir()  # Python warns without it
    for name, (old, new) in EDITS.items():
        text = (library / name).read_text()
        assert text.count(old) == 1, name
        (library / name).write_text(text.replace(old, new))
    install_packages([str(wheel), *EXTRAS], PYTHON, "x86_64", library)
    for path in [*library.rglob("tests"), *library.rglob("direct_url.json"), *library.rglob("_cffi.*.so")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in SHARED.values():
        (library_file,) = (folder / "debian").rglob(name)
        shutil.copy(library_file, tree / "lib")
    shutil.copy(folder / "python", tree / "pyprof")
    (tree / "main.py").write_text(MAIN)
    (tree / "licences").mkdir()
    shutil.copy(folder / "source/debian/copyright", tree / f"licences/python{PYTHON}")
    for document in (folder / "debian/usr/share/doc").glob("*/copyright"):
        shutil.copy(document, tree / "licences" / document.parent.name)
    shutil.copytree(Path(__file__).parents[2] / "LICENSES", tree / "licences/pyprof")
    compilation = ["-m", "compileall", "-qf", "--invalidation-mode", "unchecked-hash", "-s", str(tree), str(library)]
    subprocess.run([str(tree / "pyprof"), "-B", "-I", "-S", *compilation], check=True)
    return tree


def pack(tree: Path, archive: Path, level: int) -> None:
    """Pack a folder tree into an archive. The same files give the same bytes."""

    def files() -> Iterator[tuple[Path, tarfile.TarInfo]]:
        for path in sorted(tree.rglob("*")):
            entry = tarfile.TarInfo(str(path.relative_to(tree)))
            entry.type = tarfile.DIRTYPE if path.is_dir() else tarfile.REGTYPE
            entry.mode = 0o700 if path.is_dir() or os.access(path, os.X_OK) else 0o600
            entry.size = 0 if path.is_dir() else path.stat().st_size
            yield path, entry

    plain = archive.with_suffix("")
    with tarfile.open(plain, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path, entry in files():
            with open(os.devnull if entry.isdir() else path, "rb") as file:
                tar.addfile(entry, file)
    subprocess.run([str(tree / "pyprof"), "-I", "-S", "-c", COMPRESS, str(plain), str(archive), str(level)], check=True)


def build(wheel: Path, out: Path, level: int = LEVEL) -> Path:
    """Build the one executable file and return its path. Its bill of materials is written next to it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        versions = fetch(folder)
        link_interpreter(folder)
        tree = make_tree(folder, wheel)
        check_glibc(tree)
        pack(tree, folder / "payload.tar.zst", level)
        digest = hashlib.sha256((folder / "payload.tar.zst").read_bytes()).hexdigest()[:16]
        shutil.copy(HERE / "launch.c", folder)
        made = out / "pyprof-x86_64"
        flags = ["-O2", "-g0", "-s", f'-DHASH="{digest}"', f"-I{HEADERS}", "launch.c", f"{LIBRARIES}/libzstd.a"]
        subprocess.run([*compiler(), *flags, "-o", str(made.resolve())], check=True, cwd=folder)
        debian = [PackageURL("deb", "debian", name, version) for name, version in sorted(versions.items())]
        materials = bill_of_materials(tree / f"lib/python{PYTHON}", debian)
        (out / "pyprof-x86_64.cdx.json").write_text(materials)
    return made


def main(wheel: str, out: str) -> None:
    Path(out).mkdir(parents=True, exist_ok=True)
    print(build(Path(wheel).resolve(), Path(out)))


if __name__ == "__main__":
    main(*sys.argv[1:])
