"""The page says what was computed, shows what it should, lets nothing in or out, and stays small."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from support.errors import code_in, coded
from support.two_vendors import drawn, two_vendors
from support.workshop import call, run

from looktwice import Model
from looktwice.calibration import crossfit, risk, storage, votes
from looktwice.calibration.calibrators import Calibrator, dump
from looktwice.calibration.confusion import Confusion
from looktwice.calibration.evidence import MISSING
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import Gaussian, Isotonic, Naive, Probit
from looktwice.calibration.votes import Votes
from looktwice.classifiers.python import PythonClassifier
from looktwice.decisions import evaluation, fitting, planning
from looktwice.decisions.collecting import Collected
from looktwice.decisions.policy import ClaimTest, Policy
from looktwice.decisions.profile import Profile
from looktwice.errors import DataError, ImageError
from looktwice.images.collection import Picture, find
from looktwice.images.image import Image, WorkingSize, encode_png
from looktwice.report import ReportInputs, findings, gallery, page, write
from looktwice.report.inputs import described, judge, weigh
from looktwice.views import Panel

PANEL = "mirror zoom:1.15 turn:-8 turn:8"
ANIMALS = ("ant", "bee", "cat", "dog", "eel")
HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "</style><svg onload=alert(3)>",
    "{{ 7 * 7 }} & 'quoted'",
    "https://example.com/?a=1&b=2",
)


@dataclass(frozen=True)
class Noise:
    """Pictures of noise, as hard to compress as pictures can be; those whose name says so are broken."""

    side: int

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        if "broken" in name:
            raise ImageError(f"{name}: broken or cut off")
        rng = np.random.default_rng(abs(hash(name)) % 2**32)
        return Image.from_array(rng.integers(0, 256, (self.side, self.side * 2, 3), np.uint8))


def collected(
    count: int, labels: Sequence[str] = ANIMALS, panel: str = PANEL, seed: int = 0, ease: float = 3, prefix: str = "p"
) -> Collected:
    """Answers of a classifier that is the more often wrong the harder the picture, and of its views, likewise."""
    rng, views = np.random.default_rng(seed), Panel.parse(panel)
    truth, hard = rng.integers(0, len(labels), count), rng.beta(1, ease, count)

    def say() -> votes.Codes:
        other = (truth + rng.integers(1, len(labels), count)) % len(labels)
        return np.where(rng.random(count) < hard, other, truth).astype(np.int32)

    asked = np.stack([say() for _ in views], axis=1) if len(views) else np.empty((count, 0), np.int32)
    names, words = tuple(f"{prefix}{i}.png" for i in range(count)), tuple(map(str, views))
    digests = tuple(f"{seed:04x}{i:08x}" * 5 for i in range(count))
    said = Votes(names, words, tuple(labels), say(), asked, len(labels), digests=digests)
    return Collected(said.labelled(labels[i] for i in truth), (), views, "test:1", 0)


def bare(told: Votes) -> Votes:
    """The same votes without their truths."""
    return Votes(told.names, told.panel, told.vocabulary, told.base, told.views, told.classes)


def profiled(taught: Collected, calibrator: Calibrator | None = None, description: str = "python:zoo:label") -> Profile:
    return fitting.learn(taught, calibrator or Jury(), description)


def inputs(tested: Collected, profile: Profile, **more: object) -> ReportInputs:
    return replace(ReportInputs(profile, tested.votes), **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def profile() -> Profile:
    return profiled(collected(400, seed=1))


@pytest.fixture(scope="module")
def tested() -> Collected:
    return collected(600, seed=2)


@pytest.fixture(scope="module")
def read(profile: Profile, tested: Collected) -> Read:
    """The page about the tested pictures."""
    return Read(page(inputs(tested, profile)))


VOID = {"meta", "img", "br", "wbr"}


class Read(HTMLParser):
    """A page as a reader has it: tags and attributes, text, and each table by the name of its region."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.text = ""
        self._open: list[str] = []
        self._region = ""
        self.feed(html)
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        given = dict(attrs)
        if given.get("role") == "region":
            self._region = str(given["aria-label"])
            self.tables[self._region] = []
        if tag == "tr":
            self.tables[self._region].append([])
        if tag in ("td", "th"):
            self.tables[self._region][-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.text += data
        if {"td", "th"} & set(self._open):
            self.tables[self._region][-1][-1] += data

    def row(self, table: str, first: str) -> list[str]:
        return next(row for row in self.tables[table] if row[0] == first)


def near(text: str) -> str:
    """A text with plain spaces."""
    return " ".join(text.split())


# The numbers


@pytest.mark.slow
def test_the_table_holds_the_figures_and_intervals_that_assess_computes(profile: Profile, tested: Collected) -> None:
    read = Read(page(inputs(tested, profile, results=())))
    for result in evaluation.evaluate(tested, profile, Policy.full_panel(profile)).results:
        cells = read.row("Figures", result.calibrator)
        assert cells[1] == str(result.queries)
        for cell, key in zip(cells[2:], ("accuracy", "ece", "auroc", "brier", "nll"), strict=True):
            figure = result.figures[key]
            assert cell == f"{figure.value:.3f}{figure.low:.3f} to {figure.high:.3f}"


@pytest.mark.slow
def test_the_headline_is_the_threshold_that_look_and_score_use(profile: Profile, tested: Collected) -> None:
    outcome = crossfit.outcome(profile.restored_calibrator(), tested.labelled())
    threshold = profile.held_out.threshold(0.1)
    assert threshold is not None
    kept = outcome.confidence >= threshold
    assert (~outcome.correct[kept]).mean() <= 0.1, "the pictures bear it out"
    text = near(Read(page(inputs(tested, profile, max_error=0.1))).text)
    said = re.search(r"Accept above (0\.\d+): at most 10 % wrong", text)
    assert said is not None
    assert threshold <= float(said[1]) < threshold + 0.001
    assert f"{100 * kept.mean():.1f} %" in text
    assert f"{100 * (~outcome.correct[kept]).mean():.1f} %" in text


@pytest.mark.slow
def test_every_guarantee_of_the_table_is_one_that_can_be_made(profile: Profile, tested: Collected, read: Read) -> None:
    outcome = crossfit.outcome(profile.restored_calibrator(), tested.labelled())
    table = read.tables["Guarantees"]
    assert [row[0].split()[0] for row in table[1:]] == ["1", "2", "5", "10", "20"]
    for row in table[1:]:
        error = float(row[0].split()[0]) / 100
        level = 0.95 if error == planning.MAX_ERROR else 0.99
        threshold = risk.threshold(outcome.confidence, outcome.correct, error, level)
        assert (threshold is None) == (len(row) == 2)
        if threshold:
            assert float(row[1]) == pytest.approx(threshold, abs=1e-3)
            assert near(row[2]) == f"{100 * (outcome.confidence >= threshold).mean():.1f} %"


def test_too_few_labels_are_said_with_how_many_it_takes(profile: Profile) -> None:
    few = collected(60, seed=3, ease=60)
    outcome = crossfit.outcome(profile.restored_calibrator(), few.labelled())
    answers = risk.Answers.unnamed(outcome.confidence, outcome.correct)
    missing = planning.missing_labels([ClaimTest([risk.Claim(0.02)], answers, 0.95)])
    assert missing
    expected = risk.estimate(outcome.confidence, outcome.correct, 0.02)
    assert expected is not None
    text = near(Read(page(inputs(few, profile, max_error=0.02))).text)
    assert f"{100 * expected.accepted:.1f} %" in text
    assert f"{missing:,} more" in text


def test_the_profiles_guarantee_leads_where_the_pictures_bear_it_out_but_are_too_few(profile: Profile) -> None:
    few = collected(40, seed=3, ease=60)
    outcome = crossfit.outcome(profile.restored_calibrator(), few.labelled())
    assert risk.threshold(outcome.confidence, outcome.correct, 0.1) is None
    threshold = profile.threshold(0.1)
    assert threshold is not None
    kept = outcome.confidence >= threshold
    assert (~outcome.correct[kept]).mean() <= 0.1
    text = near(Read(page(inputs(few, profile, max_error=0.1))).text)
    said = re.search(r"Accept above (0\.\d+): at most 10 % wrong", text)
    assert said is not None
    assert threshold <= float(said[1]) < threshold + 0.001
    assert f"{100 * kept.mean():.1f} %" in text
    assert "40 pictures" in text


def test_a_guarantee_that_the_pictures_contradict_does_not_lead(profile: Profile) -> None:
    poor = collected(60, seed=4, ease=0.7)
    outcome = crossfit.outcome(profile.restored_calibrator(), poor.labelled())
    threshold = profile.threshold(0.1)
    assert threshold is not None
    assert (~outcome.correct[outcome.confidence >= threshold]).mean() > 0.1
    assert "Accept above" not in near(Read(page(inputs(poor, profile, max_error=0.1))).text)


@pytest.mark.slow
def test_a_guarantee_that_no_number_of_labels_makes_is_out_of_reach(profile: Profile) -> None:
    poor = collected(400, seed=4, ease=0.7)
    text = near(Read(page(inputs(poor, profile, max_error=0.01))).text)
    assert "Best estimate" in text


@pytest.mark.slow
def test_the_profiles_own_guarantee_is_held_against_new_pictures(profile: Profile, tested: Collected) -> None:
    threshold = profile.threshold(0.1)
    assert threshold is not None
    confidence = profile.restored_calibrator().confidence(tested.votes)
    text = near(Read(page(inputs(tested, profile, max_error=0.1))).text)
    assert f"{100 * (confidence >= threshold).mean():.1f} %" in text


@pytest.mark.slow
def test_pictures_that_taught_are_judged_by_calibrators_that_have_not_seen_them() -> None:
    taught = collected(300, seed=5)
    for calibrator in (Jury(), Probit()):
        profile = profiled(taught, calibrator)
        judged = judge(inputs(taught, profile))
        assert judged is not None
        assert judged.taught
        np.testing.assert_allclose(judged.confidence, profile.held_out.confidence, atol=1e-3)
        assert not np.allclose(judged.confidence, profile.restored_calibrator().confidence(taught.votes), atol=1e-3)
        evidence = weigh(inputs(taught, profile), judged)
        assert evidence.source.startswith("300 pictures")


@pytest.mark.slow
def test_votes_that_list_the_labels_in_another_order_are_judged_alike() -> None:
    profile = profiled(biased := collected(600, seed=1))
    table = Confusion(9, ((0, 1, 90), (1, 1, 30)), (1, 5), (1.0, 1.0, 0.5))
    leaning = replace(Jury().fit(biased.labelled()), confusion=table)
    profile = profile.model_copy(update={"calibrator": dump(leaning)})
    told = collected(200, seed=2)
    backwards = told.votes.recoded(ANIMALS[::-1])
    expected, judged = judge(inputs(told, profile)), judge(ReportInputs(profile, backwards))
    assert backwards.vocabulary == tuple(ANIMALS[::-1])
    assert expected is not None
    assert judged is not None
    np.testing.assert_allclose(judged.confidence, expected.confidence)


@pytest.mark.slow
def test_pictures_on_which_the_views_were_chosen_are_not_judged() -> None:
    taught = collected(400, seed=6)
    profile = fitting.learn(taught, Jury(), "python:zoo:label", n_selection=100)
    judged = judge(inputs(taught, profile))
    assert judged is not None
    assert judged.taught
    labelled = judged.labelled()
    assert labelled is not None
    assert labelled.names == taught.votes.names[100:]
    assert labelled.words == taught.labelled().words[100:]


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", [Jury(), Probit(), Gaussian()])
def test_as_many_other_pictures_are_not_taken_for_those_that_taught(calibrator: Calibrator) -> None:
    judged = judge(inputs(collected(200, seed=7), profiled(collected(200, seed=1), calibrator)))
    assert judged is not None
    assert not judged.taught


def test_what_more_queries_bring_is_the_curve_of_the_profile(profile: Profile, read: Read) -> None:
    table = read.tables["Queries"]
    assert [row[0] for row in table[1:]] == ["1", "2", "3", "4", "5"]
    assert [row[4] for row in table[1:]] == [f"{point.figures['brier'].value:.3f}" for point in profile.curve]
    enough = findings.enough(profile.curve)
    assert enough is not None
    assert 1 < enough.queries < 5
    assert findings.enough(profile.curve[::-1]) is None


def test_the_draws_of_a_view_are_shown_together() -> None:
    long = collected(60, panel="rotation:20*40", seed=9)
    profile = profiled(collected(60, panel="rotation:20*40", seed=10), Isotonic())
    table = Read(page(inputs(long, profile))).tables["Views"]
    assert len(table) == 3
    assert "rotation:20 × 40" in table[2][1]


def test_the_weights_on_the_page_are_the_jurys(profile: Profile, tested: Collected, read: Read) -> None:
    jury = profile.restored_calibrator()
    assert isinstance(jury, Jury)
    table = read.tables["Views"]
    weights = [re.search(r"weight (-?\d+\.\d+)", row[2]) for row in table[1:]]
    assert [match and match[1] for match in weights] == [f"{weight:.2f}" for weight in jury.weights]
    keeps = [(tested.votes.views[:, s] == tested.votes.base).mean() for s in range(4)]
    assert [near(row[3]) for row in table[2:]] == [f"{100 * share:.1f} %" for share in keeps]


def test_classes_are_counted_by_hand_and_the_surely_poor_come_first() -> None:
    base = np.array([0] * 50 + [1] * 30 + [0] * 20 + [2] * 4, np.int32)
    truths = ("ant",) * 50 + ("bee",) * 50 + ("cow",) * 4
    said = Votes(tuple(map(str, range(104))), ("mirror",), ("ant", "bee", "cat"), base, base[:, None], 4)
    polled_zoo = Collected(said.labelled(truths), (), Panel.parse("mirror"), "test:1", 0)
    read = Read(page(inputs(polled_zoo, profiled(polled_zoo, Probit()))))
    assert [row[0] for row in read.tables["Classes"][1:]] == ["cow", "bee", "ant"]
    cow, bee, ant = read.tables["Classes"][1:]
    assert near(cow[2]).startswith("0.0 %")
    assert cow[6] == "cat (4)"
    assert near(bee[2]).startswith("60.0 %")
    assert (bee[1], bee[3], bee[6]) == ("50", "30", "ant (20)")
    assert near(bee[4]) == "100.0 %"
    assert (ant[3], near(ant[4])) == ("70", "71.4 %")


def test_many_classes_are_cut_to_the_worst() -> None:
    zoo = collected(600, labels=[f"animal {i}" for i in range(50)], seed=11)
    read = Read(page(inputs(zoo, profiled(zoo, Naive()))))
    assert len(read.tables["Classes"]) == 1 + findings.CLASSES
    assert "30 more" in near(read.text)


# The pictures


def shots(tested: Collected, side: int = 40) -> list[Picture]:
    return [Picture(name, None, Noise(side)) for name in tested.votes.names]


def test_the_galleries_show_the_doubtful_the_wrong_and_the_rescued(profile: Profile, tested: Collected) -> None:
    judged = judge(inputs(tested, profile))
    assert judged is not None
    assert judged.correct is not None
    doubtful, wrong, rescued = gallery.galleries(judged, shots(tested), {}, 0.01)
    confidence = sorted(judged.confidence.tolist())
    assert [card.confidence for card in doubtful.cards] == confidence[: gallery.CARDS]
    assert all(card.right is False and card.truth != card.label for card in wrong.cards)
    assert wrong.cards[0].confidence == judged.confidence[~judged.correct].max()
    assert wrong.total == (~judged.correct).sum()
    assert all(card.right and card.base != card.label == card.truth for card in rescued.cards)
    assert all(card.thumbnail for card in doubtful.cards)


def test_a_picture_that_is_broken_or_missing_is_named_instead(profile: Profile) -> None:
    test = collected(60, seed=12, prefix="broken")
    html = page(inputs(test, profile, pictures=shots(test)[:30]))
    assert '<div class="none"><bdi>broken' in html


def test_a_thumbnail_of_a_small_picture_is_the_picture() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (28, 20, 3), np.uint8)
    shown = gallery.thumbnail(pixels)
    assert (shown.width, shown.height, shown.small) == (20, 28, True)
    np.testing.assert_array_equal(decoded(shown.uri), pixels)


