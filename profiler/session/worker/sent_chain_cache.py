"""Cache of the interpreter frame chains that were sent last from one process to another.

Sender and receiver use the same chains in the same order, so their caches hold the same entries. A cached chain is sent
as its number.
"""

from __future__ import annotations

from pyprof.model.interpreter_state import Chain

_MOST_CHAINS = 1 << 13


class LastChains:
    """A cache of sent interpreter frame chains by number and by `trunk`, which drops the least recently used ones.

    Chains that differ only in their innermost instruction share a trunk.
    """

    def __init__(self) -> None:
        self._chains: dict[int, Chain] = {}
        self._trunks: dict[int, Chain] = {}

    def find(self, number: int) -> Chain | None:
        """Return the cached frame chain with this number and mark it as most recently used."""
        return _found(self._chains, number)

    def alike(self, trunk: int) -> Chain | None:
        """Return a cached frame chain that differs at most in its innermost instruction, and mark it as most recently
        used.
        """
        return _found(self._trunks, trunk)

    def add(self, chain: Chain) -> None:
        """Add a frame chain to the cache, and remove the least recently used one if the cache is full."""
        _keep(self._chains, chain.number, chain)
        if chain.trunk:
            _keep(self._trunks, chain.trunk, chain)

    def __len__(self) -> int:
        return len(self._chains)


def _found(chains: dict[int, Chain], number: int) -> Chain | None:
    chain = chains.pop(number, None)
    if chain is not None:
        chains[number] = chain
    return chain


def _keep(chains: dict[int, Chain], number: int, chain: Chain) -> None:
    if len(chains) >= _MOST_CHAINS:
        del chains[next(iter(chains))]
    chains[number] = chain
