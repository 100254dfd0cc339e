"""The fixtures of the collectors' tests."""

from tests.collectors.conftest import binaries, program

__all__ = ["binaries", "program"]