@pytest.mark.parametrize("shape", [(1000, 3000, 3), (2000, 10, 3), (65, 65, 3)])
def test_a_thumbnail_of_a_large_picture_is_small_and_keeps_its_shape(shape: tuple[int, int, int]) -> None:
    shown = gallery.thumbnail(np.full(shape, 90, np.uint8))
    assert max(shown.width, shown.height) <= gallery.SIDE
    assert decoded(shown.uri).shape == (shown.height, shown.width, 3)
    assert not shown.small
    assert len(shown.uri) < 20_000


def decoded(uri: str) -> NDArray[np.uint8]:
    data = np.frombuffer(base64.b64decode(uri.partition("base64,")[2]), np.uint8)
    picture = cv2.imdecode(data, cv2.IMREAD_COLOR)
    assert picture is not None
    return np.asarray(picture[:, :, ::-1], np.uint8)


def test_the_sample_shows_what_each_view_does(profile: Profile, tested: Collected) -> None:
    pictures = shots(tested, side=30)
    rows = gallery.panel(Policy.full_panel(profile), profile.seed, None, gallery.sample(pictures))
    before, mirrored = (decoded(row.thumbnails[0].uri) for row in rows[:2])
    np.testing.assert_array_equal(mirrored, before[:, ::-1])


# What may be missing


