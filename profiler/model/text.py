"""What of a text is not shown as it is: names come from the target, and a terminal or an editor obeys some letters."""

from __future__ import annotations

DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Changes of writing direction (UAX #9): text after them stands elsewhere than it is. For a class of re."""

CONTROLS = "\x00-\x1f\x7f-\x9f\u2028\u2029"
"""What moves the cursor or ends a line, likewise."""
