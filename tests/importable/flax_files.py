"""Checkpoints as flax writes them: an encoder that shares nothing with the decoder."""

from __future__ import annotations

import struct
from typing import Any


def packed(value: Any) -> bytes:
    """Encode like flax: an independent encoder of the few types that it writes."""
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(packed(k) + packed(v) for k, v in value.items())
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(packed, value))
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value)]) + value.encode()
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, int):
        return b"\xce" + struct.pack(">I", value)
    body = packed([list(value.shape), value.dtype.name, value.tobytes()])
    return b"\xc9" + struct.pack(">Ib", len(body), 1) + body
