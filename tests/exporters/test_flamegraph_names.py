"""Tests of shortened names in the page's boxes, with the page's own script in the browser."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.exporters.browser import Browser
from tests.exporters.conftest import OpenPage
from tests.exporters.profiles import Builder, code, golden

pytestmark = pytest.mark.system

SHORTER = [
    ["main"],
    ["<module>"],
    ["outer.<locals>.<lambda>", "outer.<lambda>"],
    ["libcrypto.so.3!0x1a2b40", "!0x1a2b40"],
    ["libssl.so.3[1f2e3d4c]+0x12", "+0x12"],
    ["JS:~foo /path/file.js:12:3", "JS:~foo file.js:12:3"],
    ["std::vector<int, std::allocator<int> >::push_back(int const&)", "std::vector<int, allocator<int> >::push_back",
     "std::vector::push_back", "vector::push_back", "push_back"],
    ["v8::Handle<v8::Object> v8::(anonymous namespace)::help<false>(int)", "v8::(anonymous namespace)::help<false>",
     "v8::(anonymous namespace)::help", "(anonymous namespace)::help", "help"],
    ["std::ostream& std::operator<< <char>(std::ostream&, char const*)", "std::operator<<<char>", "std::operator<<",
     "operator<<"],
    ["run(int)::{lambda(std::string const&)#1}::operator()(std::string const&) const", "run::{lambda#1}::operator()"],
    ["operator new(unsigned long)", "operator new"],
    ["std::panic::catch_unwind", "panic::catch_unwind", "catch_unwind"],
    ["std::panic::catch_unwind::<closure, ()>", "std::panic::catch_unwind<closure, ()>", "std::panic::catch_unwind",
     "panic::catch_unwind", "catch_unwind"],
    ["<alloc::vec::Vec<T> as Clone>::clone", "<Vec<T> as Clone>::clone", "<Vec as Clone>::clone", "Vec::clone",
     "clone"],
    ["<core::fmt::Formatter>::pad_integral", "Formatter::pad_integral", "pad_integral"],
    ["<alloc::boxed::Box<F,A> as core::ops::function::FnOnce<Args>>::call_once",
     "<Box<F,A> as FnOnce<Args>>::call_once", "<Box as FnOnce>::call_once", "Box::call_once", "call_once"],
    ["<[A] as core::slice::cmp::SlicePartialEq<B>>::equal_same_length", "<[A] as SlicePartialEq<B>>::equal_same_length",
     "<[A] as SlicePartialEq>::equal_same_length", "SlicePartialEq::equal_same_length", "equal_same_length"],
    ["core::ptr::drop_in_place<alloc::vec::Vec<u8, alloc::alloc::Global>>",
     "core::ptr::drop_in_place<Vec<u8, Global>>", "core::ptr::drop_in_place", "ptr::drop_in_place", "drop_in_place"],
    ["<fn(A) -> B as core::ops::function::FnOnce<A>>::call_once", "<fn(A) -> B as FnOnce<A>>::call_once",
     "<fn(A) -> B as FnOnce>::call_once", "fn(A) -> B::call_once", "call_once"],
    ["app::pool::Worker::run::{{closure}}", "pool::Worker::run::{{closure}}", "Worker::run::{{closure}}",
     "run::{{closure}}"],
    ["github.com/user/repo/pkg.(*Type).Method", "pkg.(*Type).Method"],
    ["checkout.<locals>.<genexpr>", "checkout.<genexpr>"],
    ["Shop.make.<locals>.total", "Shop.make.total", "make.total", "total"],
]  # fmt: skip


def test_name_gets_shorter_from_its_outside_and_its_arguments(open_page: OpenPage) -> None:
    page = open_page(golden())
    assert page.browser.run(f"{json.dumps([forms[0] for forms in SHORTER])}.map(shortForms)") == SHORTER


def test_label_is_never_what_only_closes_a_bracket(open_page: OpenPage) -> None:
    page = open_page(golden())
    for forms in SHORTER:
        fitted = page.browser.run(f"Array.from({{length: 120}}, (_, i) => fitName({json.dumps(forms[0])}, i))")
        for room, text in enumerate(fitted):
            assert len(text) <= room
            assert text in ("", *forms) or text[:-1] == forms[-1][: room - 1]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.sampled_from(["::", "<", ">", "(", ")", "{", "}", "[", " as ", " ", "->", "operator", "a", "impl "]))
)
def test_any_name_has_forms_each_shorter_than_the_one_before(shown: Browser, parts: list[str]) -> None:
    forms = shown.run(f"shortForms({json.dumps(''.join(parts))})")
    assert forms[0] == "".join(parts)
    assert all(len(longer) > len(shorter) > 0 for longer, shorter in pairwise(forms))


@pytest.fixture
def shown(browser: Browser, open_page: OpenPage) -> Browser:
    open_page(golden())
    return browser


def test_very_long_name_is_shortened_quickly_and_whole_in_the_tooltip(open_page: OpenPage) -> None:
    name = "std::a<" + "<" * 100_000 + ">::tail"
    builder = Builder()
    builder.sample(builder.node([code("main"), code(name, rel=0x200)]))
    page = open_page(builder.build())
    assert page.browser.run(f"fitName('x::' + {json.dumps(name)}, 9)") == "x::std::a"
    assert page.hover("main", name).startswith(name[:5000])
