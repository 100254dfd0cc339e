"""`python -m tests.recording.manual`: write the tables of docs/recording.md from the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pyprof.recording.schema import tables

PAGE = Path(__file__).parents[2] / "docs" / "recording.md"
_PART = re.compile(r"(<!-- tables: [^\n]*-->\n).*(<!-- end -->\n)", re.DOTALL)


def described() -> Iterator[str]:
    for table in tables().values():
        yield f"\n### {table.name}\n\n{table.meaning}\n\n| column | type | meaning |\n|---|---|---|\n"
        for column in table.columns:
            yield f"| `{column.name}` | {column.type.removesuffix(' NOT NULL')} | {column.meaning} |\n"


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text()
    return _PART.sub(lambda found: f"{found[1]}{''.join(described())}\n{found[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(page())
