"""Prints the share of the package's lines that ran, folder by folder, from coverage's data (`make coverage`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from coverage import Coverage

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
    coverage.load()
    lines: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for file in coverage.get_data().measured_files():
        path = Path(file).relative_to(ROOT)
        _, statements, _, missing, _ = coverage.analysis2(file)
        room = "/".join(path.parts[:2] if len(path.parts) > 2 else path.parts[:1])
        for name in (room, "all"):
            lines[name] += len(statements)
            missed[name] += len(missing)
    for name in sorted(lines):
        if lines[name]:
            print(f"{name:<28} {lines[name]:>7} lines {100 * (1 - missed[name] / lines[name]):6.1f} %")


if __name__ == "__main__":
    main()
