"""Chance that belongs to a question: a hash of it, so that the same question always draws the same numbers."""

import threading
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from secondlook.views.families import Floats
from secondlook.views.panels import Question

Words = NDArray[np.uint64]


def words(questions: Sequence[Question], part: int) -> Words:
    """(n, 4): 256 random bits for each draw of one view; `part` is the place in a chain, or 0."""
    first = questions[0]
    keys = {
        seed: blake2b(f"{first.digest} {first.view} {seed} {part}".encode(), digest_size=32).digest()
        for seed in {question.seed for question in questions}
    }
    rows = [
        blake2b(keys[question.seed] + question.index.to_bytes(8, "little"), digest_size=32).digest()
        for question in questions
    ]
    return np.frombuffer(b"".join(rows), np.uint64).reshape(-1, 4)


def uniforms(questions: Sequence[Question], part: int) -> Floats:
    """(n, 4): numbers uniform in [0, 1), as `words`."""
    return np.multiply(words(questions, part) >> np.uint64(11), 2.0**-53, dtype=np.float64)


class _Bits(threading.local):
    """A generator for each thread: making one takes as long as drawing a small picture, setting its state does not."""

    def __init__(self) -> None:
        self.generator = np.random.SFC64(0)


_bits = _Bits()


def numbers(seed: Words, count: int) -> NDArray[np.uint16]:
    """(count,): 16-bit numbers, all equally likely, that depend on the four words of the seed alone."""
    generator = _bits.generator
    generator.state = {"bit_generator": "SFC64", "state": {"state": seed}, "has_uint32": 0, "uinteger": 0}
    return generator.random_raw(-(-count // 4)).view(np.uint16)[:count]