def test_a_profile_alone_makes_a_page(profile: Profile) -> None:
    read = Read(page(ReportInputs(profile)))
    assert read.row("Figures", "jury")[5].startswith(f"{profile.results[2].figures['brier'].value:.3f}")
    assert "Classes" not in read.tables
    assert len(read.tables["Queries"]) == 1 + len(profile.curve)
    assert "400 pictures" in near(read.text)


def test_without_truths_guarantees_rest_on_the_profile_and_shares_are_of_these_pictures(
    profile: Profile, tested: Collected
) -> None:
    threshold = profile.threshold(0.1)
    assert threshold is not None
    confidence = profile.restored_calibrator().confidence(tested.votes)
    read = Read(page(inputs(tested, profile, votes=bare(tested.votes), max_error=0.1)))
    assert near(read.row("Guarantees", "10\N{NO-BREAK SPACE}%")[2]) == f"{100 * (confidence >= threshold).mean():.1f} %"
    assert "Most doubtful" in read.text
    assert "Confidently wrong" not in read.text
    assert "Classes" not in read.tables
    assert "600 pictures" in near(read.text)


@pytest.mark.parametrize("calibrator", [Naive(), Probit()])
def test_calibrators_without_weights_have_a_page(calibrator: Calibrator, tested: Collected) -> None:
    assert "Queries" not in Read(page(inputs(tested, profiled(collected(100, seed=13), calibrator)))).tables


