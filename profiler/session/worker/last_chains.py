"""The last chains of an interpreter's frames that were sent from one process to another.

Both ends name the same chains in the same order, so both know which ones these are, and one that is known is sent by
its number.
"""

from __future__ import annotations

from pyprof.model.interpreter import Chain

_MOST_CHAINS = 1 << 13


class LastChains:
    """By number, and one of each of the last trunks."""

    def __init__(self) -> None:
        self._chains: dict[int, Chain] = {}
        self._trunks: dict[int, Chain] = {}

    def find(self, number: int) -> Chain | None:
        """From now on it is the last one."""
        return _found(self._chains, number)

    def alike(self, trunk: int) -> Chain | None:
        """One of this trunk, which is the last one from now on."""
        return _found(self._trunks, trunk)

    def add(self, chain: Chain) -> None:
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
