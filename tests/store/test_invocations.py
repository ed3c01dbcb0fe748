"""Finding what was run: by name, by file, by request or by overrides."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from stored import manifest as write_manifest

from bpcbench.errors import UserError
from bpcbench.store.invocations import find_invocation, invocations
from bpcbench.store.runs import Journal
from bpcbench.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def ran(store: Store, name: str, digest: str, day: int, *overrides: str, **head: Any) -> Path:
    """Write the manifest of a suite and a record of its run on a day."""
    fields = {"source": f"{name}.yaml", "purpose": "run", "request": f"request {digest}", **head}
    place = write_manifest(store.root, name, digest * 12, **fields)
    record = Journal.begin(
        place,
        command="bpcbench run",
        overrides=overrides,
        request=fields["request"],
        description="",
        shown=(),
        stale=(),
    )
    started = f"2026-01-{day:02d}T12:00:00.000Z"
    record.path.write_text(json.dumps(asdict(replace(record.record, started=started))))
    return place


def test_the_latest_first_whatever_the_times_of_the_files(store: Store) -> None:
    late = ran(store, "one", "a", 9)
    early = ran(store, "one", "b", 1)
    os.utime(late / "suite.json", (0, 0))
    assert [one.path for one in invocations(store)] == [late, early]
    assert find_invocation(store, "one").path == late
    assert find_invocation(store, None).path == late
    assert find_invocation(store, "one").title == "one.yaml (2026-01-09 12:00:00 UTC)"


def test_by_name_by_source_and_by_purpose(store: Store) -> None:
    place = ran(store, "one", "a", 1)
    snapshots = ran(store, "one", "b", 2, purpose="anytime")
    for wanted in ("one", "one.yaml"):
        assert find_invocation(store, wanted).path == place
    assert find_invocation(store, "elsewhere/one.yaml", name="one").path == place
    assert find_invocation(store, "one", purposes=("anytime",)).path == snapshots
    assert [one.path for one in invocations(store, "anytime")] == [snapshots]


def test_by_request_or_by_overrides_as_they_were_spelled(store: Store) -> None:
    plain = ran(store, "one", "a", 1)
    small = ran(store, "one", "b", 2, "ipc=[1]", "seeds=1")
    assert find_invocation(store, "one", ["ipc=1", "seeds=1"], request="request b").path == small
    assert find_invocation(store, "one", ["seeds=1", "ipc=[1]"]).path == small
    assert find_invocation(store, "one", request="request a", exact=True).path == plain
    assert find_invocation(store, "one").overrides == ("ipc=[1]", "seeds=1")


def test_what_was_not_run_is_answered_with_what_was(store: Store) -> None:
    ran(store, "one", "a", 1)
    ran(store, "one", "b", 2, "ipc=[1]")
    ran(store, "two", "c", 3)
    with pytest.raises(UserError) as caught:
        find_invocation(store, "one", ["ipc=[9]"])
    assert str(caught.value).splitlines() == [
        f"one ipc=[9] was not run in {store.root}; there are",
        "  one.yaml ipc=[1] (2026-01-02 12:00:00 UTC)",
        "  one.yaml (2026-01-01 12:00:00 UTC)",
    ]
    with pytest.raises(UserError, match=r"has no results of 'tow'.*did you mean 'two'.*\(it has: one, two\)"):
        find_invocation(store, "tow")
    with pytest.raises(UserError, match="was not run"):
        find_invocation(store, "one", request="another", exact=True)


def test_a_manifest_of_another_schema_is_noted_and_passed_over(store: Store) -> None:
    place = ran(store, "one", "a", 1)
    later = ran(store, "one", "b", 2, schema=2)
    broken = ran(store, "one", "c", 3)
    (broken / "suite.json").write_text("[" * 100_000)
    assert [one.path for one in invocations(store)] == [place]
    assert [str(path) in message for path, message in zip((later, broken), store.messages, strict=True)] == [True, True]
    assert "its schema is 2, and this bpcbench reads 1" in store.messages[0]


def test_a_manifest_without_a_record_still_counts(store: Store) -> None:
    place = write_manifest(store.root, "one", "a" * 12, source="one", purpose="run", request="r")
    only = find_invocation(store, "one")
    assert (only.path, only.latest, only.overrides, only.title, only.requests) == (place, "", (), "one", {"r"})
