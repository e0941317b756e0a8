"""What comes from outside gives an answer or an error of our own tree: a moment of fuzzing, and every fault once found.

`make fuzz` does the same for longer, guided by what the code does with the bytes.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.fuzzing import TARGETS, kept, spoilt

KEPT = [(name, path) for name in TARGETS for path in kept(name)]
TRIES = 100
"""For each target, the same ones every time; what they find is added to the corpus."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_what_usually_comes_is_taken_and_what_is_spoilt_does_no_harm(name: str) -> None:
    target, dice = TARGETS[name], random.Random(name)
    seeds = target.seeds()
    for seed in seeds:
        target(seed)
    for _ in range(TRIES):
        data = spoilt(dice.choice(seeds), dice)
        try:
            target(data)
        except Exception as fault:
            raise AssertionError(f"{name} took {data[:2000]!r} for {fault!r}") from fault


@pytest.mark.parametrize(("name", "path"), KEPT, ids=[f"{name}-{path.name}" for name, path in KEPT])
def test_faults_once_found_stay_mended(name: str, path: Path) -> None:
    TARGETS[name](path.read_bytes())


def test_the_corpus_belongs_to_known_targets() -> None:
    from support.fuzzing import CORPUS

    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
