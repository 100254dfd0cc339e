"""Tests of the build of the one file. `make test-release` runs the file itself in a root without Python."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.support import need
from tooling.release import one_file

pytestmark = pytest.mark.live


def test_tree_with_a_file_for_a_later_glibc_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("gcc")
    (tmp_path / "a.txt").write_text("no ELF file")
    subprocess.run(["gcc", "-x", "c", "-o", tmp_path / "a", "-"], input=b"int main(void) { return 0; }", check=True)
    monkeypatch.setattr(one_file, "GLIBC", [99, 0])
    one_file.check_glibc(tmp_path)
    monkeypatch.setattr(one_file, "GLIBC", [2, 1])
    with pytest.raises(ValueError, match=r"^a needs GLIBC_2\."):
        one_file.check_glibc(tmp_path)


def test_run_path_holds_for_libraries_of_extension_modules(tmp_path: Path) -> None:
    """Link a library in the role of an extension module, which needs another one that only the program's path finds."""
    need("gcc")
    (tmp_path / "own").mkdir()
    (tmp_path / "main.c").write_text(
        '#include <dlfcn.h>\nint main(void) { return !dlopen("./module.so", RTLD_NOW); }\n'
    )
    (tmp_path / "library.c").write_text("int value(void) { return 1; }\n")
    (tmp_path / "module.c").write_text("int value(void);\nint use(void) { return value(); }\n")
    path = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/own"
    for command in (
        ["-shared", "-fPIC", "library.c", "-Wl,-soname,libvalue.so", "-o", "own/libvalue.so"],
        ["-shared", "-fPIC", "module.c", "own/libvalue.so", "-o", "module.so"],
        ["main.c", "-ldl", path, "-o", "main"],
    ):
        subprocess.run(["gcc", *command], check=True, cwd=tmp_path)
    assert subprocess.run(["./main"], check=False, cwd=tmp_path).returncode == 1
    shutil.copy(tmp_path / "main", tmp_path / "changed")
    (tmp_path / "changed").write_bytes(one_file.with_inherited_path((tmp_path / "main").read_bytes()))
    assert subprocess.run(["./changed"], check=False, cwd=tmp_path).returncode == 0
    dynamic = ELFFile(io.BytesIO((tmp_path / "changed").read_bytes())).get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    assert [cast(Any, tag).rpath for tag in dynamic.iter_tags("DT_RPATH")] == ["$ORIGIN/own"]
