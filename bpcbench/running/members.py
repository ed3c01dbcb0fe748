"""The members of a prerequisite as a plugin sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bpcbench.records import Arrays
from bpcbench.store.address import Address
from bpcbench.store.store import Store


class Members(Mapping[str, Arrays]):
    """The members of a prerequisite, opened on access, so that a hundred experts need not fit in memory."""

    def __init__(self, store: Store, addresses: list[Address]) -> None:
        self._store = store
        self._addresses = {address.member: address for address in addresses}

    def __getitem__(self, member: str) -> Arrays:
        return self._store.read(self._addresses[member]).arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)
