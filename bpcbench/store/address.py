"""Keys and addresses: the exact name of everything the store keeps."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

SCHEME = 1
"""Changes when keys are computed differently; every result then has a new name."""

KEY_LENGTH = 32


def canonical(value: Any) -> str:
    """Return JSON that is equal for equal values: sorted keys, no spaces, shortest floats, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON, shortened to 128 bits."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:KEY_LENGTH]


@dataclass(frozen=True, order=True)
class Address:
    """A key and a member of it: one committed folder of the store."""

    kind: str
    key: str
    member: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.key}@{self.member}"

    @property
    def folder(self) -> str:
        """The member as a folder's name; a comma stands for the slash."""
        return self.member.replace("/", ",")

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read what `str` wrote."""
        head, _, member = text.partition("@")
        kind, _, key = head.partition(":")
        if not (kind and key and member):
            raise ValueError(f"not an address: {text!r}")
        return cls(kind, key, member)
