"""Which pictures next, to whom, and which labels are offered."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from looktwice.labelling.session import BUTTONS, FEWEST, LEASE, Queue, options, shuffled

NAMES = [f"{number}.png" for number in range(8)]
WORDS = [f"word {number}" for number in range(40)]


def test_the_order_is_random_and_the_same_each_time() -> None:
    assert shuffled(NAMES) == shuffled(NAMES) != NAMES
    assert sorted(shuffled(NAMES)) == NAMES
    firsts = Counter(shuffled(NAMES, seed)[0] for seed in range(4000))
    assert all(400 < firsts[name] < 600 for name in NAMES)


def test_a_window_keeps_its_pictures_and_others_get_others() -> None:
    queue = Queue(NAMES)
    assert queue.next("a", set(), set(), 3) == NAMES[:3]
    assert queue.next("b", set(), set(), 3) == NAMES[3:6]
    assert queue.next("a", {NAMES[0]}, set(), 3) == [NAMES[1], NAMES[2], NAMES[6]]
    assert queue.next("c", {NAMES[0]}, set(), 3) == [NAMES[7]]
    assert queue.next("d", {NAMES[0]}, set(), 3) == []


def test_pictures_of_a_window_that_is_gone_come_to_others_after_a_while() -> None:
    now = 0.0
    queue = Queue(NAMES, lambda: now)
    assert queue.next("a", set(), set(), 4) == NAMES[:4]
    now = LEASE - 1
    assert queue.next("b", set(), set(), 8) == NAMES[4:]
    now = LEASE + 1
    assert set(queue.next("b", set(), set(), 8)) == set(NAMES)


def test_what_was_skipped_comes_last_and_what_was_taken_back_first() -> None:
    queue = Queue(NAMES)
    queue.next("a", set(), set(), 2)
    assert queue.next("a", set(), {NAMES[0]}, 8) == [*NAMES[1:], NAMES[0]]
    queue.put_back("a", NAMES[5])
    assert queue.next("a", set(), set(), 2)[0] == NAMES[5]
    assert queue.ahead({NAMES[0]}, 2) == NAMES[1:3]


def test_a_small_vocabulary_is_offered_whole_and_always_in_one_order() -> None:
    assert options("digest", ["b"], ["a", "C", "b"]) == ["a", "b", "C"]


@given(st.text("0123456789abcdef", min_size=32, max_size=32), st.lists(st.sampled_from(WORDS), max_size=17))
def test_of_a_large_one_what_was_named_is_offered_among_others(digest: str, named: list[str]) -> None:
    offered = options(digest, named, WORDS)
    assert FEWEST <= len(offered) == len(set(offered)) <= BUTTONS
    assert set(offered) >= set(list(dict.fromkeys(named))[:BUTTONS])
    assert offered == options(digest, named[::-1], WORDS) or len(set(named)) > BUTTONS


def test_the_place_of_a_button_does_not_tell_who_said_it() -> None:
    places = Counter(options(f"{digest:032x}", ["word 7"], WORDS).index("word 7") for digest in range(5000))
    assert all(850 < places[place] < 1150 for place in range(FEWEST))
