"""Tests of the predicates for application code."""

from __future__ import annotations

import pytest

from pyprof.model.analysis.function_costs import is_application_file, is_application_module, script_title


@pytest.mark.parametrize(
    "path",
    ["/srv/shop/shop.py", "app.py", "templates/products.html", "<stdin>", "/home/me/python3.11/app.py",
     "/usr/share/tool/tool.py", "/srv/lib/v1/parse.py", "/src/lib/parse.c",
     "/app/src/main.rs", "/srv/server.js", "/srv/gems.rb"],
)  # fmt: skip
def test_source_files_outside_of_libraries_are_the_applications(path: str) -> None:
    assert is_application_file(path)


@pytest.mark.parametrize(
    "path",
    ["", "/usr/lib/python3.11/json/encoder.py", "/opt/venv/lib/python3.13t/site-packages/flask/app.py",
     "/usr/lib/python3/dist-packages/apt/cache.py", "/root/.pyenv/versions/3.12.1/lib/python3.12/threading.py",
     "/venv/lib64/python3.12/abc.py", "/usr/lib/pypy3.9/lib-python/3/json/decoder.py", "<frozen importlib._bootstrap>",
     "<string>",
     "<__array_function__ internals>", "node:internal/modules/cjs/loader", "/srv/node_modules/express/lib/router.js",
     "/usr/lib/perl/5.36/POSIX.pm", "/opt/x/lib/tcl/8.6.1/init.tcl",
     "/usr/include/c++/12/bits/stl_algo.h", "/usr/local/go/src/net/http/server.go",
     "/rustc/0123abcd/library/core/src/iter/range.rs", "/root/.cargo/registry/src/index/serde-1.0/src/de.rs",
     "/rust/deps/hashbrown-0.16.1/src/raw/mod.rs"],
)  # fmt: skip
def test_source_files_of_libraries_are_not_the_applications(path: str) -> None:
    assert not is_application_file(path)


@pytest.mark.parametrize(
    "path",
    ["/opt/server/bin/server", "/usr/bin/xz", "/usr/lib/gcc/x86_64-linux-gnu/12/cc1", "/opt/app/lib/libcore.so.1"],
)
def test_programs_and_their_own_libraries_are_the_applications(path: str) -> None:
    assert is_application_module(path)


@pytest.mark.parametrize(
    "path",
    ["", "[kernel]", "[vdso]", "[anon]", "/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
     "/usr/lib64/libz.so.1 (deleted)", "libc.so.6", "libstdc++.so.6.0.30", "ld-linux-x86-64.so.2",
     "/usr/bin/python3.11", "/usr/local/lib/libpython3.11.so.1.0", "/usr/bin/node", "/usr/sbin/php-fpm8.2",
     "/venv/lib/python3.11/site-packages/numpy/core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so",
     "/usr/local/lib/python3.11/lib-dynload/_sqlite3.cpython-311-x86_64-linux-gnu.so"],
)  # fmt: skip
def test_system_libraries_packages_and_runtimes_are_not_the_applications(path: str) -> None:
    assert not is_application_module(path)


def test_hostile_paths_take_no_time() -> None:
    for path in ("/lib/" * 200_000, "/usr/lib/python" + "3." * 200_000, "rustc/" + "f" * 400_000):
        is_application_file(path)
        is_application_module(path)


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/usr/lib/python3.11/json/__init__.py", "json/__init__.py"),
        ("/srv/server/routes/index.js", "routes/index.js"),
        ("__init__.py", "__init__.py"),
        ("/srv/shop.py", "shop.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ],
)
def test_script_of_a_name_that_each_package_has_is_called_by_its_folder_too(path: str, title: str) -> None:
    assert script_title(path) == title
