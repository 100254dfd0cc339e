"""A test that rebuilds the fixtures with the current packages of the same toolchains."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.roots import root
from tests.unwind.sframe.fixtures import NAMES
from tests.unwind.sframe.test_producers import differences

pytestmark = [pytest.mark.matrix, pytest.mark.system]

SCRIPT = Path(__file__).with_name("build_fixtures.sh")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for suite in ("bookworm", "trixie", "sid"):
        root(suite)
    folder = tmp_path_factory.mktemp("fresh")
    done = subprocess.run([SCRIPT, folder], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_fresh_build_are_those_of_its_producers_listing(name: str, fresh: Path) -> None:
    assert differences(name, fresh) == []
