"""Tests of the lazy loading of numpy's submodules by the command line, which users cannot notice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pyprof.cli import accelerated_start

BEGIN = """
import io, json, sys
from pyprof.cli.accelerated_start import _Part, leave_out
leave_out()
import numpy as np
import numpy.typing as npt
def left_out():
    return sorted(name for name, module in sys.modules.items() if isinstance(module, _Part))
"""

pytestmark = [
    pytest.mark.live,
    pytest.mark.system,
    pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="numpy 1 is loaded whole"),
]


def said(code: str) -> object:
    out = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(out.stdout)


def test_parts_are_left_out_while_nothing_of_them_is_used() -> None:
    found = said(
        "np.unique(np.array([2, 1, 2])); np.flatnonzero(np.ones(3)); npt.NDArray[np.uint8]\n"
        "isinstance(np.zeros(1), np.matrix)\n"
        "print(json.dumps(left_out()))"
    )
    assert isinstance(found, list)
    assert {"numpy.linalg", "numpy.typing", "numpy.lib._npyio_impl"} <= set(found)


@pytest.mark.parametrize(
    "use",
    [
        "file = io.BytesIO(); np.save(file, np.arange(3)); file.seek(0); it = np.load(file).tolist() == [0, 1, 2]",
        "it = np.linalg.norm(np.array([3.0, 4.0])) == 5",
        "it = not isinstance(1, np.lib.npyio.NpzFile) and np.pad([1], 1).tolist() == [0, 1, 0]",
        "class Own(np.lib.mixins.NDArrayOperatorsMixin): pass\nit = Own.__mro__[1] is Own.__base__",
        "it = 0 <= np.random.default_rng(1).random() < 1 and np.ma.array([1]).sum() == 1",
        "it = np.nanmean([1.0, float('nan')]) == 1",
    ],
)
def test_part_that_is_used_is_as_numpy_has_it(use: str) -> None:
    assert said(use + "\nprint(json.dumps(bool(it)))") is True


def test_all_parts_are_loaded_once_one_is_used() -> None:
    assert said("np.nanmean([1.0]); print(json.dumps(left_out()))") == []


def test_numpy_that_is_loaded_stays_as_it_is() -> None:
    before = list(sys.meta_path)
    accelerated_start.leave_out()
    assert sys.meta_path == before


def test_every_part_has_its_file() -> None:
    """Check that the list still names submodules of the installed numpy version."""
    folder = Path(np.__file__).parent
    here = [
        (folder / f"{name.replace('.', '/')}.py").exists() or (folder / name.replace(".", "/")).is_dir()
        for name in accelerated_start.LATER
    ]
    assert sum(here) > len(here) // 2
