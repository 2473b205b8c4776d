"""Every random draw is a function of what it is for, not of how many draws came before.

So a resumed, re-ordered or re-batched run draws what it would have drawn. Philox (Salmon et al., SC 2011) is a
counter-based generator: a key made of a hash of the purpose is all its state.
"""

from __future__ import annotations

import hashlib

import numpy as np


def _digest(purpose: tuple[str | int, ...], size: int) -> bytes:
    return hashlib.blake2b(repr(purpose).encode(), digest_size=size).digest()


def uniforms(*purpose: str | int, count: int) -> np.ndarray:
    """float64[count] in [0, 1); the first ones do not depend on `count`."""
    key = np.frombuffer(_digest(purpose, 16), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def seed(*purpose: str | int) -> int:
    """A seed below 2**48 for generators that want one."""
    return int.from_bytes(_digest(purpose, 6), "big")
