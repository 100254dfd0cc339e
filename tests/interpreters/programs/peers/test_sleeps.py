"""What pytest runs."""

import time

import pytest


@pytest.fixture
def value():
    yield from [1]


@pytest.mark.parametrize("number", [1])
def test_sleeps(value, number):
    time.sleep(1000)
