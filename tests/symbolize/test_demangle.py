"""Tests of demangling against c++filt on real symbols, and of hostile names."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.symbolize.demangle import MAX_RESULT, demangle, demangle_isolated, is_harmless
from tests.support import build, need

pytestmark = pytest.mark.system

PROGRAMS = Path(__file__).parent / "programs"


def symbols(path: Path, *flags: str) -> list[str]:
    out = subprocess.run(
        [need("nm"), "--defined-only", *flags, str(path)], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    return sorted({line.split()[-1].partition("@")[0] for line in out.splitlines()})


def filtered(names: list[str], *flags: str) -> list[str]:
    return subprocess.run(
        [need("c++filt"), *flags], input="\n".join(names) + "\n", capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()


def same(text: str) -> str:
    """Remove what demanglers write differently: spaces, standard abbreviations and clone suffixes."""
    text = re.sub(r" \[clone (\.[\w.]+)\]", r" (\1)", text).replace(" ", "")
    for long, short in (
        ("std::basic_string<char,std::char_traits<char>,std::allocator<char>>", "std::string"),
        ("std::basic_ostream<char,std::char_traits<char>>", "std::ostream"),
        ("std::basic_istream<char,std::char_traits<char>>", "std::istream"),
        ("std::basic_iostream<char,std::char_traits<char>>", "std::iostream"),
    ):
        text = text.replace(long, short)
    return text


def test_cxx_names_are_those_of_cxxfilt(tmp_path: Path) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "inlines", "-O1", compiler="g++")
    library = Path(subprocess.check_output(["g++", "-print-file-name=libstdc++.so.6"], text=True, timeout=20).strip())
    names = [*symbols(program), *symbols(library, "-D")]
    names = [name for name in names if name.startswith("_Z") and not name.startswith("_ZGTt")]
    assert len(names) > 1000
    shown = demangle(names)
    expected = dict(zip(names, filtered(names), strict=True))
    different = [name for name in names if same(shown[name]) != same(expected[name])]
    assert len(different) <= len(names) // 200, different[:5]


@pytest.mark.parametrize("mangling", ["legacy", "v0"])
def test_rust_names_are_those_of_cxxfilt_without_their_hashes(mangling: str, tmp_path: Path) -> None:
    program = tmp_path / mangling
    flags = ["-Zunstable-options", "-C", f"symbol-mangling-version={mangling}"]
    done = subprocess.run(
        [need("rustc"), "-O", *flags, "-o", str(program), str(PROGRAMS / "names.rs")],
        env={**os.environ, "RUSTC_BOOTSTRAP": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hashed = re.compile(r"_R[^.]+" if mangling == "v0" else r"_ZN.*17h[0-9a-f]{16}E")
    names = [name for name in symbols(program) if hashed.fullmatch(name)]
    assert len(names) > 10
    shown = demangle(names)
    for name, text in zip(names, filtered(names, "-s", "rust"), strict=True):
        plain = re.sub(r"::h[0-9a-f]{16}\b", "", re.sub(r"\[[0-9a-f]{8,16}\]", "", text))
        plain = re.sub(r"([<, ]\d+): ?[iu](size|\d+)", r"\1", plain)  # drops the type of a constant
        plain = re.sub(r"\.llvm\.[0-9A-F]+|\s*\(\.llvm\.[0-9A-F]+\)", "", plain)
        assert same(shown[name]) == same(plain), name
    mine = [text for text in shown.values() if "Holder" in text]
    assert any("as names::Go>::go" in text or "Go>::go" in text for text in mine), mine


def test_rust_escapes_are_written_as_rust_writes_them() -> None:
    trait = "_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..ops..drop..Drop$GT$"
    name = f"_ZN{len(trait)}{trait}4drop17h0123456789abcdefE"
    assert demangle([name])[name] == "<alloc::vec::Vec<T> as core::ops::drop::Drop>::drop"
    name = "_ZN4core3num23_$LT$impl$u20$usize$GT$13unchecked_add17h0123456789abcdefE"
    assert demangle([name])[name] == "core::num::<impl usize>::unchecked_add"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("main", "main"),
        ("memcpy@@GLIBC_2.14", "memcpy"),
        ("memcpy@GLIBC_2.2.5", "memcpy"),
        ("malloc@plt", "malloc@plt"),
        ("_ZN1a1bEv@plt", "a::b()@plt"),
        ("_ZN3foo3barEv.cold", "foo::bar() (.cold)"),
        ("_ZN3foo3barEv@@V1", "foo::bar()"),
        ("_ZN4shop4sortEi::{lambda}::operator()", "shop::sort(int)::{lambda}::operator()"),
        ("_Znonsense", "_Znonsense"),
        ("_Z", "_Z"),
        ("@", "@"),
        ("", ""),
        ("_Z1f\x00", "_Z1f\x00"),
        ("_Z1f\n", "_Z1f\n"),
        ("Builtins_ArrayPush", "Builtins_ArrayPush"),
    ],
)
def test_odd_names_are_shown_sensibly(name: str, shown: str) -> None:
    assert demangle([name]) == {name: shown}


def sequence(number: int) -> str:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "S_" if number == 0 else f"S{digits[number - 1]}_"


def doubling(times: int) -> str:
    """Return the mangled name of nested std::pair types, in which each level is twice as long as the previous one."""
    levels = "".join(f"S_I{sequence(i + 1)}{sequence(i + 1)}E" for i in range(times))
    return f"_Z1fSt4pairIiiE{levels}"


@pytest.mark.parametrize(
    "bomb",
    [doubling(30), "_Z1f" + "1AI" * 10_000 + "i" + "E" * 10_000, "_Z1f" + "P" * 60_000 + "i", "_Z" + "N" * 100_000],
    ids=["doubling", "nested", "pointers", "long"],
)
def test_hostile_name_stays_raw_and_its_neighbours_do_not(bomb: str) -> None:
    shown = demangle(["_ZN1a1bEv", bomb, doubling(12) + "v", "_ZN1c1dEv"])
    assert shown["_ZN1a1bEv"] == "a::b()"
    assert shown["_ZN1c1dEv"] == "c::d()"
    assert len(shown[bomb]) <= max(len(bomb), MAX_RESULT)


def test_names_around_one_that_kills_the_demangler_are_shown() -> None:
    fatal = "_Z1f" + "1AI" * 200_000 + "i" + "E" * 200_000
    assert demangle_isolated(["_ZN1a1bEv", fatal, "_ZN1c1dEv"]) in (
        ["a::b()", fatal, "c::d()"],
        ["a::b()", demangle_isolated([fatal])[0], "c::d()"],
    )


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=60).map(lambda text: "_Z" + text),
        st.text("NSt1234567890aIEvPKRTJDpL_CZGUlXs", max_size=120).map(lambda text: "_Z" + text),
        st.text("NvCsIMXYBKhapE_0123456789abcR", max_size=120).map(lambda text: "_R" + text),
    )
)
def test_any_name_is_shown_somehow(name: str) -> None:
    shown = demangle([name])[name]
    assert shown or not name
    assert len(shown) <= max(len(name), MAX_RESULT)


def test_ordinary_names_are_demangled_in_this_process() -> None:
    assert is_harmless("_ZNSt6vectorINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESaIS5_EE9push_backERKS5_")
    assert not is_harmless(doubling(30))


def test_where_there_is_little_time_what_is_quick_is_readable() -> None:
    slow = "_Z1f" + "S_" * 100
    assert not is_harmless(slow)
    assert demangle(["_ZN5rungs5sortsEv", slow], 10) == {"_ZN5rungs5sortsEv": "rungs::sorts()", slow: slow}
    assert demangle(["_ZN5rungs5sortsEv"], 0) == {"_ZN5rungs5sortsEv": "_ZN5rungs5sortsEv"}
