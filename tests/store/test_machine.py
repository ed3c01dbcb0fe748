"""Whatever is done to a store, in whatever order and through however many handles, it is the dictionary it should be.

Two stores, each opened twice, and a model of each: which member has which value, and which was damaged. After every
step both are read from outside and compared. BPCBENCH_FUZZ says how many sequences of steps are tried.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from stored import address, put
from toy_runs import flip

from bpcbench.errors import StoreError
from bpcbench.store import folder
from bpcbench.store.address import Address
from bpcbench.store.merge import merge
from bpcbench.store.store import Store
from bpcbench.store.verification import verify

FUZZ = int(os.environ.get("BPCBENCH_FUZZ", "150"))
STEPS = 25
PLACES = [(kind, name) for kind in ("prerequisite", "coreset", "score") for name in ("a", "b")]
PLACE, VALUE, SIDE = st.sampled_from(PLACES), st.sampled_from([1.0, 2.0]), st.sampled_from(["ours", "theirs"])


def _truncate(path: Path) -> None:
    os.truncate(path / folder.ARRAYS, 100)


def _lose(path: Path) -> None:
    (path / folder.ARRAYS).unlink()


def _cut(path: Path) -> None:
    (path / "stage.json").write_text("{")


def _forget(path: Path) -> None:
    (path / "stage.json").unlink()


DAMAGES: list[tuple[Callable[[Path], None], bool]] = [
    (lambda path: flip(path / folder.ARRAYS), True),
    (_truncate, True),
    (_lose, True),
    (lambda path: flip(path / "stage.json", 40), False),
    (_cut, False),
    (_forget, False),
]
"""What may happen to a member, and whether its stage.json can still be read."""


@dataclass
class Side:
    """One store, its two handles, and what it should hold."""

    root: Path
    handles: list[Store] = field(default_factory=list)
    values: dict[Address, float] = field(default_factory=dict)
    damaged: dict[Address, bool] = field(default_factory=dict)

    def sound(self) -> dict[Address, float]:
        return {where: value for where, value in self.values.items() if where not in self.damaged}

    def drop(self, where: Address) -> None:
        self.values.pop(where, None)
        self.damaged.pop(where, None)

    def notice(self, where: Address) -> None:
        """A damaged member is set aside by whoever looks at it."""
        if where in self.damaged:
            self.drop(where)


class Stores(RuleBasedStateMachine):
    """Steps that change stores, each with what it should do."""

    @initialize()
    def begin(self) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(dir=memory))
        self.sides = {name: Side(self.folder / name) for name in ("ours", "theirs")}
        for side in self.sides.values():
            side.handles = [Store.open(side.root) for _ in range(2)]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(name=SIDE, handle=st.integers(0, 1), place=PLACE, value=VALUE)
    def commit(self, name: str, handle: int, place: tuple[str, str], value: float) -> None:
        side, where = self.sides[name], address(*place)
        if where in side.values:
            # The first one stays, even if it is damaged: nobody has looked yet.
            with pytest.raises(AssertionError):
                put(side.handles[handle], *place, value=value)
        else:
            assert put(side.handles[handle], *place, value=value) == where
            side.values[where] = value

    @rule(name=SIDE, handle=st.integers(0, 1), place=PLACE, value=VALUE)
    def make(self, name: str, handle: int, place: tuple[str, str], value: float) -> None:
        """What a run does: look, and compute what is not there."""
        side, where = self.sides[name], address(*place)
        assert side.handles[handle].has(where) == (where in side.sound())
        side.notice(where)
        if where not in side.values:
            put(side.handles[handle], *place, value=value)
            side.values[where] = value

    @rule(name=SIDE, handle=st.integers(0, 1), place=PLACE)
    def read(self, name: str, handle: int, place: tuple[str, str]) -> None:
        side, where = self.sides[name], address(*place)
        if where in side.sound():
            assert side.handles[handle].read(where).arrays["x"][0] == side.values[where]
        else:
            with pytest.raises(StoreError):
                side.handles[handle].read(where)
            side.notice(where)

    @rule(name=SIDE, handle=st.integers(0, 1), place=PLACE)
    def remove(self, name: str, handle: int, place: tuple[str, str]) -> None:
        side, where = self.sides[name], address(*place)
        freed = side.handles[handle].remove(where)
        assert freed > 0 if where in side.values else freed == 0
        side.drop(where)

    @rule(name=SIDE, handle=st.integers(0, 1), place=PLACE)
    def set_aside(self, name: str, handle: int, place: tuple[str, str]) -> None:
        side, where = self.sides[name], address(*place)
        said = side.handles[handle].set_aside(where, "as a test")
        assert ("set aside in" in said) == (where in side.values)
        side.drop(where)

    @rule(name=SIDE, handle=st.integers(0, 1))
    def prune(self, name: str, handle: int) -> None:
        side = self.sides[name]
        side.handles[handle].prune_scratch(remove=True)
        assert not list((side.root / "damaged").glob("*"))

    @rule(name=SIDE, place=PLACE, how=st.sampled_from(DAMAGES))
    def damage(self, name: str, place: tuple[str, str], how: tuple[Callable[[Path], None], bool]) -> None:
        side, where = self.sides[name], address(*place)
        if where in side.sound():
            change, readable = how
            change(side.handles[0].path(where))
            side.damaged[where] = readable

    @rule(name=SIDE, handle=st.integers(0, 1))
    def reopen(self, name: str, handle: int) -> None:
        side = self.sides[name]
        side.handles[handle] = Store.open(side.root)

    @rule(handle=st.integers(0, 1), place=PLACE)
    def receive(self, handle: int, place: tuple[str, str]) -> None:
        ours, theirs, where = self.sides["ours"], self.sides["theirs"], address(*place)
        if where in theirs.sound():
            source = theirs.handles[0].path(where)
            taken = ours.handles[handle].receive(where, source, theirs.handles[0].meta(where))
            assert taken == (where not in ours.values)
            ours.values.setdefault(where, theirs.values[where])

    @rule(handle=st.integers(0, 1), dry=st.booleans())
    def merge(self, handle: int, dry: bool) -> None:
        ours, theirs = self.sides["ours"], self.sides["theirs"]
        store = Store(ours.root, read_only=True) if dry else ours.handles[handle]
        done = merge(store, Store.open(theirs.root, create=False, read_only=True), dry_run=dry)
        here, there = ours.sound(), theirs.sound()
        taken = there.keys() - here.keys()
        assert set(done.taken) == taken
        assert set(done.conflicts) == {where for where in there.keys() & here.keys() if there[where] != here[where]}
        # What says of itself that it is the same is not read any further.
        described = {where for where in theirs.values if theirs.damaged.get(where, True)}
        same = {where for where in described & here.keys() if theirs.values[where] == here[where]}
        assert done.present == len(same)
        assert len(done.damaged) == len(theirs.damaged.keys() - same)
        if not dry:
            for where in described:
                ours.notice(where)
            ours.values |= {where: there[where] for where in taken}

    @invariant()
    def is_what_it_should_be(self) -> None:
        for side in getattr(self, "sides", {}).values():
            store = Store.open(side.root, create=False, read_only=True)
            listed = {where for where in side.values if side.damaged.get(where, True)}
            assert set(store.addresses()) == listed
            for place in PLACES:
                where = address(*place)
                assert store.has(where) == (where in side.sound())
                if where in side.sound():
                    assert store.read(where).arrays["x"][0] == side.values[where]
            found = {finding.place for finding in verify(side.root)}
            assert found == {str(where) for where in side.damaged}
            assert not list((side.root / "scratch").glob("*/tmp-*"))


class TestStores(Stores.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(
        max_examples=max(3, FUZZ // 25),
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_every_damage_is_noticed(number: int) -> None:
    """Few of the sequences above hold all damages; these are short, and always the same."""
    machine = Stores()
    machine.begin()
    try:
        for name in ("ours", "theirs"):
            machine.commit(name, 0, PLACES[0], 1.0)
            machine.is_what_it_should_be()
            machine.damage(name, PLACES[0], DAMAGES[number])
            machine.is_what_it_should_be()
        machine.merge(0, dry=True)
        machine.read("theirs", 1, PLACES[0])
        machine.make("ours", 1, PLACES[0], 2.0)
        machine.is_what_it_should_be()
        machine.merge(1, dry=False)
        machine.is_what_it_should_be()
    finally:
        machine.teardown()
