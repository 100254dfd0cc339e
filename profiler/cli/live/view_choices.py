"""The values that a view can have: words for the command line, the keys and the screen."""

TABLES = ("function", "thread", "process", "module", "line", "native")
"""The kinds of rows of a table in `pyprof top`. A function's cost includes native code that an interpreter's function
calls.
"""
SORTS = ("self", "total")
SPANS_S = (1.0, 10.0, 60.0, 0.0)
"""Spans in seconds that `pyprof top` can show, 0 for all."""
DEFAULT_SPAN_S = 10.0
EVERY_S = 1.0
"""Time between two snapshots of `pyprof top` in seconds."""
