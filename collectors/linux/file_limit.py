"""How many files we may hold open."""

from __future__ import annotations

import resource


def raise_file_limit(most: int) -> None:
    """Up to the hard limit, or to `most` where that is less or there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, most) if hard > 0 else most
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
