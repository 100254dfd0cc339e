"""Tests of the names of functions that Cython and V8 generate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.symbolize.demangle import MAX_GENERATED_LENGTH, decode_generated_name, demangle

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("__pyx_pw_3pkg_3mod_1work", "pkg.mod.work"),
        ("__pyx_pf_3pkg_3mod_work", "pkg.mod.work"),
        ("__pyx_f_3pkg_3mod_load_x", "pkg.mod.load_x"),
        ("__pyx_f_3pkg_3mod_6Engine_step", "pkg.mod.Engine.step"),
        ("__pyx_pw_3pkg_3mod_6Engine_1run", "pkg.mod.Engine.run"),
        ("__pyx_pw_3pkg_3mod_6Engine_5__iter__", "pkg.mod.Engine.__iter__"),
        ("__pyx_pw_3pkg_3mod_5fetch_rows", "pkg.mod.fetch_rows"),
        ("__pyx_pw_3pkg_3mod_10_load_more_1inner", "pkg.mod._load_more.inner"),
        ("__pyx_pf_3pkg_3mod_10_load_more_inner.constprop.0", "pkg.mod._load_more.inner"),
        ("__pyx_pw_3pkg_3mod_10__pyx_unpickle_Engine", "pkg.mod.__pyx_unpickle_Engine"),
        ("__pyx_pw_3mod_6Engine_4size_1__get__", "mod.Engine.size"),
        ("__pyx_getprop_3pkg_3mod_6Engine_size", "pkg.mod.Engine.size"),
        ("__pyx_pw_3mod_9__pyx_fuse_0total", "mod.total"),
        ("__pyx_gb_3pkg_3mod_6generator", "pkg.mod.<generator>"),
        ("__pyx_tp_dealloc_3pkg_3mod_Engine", "__pyx_tp_dealloc_3pkg_3mod_Engine"),
        ("__pyx_pymod_exec_mod", "__pyx_pymod_exec_mod"),
    ],
)
def test_cython_functions_have_the_names_that_cython_users_write(symbol: str, name: str) -> None:
    assert demangle([symbol]) == {symbol: name}


@pytest.mark.parametrize(
    "code", ["JS:*", "JS:^", "JS:~", "JS:+", "JS:", "LazyCompile:*", "LazyCompile:~", "Function:^", "Function:"]
)
def test_code_of_one_function_by_each_tier_has_one_name(code: str) -> None:
    symbol = f"{code}load /srv/app.js:3:14"
    assert demangle([symbol]) == {symbol: "JS:load /srv/app.js:3:14"}


@pytest.mark.parametrize("name", ["Builtin:ArrayMap", "RegExp:^a*", "Function::call", "Module::load()", "Stub:X", "*x"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert decode_generated_name(name) == name


@given(st.text("__pyx_fw0123456789AbJS:*^~ ", max_size=40), st.sampled_from(["__pyx_pw_", "__pyx_pf_3", "JS:", ""]))
def test_any_name_has_a_name_that_is_no_longer(text: str, prefix: str) -> None:
    assert len(decode_generated_name(prefix + text)) <= max(len(prefix + text), len("<generator>"))
    assert bool(decode_generated_name(prefix + text)) == bool(prefix + text)


def test_long_name_is_left_alone() -> None:
    name = "__pyx_pw_" + "1a_" * MAX_GENERATED_LENGTH
    assert decode_generated_name(name) == name
