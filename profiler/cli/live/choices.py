"""Between what a view chooses: words for the command line, the keys and the screen."""

TABLES = ("function", "thread", "process", "module", "line", "native")
"""The kinds of rows that a table may have. A function includes native code below an interpreter's function."""
SORTS = ("self", "total")
SPANS_S = (1.0, 10.0, 60.0, 0.0)
"""Of what is shown: the last so many seconds, 0 for all."""
DEFAULT_SPAN_S = 10.0
EVERY_S = 1.0
"""Between two snapshots."""
