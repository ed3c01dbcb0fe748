"""Keys and addresses: the exact name of everything the store keeps.

A stage is described by plain JSON. Its key is a digest of that description without the parts named `unkeyed`, which
cannot change the result. The store can therefore derive every key again from a stage.json, without any plugin.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

SCHEME = 2
"""How keys are derived. A change renames every result, so it never changes after 0.1."""

KINDS = ("prerequisite", "coreset", "predict", "score")
KEY_LENGTH = 32
UNKEYED = "unkeyed"
"""The name of the parts of a description that stay out of its key."""
PLUGIN = "$plugin"
"""The name of the parts of a description that describe a configured plugin; they enter keys as digests."""

_KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")
_MEMBER = re.compile(r"[\w.~+-]+(/[\w.~+-]+)*")


def canonical(value: Any) -> str:
    """Return JSON that is equal for equal values: sorted keys, no spaces, shortest floats, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON, shortened to 128 bits."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:KEY_LENGTH]


def stage_key(kind: str, body_version: int, description: Any, scheme: int = SCHEME) -> str:
    """Return the key of a stage: a digest of its kind, the version of its body, and its keyed description."""
    return digest([scheme, kind, body_version, keyed(description)])


def keyed(value: Any) -> Any:
    """Return a description as it enters a key: without its `unkeyed` parts, and with plugins as digests."""
    if isinstance(value, dict):
        return {
            name: digest(keyed(item)) if name == PLUGIN else keyed(item)
            for name, item in value.items()
            if name != UNKEYED
        }
    if isinstance(value, list | tuple):
        return [keyed(item) for item in value]
    return value


@dataclass(frozen=True, order=True)
class Address:
    """A key and a member of it: one committed folder of the store."""

    kind: str
    key: str
    member: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.key}@{self.member}"

    @property
    def stage(self) -> str:
        """The id of the stage that makes this member; the members of a prerequisite are stages of their own."""
        return str(self) if self.kind == "prerequisite" else f"{self.kind}:{self.key}"

    @property
    def folder(self) -> str:
        """The member as a folder's name; a comma stands for the slash."""
        return self.member.replace("/", ",")

    @property
    def proper(self) -> bool:
        """Whether kind, key and member have the form of an address, so that it names a folder inside the store."""
        parts = self.member.split("/")
        dots = any(part in (".", "..") for part in parts)
        return (
            self.kind in KINDS
            and _KEY.fullmatch(self.key) is not None
            and _MEMBER.fullmatch(self.member) is not None
            and not dots
        )

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read what `str` wrote."""
        head, _, member = text.partition("@")
        kind, _, key = head.partition(":")
        if not (kind and key and member):
            raise ValueError(f"not an address: {text!r}")
        return cls(kind, key, member)
