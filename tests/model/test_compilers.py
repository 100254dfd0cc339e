"""Tests of finding the file that a compiler's command line compiles, also in deliberately confusing command lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.model.analysis.compiler_command_lines import compiler_files, may_be_compiler, process_name, program_name

CC1 = "/usr/lib/gcc/12/cc1 -quiet -I include -D X=a.c {} -quiet -dumpbase f.c -dumpbase-ext .c -o /tmp/ccA1b2C3.s"


@pytest.mark.parametrize(
    ("comm", "line", "file"),
    [
        ("cc1", CC1.format("src/foo.c"), "src/foo.c"),
        ("cc1plus", "/usr/libexec/gcc/cc1plus -include pch.cc -MD o/a.d lib/a.cc -O2 -o /tmp/ccx.s", "lib/a.cc"),
        ("as", "as -I include --64 -o src/foo.o /tmp/ccA1b2C3.s", "src/foo.o"),
        ("as", "as --64 -o src/foo.o start.S", "start.S"),
        ("as", "as -o /tmp/ccZ.o /tmp/ccY.s", ""),
        ("gcc", "gcc -c -o o/foo.o src/foo.c", "src/foo.c"),
        ("cc", "cc a.c b.c c.c -o prog", "a.c +2"),
        ("c++", "c++ -o prog a.o b.o", "prog"),
        ("collect2", "/usr/lib/gcc/collect2 -o build/prog crt1.o /tmp/ccY.o", "build/prog"),
        ("x86_64-linux-gn", "/usr/bin/x86_64-linux-gnu-gcc-12 -c src/foo.c", "src/foo.c"),
        ("clang", "/usr/lib/llvm-14/bin/clang -cc1 -main-file-name foo.c -o foo.o -x c src/foo.c", "src/foo.c"),
        ("clang-14", "clang-14 -c foo.cpp", "foo.cpp"),
        ("rustc", "rustc --crate-name serde --edition=2018 src/lib.rs --emit=link", "src/lib.rs"),
        ("javac", "javac -d out -cp lib.jar A.java B.java", "A.java +1"),
        ("cc1", "cc1 -quiet -", ""),
        ("cc1", "", ""),
        ("cc1", "python3 tool.py foo.c", ""),
        ("python3", "python3 foo.c", ""),
        ("sh", "/bin/sh -c gcc -c foo.c", ""),
    ],
)
def test_source_file_else_the_output_names_a_compiler(comm: str, line: str, file: str) -> None:
    assert compiler_files(comm, line.split(" ") if line else []).file() == file


def test_assembler_has_the_source_of_its_driver_and_a_linker_its_output() -> None:
    assembler = compiler_files("as", ["as", "-o", "src/a.o", "/tmp/ccY.s"])
    linker = compiler_files("ld", ["ld", "-o", "prog", "/tmp/ccY.o"])
    assert (assembler.file("src/a.c"), linker.file("src/a.c")) == ("src/a.c", "prog")


@pytest.mark.parametrize("comm", ["cc1", "as", "clang-14", "arm-linux-gnueabihf-gcc-12"[:15], "any name of 15 b"[:15]])
def test_compilers_and_names_that_the_kernel_cut_are_looked_at(comm: str) -> None:
    assert may_be_compiler(comm)


@pytest.mark.parametrize("comm", ["", "python3", "-", "1", "make", "cc1x", "sh"])
def test_other_programs_are_not_looked_at(comm: str) -> None:
    assert not may_be_compiler(comm)


@given(st.lists(st.text(max_size=300), max_size=20))
def test_shown_part_of_any_command_line_is_short(arguments: list[str]) -> None:
    assert len(compiler_files("cc1", ["cc1", *arguments]).file()) <= 130


def test_long_path_keeps_its_end() -> None:
    found = compiler_files("cc1", ["cc1", f"{'folder/' * 100}foo.c"]).file()
    assert found.startswith("…")
    assert found.endswith("/folder/foo.c")
    assert len(found) == 120


def test_program_is_what_all_files_of_a_compiler_share() -> None:
    assert program_name(process_name("cc1", "src/a b.c")) == "cc1"
    assert program_name("Web Content") == "Web Content"
    assert process_name("server", "") == "server"