def test_a_panel_without_views_has_a_page() -> None:
    bare = collected(100, panel="", seed=14)
    assert Read(page(inputs(bare, profiled(bare, Probit())))).tables["Figures"]


@pytest.mark.slow
def test_votes_that_stopped_early_are_believed_as_the_practice_says(profile: Profile, tested: Collected) -> None:
    views = tested.votes.views.copy()
    views[::2, 2:] = MISSING
    early = replace(tested, votes=replace(tested.votes, views=views))
    policy = Policy.usual(profile)
    judged = judge(inputs(early, profile, policy=policy))
    assert judged is not None
    np.testing.assert_array_equal(judged.confidence, policy.calibrator.confidence(early.votes))
    evidence = weigh(inputs(early, profile, policy=policy), judged)
    assert evidence.believed.queries == pytest.approx(4.0)
    text = near(Read(page(inputs(early, profile, policy=policy))).text)
    assert f"{600 + 600 * 4 - 300 * 2:,} queries" in text


def test_votes_of_more_views_than_the_profile_asks_are_cut(profile: Profile) -> None:
    longer = collected(100, panel=f"{PANEL} blur:1", seed=20)
    judged = judge(inputs(longer, profile))
    assert judged is not None
    assert judged.votes.panel == longer.votes.panel[:4]


