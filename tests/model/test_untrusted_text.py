"""Tests of detecting names and texts that contain secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.model.untrusted_text import looks_secret, without_secrets


@pytest.mark.parametrize(
    "name", ["password", "DB_PASSWORD", "auth_token", "secret", "apiKey", "session_id", "passwd", "db_pw"]
)
def test_names_that_look_secret_are_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["number", "passenger", "keys", "monkey", "path"])
def test_other_names_are_not(name: str) -> None:
    assert not looks_secret(name)


@given(st.text(alphabet="a:/@ =password?#", max_size=200))
def test_any_text_is_looked_through_in_little_time(text: str) -> None:
    assert len(without_secrets(text * 5)) <= 20 * len(text) * 5


def test_secrets_within_texts_are_left_out() -> None:
    assert without_secrets("PGPASSWORD=x redis://:x@h") == "PGPASSWORD=<redacted> redis://:<redacted>@h"
    assert without_secrets("a=b http://h:80/ user@host") == "a=b http://h:80/ user@host"
