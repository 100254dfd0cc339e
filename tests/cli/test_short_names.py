"""Tests of shortening function names to the width of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.cli.number_and_name_format import function_name, function_names, module_names, shorten_apart, shorten_middle

pytestmark = [pytest.mark.live, pytest.mark.system]


def test_long_function_names_keep_what_tells_them_apart() -> None:
    long = "v8::internal::Handle<v8::internal::String> v8::internal::JsonParser<unsigned char>::MakeString(int, char*)"
    assert function_name(long, 50) == "v8::internal::JsonParser::MakeString"
    assert function_name("short(int)", 50) == "short(int)"
    assert function_name("a" * 60 + "::end", 20) == "end"
    assert function_name("bool operator< <a<b>, c>(x const&) " + "y" * 60, 20) == "yyyyyy…yyyyyyyyyyyyy"
    assert len(function_name("<broken(" * 20, 30)) <= 30
    assert function_name("[waiting for a processor: waits too short]", 30) == "[waiting for a processor: wai…"
    assert function_name("JS:*hot /a/very/long/folder/of/scripts/hot.js:1:13", 30) == "JS:*hot hot.js:1:13"
    assert function_name("JS:*hot /a/very/long/folder/of/scripts/hot.js:1:13", 12) == "JS:….js:1:13"
    assert function_name("checkout.<locals>.<genexpr>", 24) == "checkout.<genexpr>"
    assert function_name("checkout.<locals>.<genexpr>", 12) == "che…genexpr>"
    assert function_name("Shop.make.<locals>.total", 12) == "make.total"
    assert function_name("example.com/a/module/of/somebody/pkg.(*Server).serve", 30) == "pkg.(*Server).serve"


def test_names_that_differ_only_in_the_middle_keep_the_middle() -> None:
    one, two = ("handle_" + "a" * 40 + number + "b" * 40 for number in "12")
    assert function_names([one, two, "main"], 20) == ["…aaaaaa1bbbbbbbbbbb…", "…aaaaaa2bbbbbbbbbbb…", "main"]
    assert module_names([f"{one}.so", f"{two}.so"], 20) == ["…aaaaaa1bbbbbbbbbbb…", "…aaaaaa2bbbbbbbbbbb…"]


@given(st.lists(st.text("ab", min_size=30, max_size=34), min_size=2, max_size=2, unique=True), st.integers(12, 28))
def test_two_names_never_become_equal_or_too_wide(names: list[str], width: int) -> None:
    short = function_names(names, width)
    assert len(set(short)) == 2
    assert max(map(len, short)) <= width


def test_functions_that_would_look_the_same_have_what_tells_them_apart() -> None:
    of_json = (
        "v8::internal::JsonStringifier::Result v8::internal::JsonStringifier::Serialize_<{}>(v8::internal::Handle)"
    )
    both = function_names([of_json.format("false"), "main", of_json.format("true")], 46)
    short = "internal::JsonStringifier::Serialize_"
    assert both == [f"{short} <false>", "main", f"{short} <true>"]
    assert function_names(["f(std::map<int, int>, long)", "f(std::map<int, int>, char)"], 8) == ["f <long>", "f <char>"]
    cells = [f"core::ptr::write::<core::mem::{name}<u8>>" for name in ("Cell", "Slot")]
    assert function_names(cells, 16) == ["write <Cell<u8>>", "write <Slot<u8>>"]
    assert function_names([of_json.format("false")] * 2, 40) == [function_name(of_json.format("false"), 40)] * 2
    for one, other in (
        ("a<" * 40, "a<" * 41),
        ("f(" + "x" * 60 + ")", "f(" + "y" * 60 + ")"),
        ("g" * 50, "h" + "g" * 49),
    ):
        for width in range(8, 60):
            assert all(len(name) <= width for name in function_names([one, other], width))


def test_rows_whose_names_differ_at_either_end_look_different() -> None:
    for names in (
        ["__memcpy_avx512_unaligned_erms", "__memmove_avx512_unaligned_erms"],
        ["handler_of_the_web_server_get", "handler_of_the_web_server_put"],
        ["JS:load /srv/app.js:1:2", "JS:load /srv/app.js:4:5"],
    ):
        for width in (14, 18, 22):
            assert len(set(function_names(names, width))) == 2
            assert all(len(name) <= width for name in function_names(names, width))


def test_modules_keep_their_beginning_unless_that_is_the_same() -> None:
    fast, slow = "_codec.cpython-311-fast.so", "_codec.cpython-311-slow.so"
    assert shorten_apart([fast, "libz.so.1"], 12) == ["_codec.cpyt…", "libz.so.1"]
    assert shorten_apart([fast, slow, fast], 12) == ["_co…-fast.so", "_co…-slow.so", "_co…-fast.so"]
    assert [shorten_middle("abcdef", width) for width in (0, 1, 2, 6)] == ["", "…", "…f", "abcdef"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("<alloc::boxed::Box<dyn core::ops::function::Fn()> as core::ops::function::FnOnce<()>>::call_once",
         "Box::call_once"),
        ("<[A] as core::slice::cmp::SlicePartialEq<B>>::equal", "SlicePartialEq::equal"),
        ("<<A as core::ops::Deref>::Target as core::cmp::Ord>::cmp", "<Target as Ord>::cmp"),
        ("<<T as a::B>::C as core::iter::Iterator>::next_back", "Iterator::next_back"),
        ("<" * 4000, "<" * 6 + "…" + "<" * 14),
        ("std::panic::catch_unwind::<i32, main::{closure#0}>", "panic::catch_unwind"),
        ("<sort::Global as core::alloc::Allocator>::allocate", "Global::allocate"),
        ("core::slice::sort::unstable::quicksort::quicksort::<u64>", "quicksort::quicksort"),
        ("std::vector<int, std::allocator<int> >::push_back(int const&)", "vector::push_back"),
        ("serde::de::Visitor::visit::{closure#0}", "visit::{closure#0}"),
        ("v8::Heap::Sweep(v8::internal::Handle<v8::internal::Object>) (.isra.0)", "v8::Heap::Sweep"),
    ],
)  # fmt: skip
def test_names_of_rust_and_cpp_are_shortened_from_outside_in(name: str, short: str) -> None:
    assert function_name(name, 21) == short
    assert function_name(name, len(name)) == name


def test_long_names_of_extension_modules_lose_the_version_of_the_interpreter() -> None:
    names = ["_json.cpython-311-x86_64-linux-gnu.so", "_queue.abi3.so", "libsqlite3.so.0.8.6"]
    assert module_names(names, 22) == ["_json.so", "_queue.abi3.so", "libsqlite3.so.0.8.6"]
    assert module_names(names, 40) == names