@pytest.mark.slow
def test_stopping_early_is_shown_by_held_out_results_on_the_pictures_that_taught_it() -> None:
    taught = collected(200, seed=21)
    profile = profiled(taught)
    policy = Policy.usual(profile)
    judged = judge(inputs(taught, profile, policy=policy))
    assert judged is not None
    assert judged.taught
    assert judged.confidence.tolist() == list(policy.held_out.confidence)


def test_pictures_without_any_answer_are_left_out_of_the_page() -> None:
    told = collected(200, seed=22)
    base, views = told.votes.base.copy(), told.votes.views.copy()
    base[:3], views[:3] = MISSING, MISSING
    silent = replace(told, votes=replace(told.votes, base=base, views=views))
    shown = Read(page(inputs(silent, profiled(collected(200, seed=23)))))
    assert sum(int(row[1]) for row in shown.tables["Classes"][1:]) == 197


@pytest.mark.slow
def test_what_does_not_fit_is_said(profile: Profile, tested: Collected) -> None:
    with pytest.raises(DataError, check=coded("votes-mismatch")):
        page(inputs(collected(60, panel="mirror blur:1"), profile))
    with pytest.raises(DataError, check=coded("votes-mismatch")):
        page(inputs(collected(60, labels=["oak", "elm", "ash"]), profile))
    with pytest.raises(DataError, check=coded("labels-unmatched")):
        page(inputs(tested, profile, votes=tested.votes.labelled(["oak"] * 600)))
    with pytest.raises(DataError, check=coded("pictures-none")):
        page(inputs(replace(tested, votes=tested.votes.take(slice(0, 0))), profile))
    with pytest.raises(DataError, check=coded("votes-mismatch")):
        page(inputs(tested, profile, pictures=[Picture("other0.png", None, Noise(9))]))
    with pytest.raises(DataError, check=coded("option-invalid")):
        page(inputs(tested, profile, max_error=2.0))


