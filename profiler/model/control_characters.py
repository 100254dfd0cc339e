"""Characters of a text that must not be shown as they are.

Names come from the target, and terminals and editors interpret some characters.
"""

from __future__ import annotations

DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Characters that change the writing direction (UAX #9), so that later text appears elsewhere.

For a class in a regex.
"""

CONTROLS = "\x00-\x1f\x7f-\x9f\u2028\u2029"
"""Characters that move the cursor or end a line. For a class in a regex."""
