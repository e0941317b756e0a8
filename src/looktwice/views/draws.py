"""Random numbers by query: the same query draws the same numbers, whatever else is asked."""

import threading
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from looktwice.views.base import Floats, Question

Words = NDArray[np.uint64]


class _Thread(threading.local):
    """A source of bits per thread: creating one takes as long as drawing a small picture, unlike setting its state."""

    def __init__(self) -> None:
        self.bits = np.random.PCG64DXSM(0)


_thread = _Thread()


def words(questions: Sequence[Question], part: int, count: int) -> Words:
    """(n, count): 64 random bits each, for n questions about one view; `part` is the place in a chain, or 0.

    Picture, view, seed and part start a stream; the draw with index k owns its k-th stretch of `count` words.
    """
    digest, view, seed, index = questions[0]
    if any(each[2:] != (seed, index + place) for place, each in enumerate(questions)):  # stretches are not in a row
        return np.concatenate([words([question], part, count) for question in questions])
    key = blake2b(f"{digest} {view.text} {seed} {part}".encode(), digest_size=32).digest()
    _thread.bits.state = {
        "bit_generator": "PCG64DXSM",
        "state": {"state": int.from_bytes(key[:16], "little"), "inc": int.from_bytes(key[16:], "little") | 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
    if index:
        _thread.bits.advance(index * count)
    return _thread.bits.random_raw(len(questions) * count).reshape(-1, count)


def uniforms(questions: Sequence[Question], part: int) -> Floats:
    """(n, 4): numbers uniform in [0, 1), each of the upper 53 bits of one of the `words`."""
    return np.asarray((words(questions, part, 4) >> np.uint64(11)) * 2.0**-53, np.float64)