def test_a_place_that_cannot_be_written_is_one_line(profile: Profile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, check=coded("file-unwritable")):
        write(tmp_path / "file" / "report.html", ReportInputs(profile))
    write(tmp_path / "report.html", ReportInputs(profile))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "report.html"]


# Cost


@pytest.mark.slow
def test_a_price_gives_what_the_answers_and_more_queries_cost(profile: Profile, tested: Collected) -> None:
    read = Read(page(inputs(tested, profile, price_micros=2500)))
    text = near(read.text)
    assert all(figure in text for figure in ("3,000 queries", "7.50", "0.0025"))
    assert [row[5] for row in read.tables["Queries"][1:]] == ["2.50", "5.00", "7.50", "10.00", "12.50"]


def test_without_a_price_no_money_is_named(read: Read) -> None:
    assert "3,000 queries" in near(read.text)
    assert len(read.tables["Queries"][1]) == 5


# Nothing in, nothing out


@pytest.fixture(scope="module")
def hostile() -> str:
    """A page about labels, names, a classifier and a title that all want to be markup."""
    test = collected(300, labels=HOSTILE, seed=15, prefix="\"'<b>")
    names = tuple(f"{name}&amp;<img src=x onerror=alert(4)>" for name in test.votes.names)
    test = replace(test, votes=replace(test.votes, names=names))
    profile = profiled(
        collected(300, labels=HOSTILE, seed=16), description="https://api.example.com/'\"<script>x</script>"
    )
    return page(inputs(test, profile, pictures=shots(test), title="<script>t</script> & 'co'"))


@pytest.mark.slow
def test_labels_names_and_descriptions_stay_text(hostile: str) -> None:
    read = Read(hostile)
    assert "script" not in read.tags
    assert not [name for _, name, _ in read.attributes if name.startswith("on")]
    assert read.tags.count("style") == 1
    for label in HOSTILE:
        assert label in read.text
    assert {row[0] for row in read.tables["Classes"][1:]} == set(HOSTILE)
    assert "<script>t</script> & 'co'" in read.text
    assert "49" not in {row[0] for row in read.tables["Classes"]}


@pytest.mark.slow
def test_the_page_asks_a_browser_to_fetch_nothing(hostile: str) -> None:
    read = Read(hostile)
    links = [value for _, name, value in read.attributes if name in ("src", "href", "srcset", "data", "action")]
    assert links
    assert all(link.startswith(("data:image/", "#")) for link in links)
    assert not re.search(r"url\(|@import|<link|<iframe|<object|<base", hostile)
    policy = next(v for _, name, v in read.attributes if name == "content" and "default-src" in v)
    assert policy.startswith("default-src 'none'")
    anchors = {link[1:] for link in links if link.startswith("#")}
    assert anchors <= {value for _, name, value in read.attributes if name == "id"}


@pytest.mark.slow
def test_the_same_material_gives_the_same_bytes(profile: Profile, tested: Collected) -> None:
    assert page(inputs(tested, profile)) == page(inputs(tested, profile))


# Size


def test_a_report_about_10000_pictures_is_below_3_megabytes(profile: Profile, tmp_path: Path) -> None:
    many = collected(10_000, labels=[f"kind of animal number {i}" for i in range(1000)], seed=17)
    panel = "mirror zoom:1.15 turn:-8 turn:8"
    own = profiled(collected(400, labels=many.votes.vocabulary, panel=panel, seed=18))
    html = page(inputs(many, own, pictures=shots(many, side=300)))
    assert html.count("data:image/jpeg") > 30
    assert len(html.encode()) < 3_000_000
    (tmp_path / "report.html").write_text(html, "utf-8")
    assert console_errors(tmp_path / "report.html") == []


