"""Tests that the package of a file is looked for only if the user sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyprof.objfile.debug_files import Packages
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.name_cache import NameCache
from pyprof.symbolize.symbolizer import Symbolizer


@pytest.mark.parametrize(("suggests", "command"), [(True, "apt-get install x-dbg"), (False, "")])
def test_package_with_symbols_is_looked_for_only_if_it_is_shown(
    suggests: bool, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Packages, "find_hint_for_symbols", lambda *_: "apt-get install x-dbg")
    diagnostics = Diagnostics()
    names = NameCache(diagnostics, suggests_packages=suggests)
    module = SimpleNamespace(has_file=True, path="/usr/lib/x.so")
    image = SimpleNamespace(module=module, file=SimpleNamespace(is_here=True, build_id="ab"), root="/")
    Symbolizer(ImageStore(diagnostics), names, {})._report_missing(
        cast(Any, SimpleNamespace(complete=False)), cast(Any, image), [cast(Any, SimpleNamespace(system_name=""))]
    )
    (problem,) = diagnostics.problems["/usr/lib/x.so"]
    assert problem.reason == "exported_names_only"
    assert problem.hint == command
