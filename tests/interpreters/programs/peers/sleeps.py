"""What pytest runs when it is told to: its name is none that it looks for by itself."""

import time

import pytest


@pytest.fixture
def value():
    yield from [1]


@pytest.mark.parametrize("number", [1])
def test_sleeps(value, number):
    time.sleep(1000)
