"""Fixtures of real toolchains (build_fixtures.sh), and the listings that their objdump prints."""

from __future__ import annotations

import gzip
from pathlib import Path

from pyprof.model.arch import Arch, find_arch
from pyprof.objfile.elf_file import ElfFile

FOLDER = Path(__file__).parent / "fixtures"
NAMES = sorted(path.name.removesuffix(".gz") for path in FOLDER.glob("*.gz"))


def load(name: str, folder: Path = FOLDER) -> tuple[ElfFile, Arch]:
    """Return the fixture with this file name without .gz, and its architecture."""
    elf = ElfFile.from_bytes(gzip.decompress((folder / f"{name}.gz").read_bytes()), name)
    arch = find_arch(elf.machine, elf.elf_class, elf.byteorder)
    assert arch is not None
    return elf, arch


def listing(name: str, folder: Path = FOLDER) -> str:
    return (folder / name).with_suffix(".txt").read_text()