def console_errors(path: Path) -> list[str]:
    """What a browser complains about while it opens the page; nothing where no browser is installed."""
    browser = shutil.which("chromium")
    if browser is None:
        return []
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    quiet = ["--disable-component-update", "--enable-logging=stderr", f"--user-data-dir={path.parent / 'browser'}"]
    shot = f"--screenshot={path.with_suffix('.png')}"
    done = subprocess.run(
        [browser, *flags.split(), *quiet, shot, path.as_uri()], capture_output=True, text=True, timeout=60, check=False
    )
    assert path.with_suffix(".png").exists(), done.stderr
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
def test_a_report_about_50000_pictures_is_made(profile: Profile) -> None:
    many = collected(50_000, seed=19)
    html = page(inputs(many, profile, results=profile.results, pictures=shots(many)))
    assert "50,000 pictures" in near(html)
    assert len(html) < 1_000_000


# The command line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile of the embedded classifier and the votes that taught it."""
    folder, demo = tmp_path_factory.mktemp("folder"), Path(str(files("looktwice") / "demo"))
    views = ["--views", "mirror turn:8", "--votes", "taught.npz", "--ledger", "ledger.db", "--price", "0.001"]
    clothes = shutil.copy(demo / "pictures.npz", folder / "clothes.npz")
    done = run("fit", clothes, "--take", ":200", "-c", demo / "fashion.toml", *views, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_evaluate_writes_the_report_and_the_report_command_the_same_numbers(folder: Path) -> None:
    asking = ["--take", "200:400", "--votes", "votes.npz", "--ledger", "ledger.db", "--price", "0.001"]
    done = run("evaluate", "clothes.npz", *asking, "--report", "first.html", "--max-error", "0.2", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Report: first.html" in done.stderr
    given = ["--votes", "votes.npz", "--pictures", "clothes.npz", "--price", "0.001", "--max-error", "0.2"]
    again = run("report", *given, "-o", "second.html", cwd=folder)
    assert again.returncode == 0, again.stderr
    first, second = (Read((folder / name).read_text("utf-8")) for name in ("first.html", "second.html"))
    assert first.tables == second.tables
    saved = storage.load(folder / "votes.npz")
    asked = len(saved) + int((saved.views != votes.MISSING).sum())
    assert 200 < asked <= 600
    assert all(figure in near(first.text) for figure in (f"{asked} queries", f"{asked / 1000:.4f}", "0.0010"))
    assert "clothes.npz#" in first.text


def test_fit_reports_on_the_pictures_it_did_not_choose_on(folder: Path) -> None:
    toml = str(files("looktwice") / "demo" / "fashion.toml")
    given = ["--take", ":260", "-c", toml, "-o", "fitted.json", "--report", "fitted.html"]
    done = run("fit", "clothes.npz", *given, cwd=folder)
    assert done.returncode == 0, done.stderr
    judged = len(Profile.load(folder / "fitted.json").held_out.confidence)
    assert judged < 260
    read = Read((folder / "fitted.html").read_text("utf-8"))
    assert f"{judged} pictures" in near(read.text)
    assert sum(int(row[1]) for row in read.tables["Classes"][1:]) == judged


@pytest.mark.parametrize("dear", [0.0011, 0.01], ids=["the second alone", "the second where the first doubts"])
def test_the_screen_json_and_the_report_say_the_same_of_two_classifiers(tmp_path: Path, dear: float) -> None:
    images, truths = drawn(150, seed=5)
    for number, (image, truth) in enumerate(zip(images, truths, strict=True)):
        (tmp_path / "labelled" / truth).mkdir(parents=True, exist_ok=True)
        (tmp_path / "labelled" / truth / f"{number}.png").write_bytes(encode_png(image))
    prices = {"cheap": 0.001, "dear": dear}
    with two_vendors() as vendors:
        both = [word for name, price in prices.items() for word in ("-c", vendors.describe(tmp_path, name, price))]
        words = ("fit", tmp_path / "labelled", *both, "--views", "base", "--ledger", tmp_path / "ledger.db")
        words = (*words, "-o", tmp_path / "profile.json", "--votes", tmp_path / "votes.npz")
        words = (*words, "--max-price", (1.05 if dear < 0.01 else 0.8) * dear)
        plain = call(*words, "--report", tmp_path / "fit.html")
        json_told = json.loads(call(*words, "--json").stdout)
    profile, read = Profile.load(tmp_path / "profile.json"), Read((tmp_path / "fit.html").read_text("utf-8"))
    alone = dear < 0.01
    assert (profile.name, bool(profile.others)) == (("dear", False) if alone else ("cheap", True))
    text, results = near(read.text), json_told["results"]
    assert [row[0] for row in read.tables["Figures"][1:]] == [each["calibrator"] for each in results]
    for row, result in zip(read.tables["Figures"][1:], results, strict=True):
        accuracy = f"{result['figures']['accuracy']['value']:.3f}"
        assert row[2].startswith(accuracy)
        assert accuracy in plain.stdout
    guarantee = json_told["guarantee"]
    error, accepted = f"{100 * guarantee['max_error']:g} %", 100 * guarantee["accepted"]
    assert re.search(rf"\b{error} .*\b{accepted:.0f} %", plain.stderr)
    (row,) = (row for row in read.tables["Guarantees"][1:] if row[0].replace("\xa0", " ") == error)
    assert near(row[2]) == f"{accepted:.1f} %"
    asked = {profile.name: 150, **{other.name: 150 for other in profile.others}}
    cost = sum(count * prices[name] for name, count in asked.items())
    money = f"{cost:,.2f}" if cost >= 1 else f"{cost:,.4f}"
    assert re.search(rf"\b{sum(asked.values())} .*\b{money}", text)
    assert sum(int(row[1]) for row in read.tables["Classes"][1:]) == 150
    given = ("--votes", tmp_path / "votes.npz", "-p", tmp_path / "profile.json", "--price", prices[profile.name])
    again = call("report", *given, "-o", tmp_path / "again.html")
    assert again.returncode == 0, again.stderr
    second = Read((tmp_path / "again.html").read_text("utf-8"))
    assert {name: table for name, table in second.tables.items() if name != "Views"} == {
        name: table for name, table in read.tables.items() if name != "Views"
    }


def test_truths_are_taken_from_the_pictures_where_the_votes_have_none(folder: Path) -> None:
    storage.save(folder / "bare.npz", bare(storage.load(folder / "taught.npz")))
    done = run("report", "--votes", "bare.npz", "--pictures", "clothes.npz", "--all", "-o", "bare.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Classes" in Read((folder / "bare.html").read_text("utf-8")).tables


@pytest.mark.parametrize("side", [32, 1024], ids=["scaled down", "as they are"])
def test_pictures_are_described_at_the_size_at_which_they_were_asked_about(tmp_path: Path, side: int) -> None:
    rng, labels = np.random.default_rng(0), ["dark", "bright"] * 20
    for name, label in enumerate(labels):
        pixels = rng.integers(0, 256, (48, 64, 3)) // 2 + 127 * (label == "bright")
        (tmp_path / f"{name:02}.png").write_bytes(encode_png(pixels.astype(np.uint8)))
    pictures = find([tmp_path])
    classifier = PythonClassifier(lambda image: "bright" if image.mean() > 127 else "dark", size=WorkingSize(long=side))
    with Model(classifier) as model:
        profile = model.fit(pictures, labels, views="mirror").profile
        asked = model.ask(pictures)
    descriptors = described(asked.votes, pictures, profile)
    assert descriptors.keys() == asked.descriptors.keys()
    assert all((descriptors[digest] == asked.descriptors[digest]).all() for digest in descriptors)


def test_votes_about_no_picture_are_no_report_without_votes(folder: Path) -> None:
    storage.save(folder / "empty.npz", storage.load(folder / "taught.npz").take(slice(0, 0)))
    done = run("report", "--votes", "empty.npz", "-o", "empty.html", cwd=folder)
    assert code_in(done.stderr) == "pictures-none"
    assert not (folder / "empty.html").exists()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("profile", "none.json", "there is no profile"),
        ("votes", "none.npz", "there is no votes file"),
        ("votes", "clothes.npz", "is not a looktwice votes file"),
        ("pictures", "none", "no such file or folder"),
        ("out", "profile.json/report.html", "there is no folder"),
    ],
)
def test_what_cannot_be_read_or_written_is_said(folder: Path, option: str, value: str, words: str) -> None:
    given = {"profile": "profile.json", "out": "report.html", option: value}
    done = call("report", *(part for name, path in given.items() for part in (f"--{name}", folder / path)))
    assert (done.returncode, words in done.stderr) == (1, True)


def test_an_error_is_one_line_and_an_exit_code(folder: Path) -> None:
    done = run("report", "--votes", "clothes.npz", cwd=folder)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert code_in(done.stderr) == "file-malformed"
