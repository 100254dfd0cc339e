"""Tests of the count of code lines, which leaves out comments, docstrings and blank lines."""

from __future__ import annotations

from tooling.quality.code_lines import count_native, count_python

PYTHON = '''"""A docstring
of two lines."""

# a comment
LIMIT = 5  # bytes
"""What the constant is."""


def name(
    of: int,
) -> str:
    """Return a name."""
    return """a text

with a blank line"""
'''
C = """/* a comment
   of two lines */
#include <stdio.h>

// another one
int main(void) /* one behind code */
{
    puts("/* no comment, // none");
}
"""


def test_docstrings_comments_and_blank_lines_of_python_are_no_code() -> None:
    assert count_python(PYTHON) == 6


def test_comments_and_blank_lines_of_c_are_no_code() -> None:
    assert count_native(C) == 5
    assert count_native('char quote = \'"\'; /* " */ // "\n') == 1
