"""Views through an open model: the figures are those of the definition, to the digit, and reach the calibrator."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri
from support.engines import engine_for
from support.errors import code_in, coded
from support.workshop import run

import looktwice
from looktwice.calibration import crossfit
from looktwice.calibration.calibrators import restore
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.latent import GRID, Reading
from looktwice.calibration.shares import Naive, Transfer
from looktwice.calibration.votes import Votes
from looktwice.classifiers.registry import connect
from looktwice.decisions import collecting
from looktwice.decisions.fitting import Transferred
from looktwice.decisions.noise import NoiseFile, Probe, fold, probe, probes
from looktwice.decisions.onnx_features import OnnxModel, open_onnx
from looktwice.decisions.profile import Profile
from looktwice.errors import DataError, ImageError, ViewError
from looktwice.images.collection import Picture, find, labelled
from looktwice.images.image import encode_jpeg
from looktwice.report.findings import drawn
from looktwice.views import Panel, View, parse, questions, render

DEMO = Path(looktwice.__file__).parent / "demo"
VIEWS = [parse("gaussian:0.1"), parse("rotation:20")]
DRAWS = 12
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def model() -> OnnxModel:
    return open_onnx(DEMO / "fashion.toml")


@pytest.fixture(scope="module")
def clothes() -> list[Picture]:
    return labelled(DEMO / "pictures.npz")[:24]


@pytest.fixture(scope="module")
def probed(model: OnnxModel, clothes: list[Picture]) -> list[Probe]:
    return [item for item in probes(model, clothes, VIEWS, DRAWS) if isinstance(item, Probe)]


def folded(probed: Iterable[Probe | ImageError], views: Sequence[View], draws: int) -> NoiseFile:
    return fold(probed, views, draws, open_onnx(DEMO / "fashion.toml"), "onnx:fashion.onnx")[0]


@pytest.fixture(scope="module")
def survey(probed: list[Probe]) -> NoiseFile:
    return folded(probed, VIEWS, DRAWS)


# The definition


def by_definition(model: OnnxModel, picture: Picture, view: str) -> tuple[Floats, float, int]:
    """Noise, margin and the number of views that kept the label, one view at a time."""
    image, head = picture.image(), model.head
    z = model.features([model.prepare(image.pixels)])[0]
    a, b = np.argsort(z @ head.W + head.b)[::-1][:2]
    w = head.W[:, a] - head.W[:, b]
    shown = render(image, questions(image, Panel.parse(f"{view}*{DRAWS}"), 0))
    features = np.array([model.features([model.prepare(pixels)])[0] for pixels in shown])
    kept = int(((features @ head.W + head.b).argmax(axis=1) == a).sum())
    return np.array([w @ (row - z) for row in features]), float(w @ z + head.b[a] - head.b[b]), kept


def test_every_figure_equals_a_slow_direct_computation(
    model: OnnxModel, clothes: list[Picture], survey: NoiseFile
) -> None:
    for view, measured in zip(VIEWS, survey.noises, strict=True):
        rows = [by_definition(model, picture, str(view)) for picture in clothes]
        noise, own = np.array([row[0] for row in rows]), expit(np.array([row[1] for row in rows]))
        share = np.array([row[2] for row in rows]) / DRAWS
        for samples, told in ((noise, measured.noise), (noise - noise.mean(axis=1, keepdims=True), measured.centred)):
            each = (samples[:, :, None] <= GRID).mean(axis=1)
            low, high = np.quantile(each, [0.025, 0.975], axis=0)
            assert told.var == pytest.approx(max(high - low), abs=1e-9)
            ks = max(abs(each.mean(axis=0) - ndtr(GRID / told.normal.a)))
            assert told.normal.ks == pytest.approx(ks, abs=1e-9)
            np.testing.assert_allclose(
                np.interp(GRID, told.cumulative.x, told.cumulative.f), each.mean(axis=0), atol=1e-6
            )
        assert measured.kept == pytest.approx(share.mean())
        transferred = expit(-measured.noise.cumulative.inverse(1 - share))
        gaussian = expit(measured.noise.normal.a * ndtri(share))
        assert measured.transfer_error == pytest.approx(np.sqrt(((transferred - own) ** 2).mean()), abs=1e-6)
        assert measured.gaussian_error == pytest.approx(np.sqrt(((gaussian - own) ** 2).mean()), abs=1e-6)


def test_the_open_model_is_shown_what_a_closed_one_would_be(
    clothes: list[Picture], probed: list[Probe], model: OnnxModel
) -> None:
    engine = engine_for(connect(DEMO / "fashion.toml"))
    collected = asyncio.run(collecting.collect(engine, clothes, Panel.parse(f"rotation:20*{DRAWS}")))
    assert collected.votes.base.tolist() == [item.readings[1].label for item in probed]
    assert collected.votes.views.tolist() == [item.readings[1].labels.tolist() for item in probed]


def test_a_photo_is_brought_to_the_working_size_first(model: OnnxModel, tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    (tmp_path / "photo.jpg").write_bytes(encode_jpeg(colours.repeat(20, 0).repeat(20, 1), 90))
    (photo,) = find([tmp_path / "photo.jpg"])
    collected = asyncio.run(
        collecting.collect(engine_for(connect(DEMO / "fashion.toml")), [photo], Panel.parse(f"rotation:20*{DRAWS}"))
    )
    (seen,) = probes(model, [photo], [parse("rotation:20")], DRAWS)
    assert isinstance(seen, Probe)
    assert collected.votes.views.tolist() == [seen.readings[0].labels.tolist()]
    small = photo.image(model.working_size)
    assert small.pixels.shape == (42, 56, 3)
    (reading,) = probe(model, small, [parse("rotation:20")], DRAWS, 0)
    assert seen.readings[0].noise.tolist() == reading.noise.tolist()


# The same to the digit


def test_the_figures_do_not_depend_on_the_order_of_the_pictures(
    model: OnnxModel, clothes: list[Picture], survey: NoiseFile
) -> None:
    assert folded(probes(model, clothes[::-1], VIEWS, DRAWS), VIEWS, DRAWS) == survey


def test_the_figures_of_a_view_do_not_depend_on_what_else_is_measured(
    model: OnnxModel, clothes: list[Picture], survey: NoiseFile
) -> None:
    alone = folded(probes(model, clothes, VIEWS[1:], DRAWS), VIEWS[1:], DRAWS)
    assert alone.noises == survey.noises[1:]


def test_another_seed_draws_other_views(model: OnnxModel, clothes: list[Picture], survey: NoiseFile) -> None:
    assert folded(probes(model, clothes, VIEWS, DRAWS, seed=1), VIEWS, DRAWS).noises != survey.noises


def test_large_pictures_are_rendered_a_few_at_a_time(
    model: OnnxModel, clothes: list[Picture], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = clothes[0].image()
    whole = probe(model, image, VIEWS, DRAWS, 0)
    monkeypatch.setattr("looktwice.decisions.noise.HELD_BYTES", 5 * image.pixels.nbytes)
    parts = probe(model, image, VIEWS, DRAWS, 0)
    assert [reading.noise.tolist() for reading in parts] == [reading.noise.tolist() for reading in whole]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_pictures() -> None:
    def peak(pictures: int) -> int:
        tracemalloc.start()
        folded(_invented(pictures), VIEWS[:1], DRAWS)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10)
    assert peak(600) < 1.1 * peak(30)


def _invented(pictures: int) -> Iterator[Probe]:
    rng = np.random.default_rng(0)
    for i in range(pictures):
        reading = Reading(0, float(rng.gamma(2.0)), rng.integers(0, 2, DRAWS), rng.normal(size=DRAWS))
        yield Probe(str(i), f"{i:032x}", (reading,))


# Pictures and views that do not serve


def test_a_picture_that_cannot_be_read_is_named_and_the_others_count(
    model: OnnxModel, clothes: list[Picture], tmp_path: Path
) -> None:
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    bad = find([tmp_path / "bad.png"])
    probed = probes(model, [*bad, *clothes[:3]], VIEWS, DRAWS)
    told, unread = fold(probed, VIEWS, DRAWS, model, "onnx:fashion.onnx")
    assert told.pictures == 3
    assert "bad.png" in str(unread[0])
    with pytest.raises(DataError, check=coded("pictures-none")):
        folded(probes(model, bad, VIEWS, DRAWS), VIEWS, DRAWS)
    with pytest.raises(DataError, check=coded("pictures-none")):
        folded([], VIEWS, DRAWS)


def test_a_view_that_does_nothing_is_named(model: OnnxModel, clothes: list[Picture]) -> None:
    still = [parse("gaussian:0")]
    with pytest.raises(DataError, check=coded("data-invalid")):
        folded(probes(model, clothes[:2], still, DRAWS), still, DRAWS)


@pytest.mark.parametrize(
    ("views", "draws", "code"), [("mirror", 5, "view-invalid"), ("gaussian:0.1", 1, "option-invalid")]
)
def test_only_random_views_make_noise(
    model: OnnxModel, clothes: list[Picture], views: str, draws: int, code: str
) -> None:
    with pytest.raises(ViewError, check=coded(code)):
        next(probes(model, clothes, [parse(views)], draws))


# The file


def kept(survey: NoiseFile, model: OnnxModel, path: Path) -> NoiseFile:
    survey.save(path)
    return survey


def test_a_noise_file_holds_all_of_it(survey: NoiseFile, model: OnnxModel, tmp_path: Path) -> None:
    file = kept(survey, model, tmp_path / "noise.json")
    assert NoiseFile.load(tmp_path / "noise.json") == file
    assert file.noises == survey.noises
    assert (file.fingerprint, file.pictures, file.draws) == (model.fingerprint, 24, DRAWS)


def test_a_noise_file_gives_the_cumulative_of_the_view_that_is_asked(
    survey: NoiseFile, model: OnnxModel, tmp_path: Path
) -> None:
    file = kept(survey, model, tmp_path / "noise.json")
    assert file.cumulative_for(Panel.parse("rotation:20*7")) == survey.noises[1].noise.cumulative
    for panel in ("rotation:30*7", "rotation:20*3 gaussian:0.1*3", ""):
        with pytest.raises(DataError, check=coded("votes-mismatch")):
            file.cumulative_for(Panel.parse(panel))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "file-unreadable"),
        ("[]", "file-malformed"),
        ('{"schema_version": 2}', "file-malformed"),
    ],
)
def test_a_broken_noise_file_is_told(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "noise.json").write_text(text, "utf-8")
    with pytest.raises(DataError, check=coded(code)):
        NoiseFile.load(tmp_path / "noise.json")
    with pytest.raises(DataError, check=coded("file-missing")):
        NoiseFile.load(tmp_path / "other.json")


def test_a_noise_file_whose_cumulative_falls_is_told(survey: NoiseFile, model: OnnxModel, tmp_path: Path) -> None:
    kept(survey, model, tmp_path / "noise.json")
    values = json.loads((tmp_path / "noise.json").read_text("utf-8"))
    values["noises"][0]["noise"]["cumulative"]["f"].reverse()
    (tmp_path / "noise.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(DataError, check=coded("calibrator-malformed")):
        NoiseFile.load(tmp_path / "noise.json")


def test_the_figure_shows_mean_band_and_gaussian(survey: NoiseFile) -> None:
    svg = drawn(survey.noises[0].noise, "gaussian:0.1")
    assert f"Var {survey.noises[0].noise.var:.3f}" in svg
    names = [mark.tag.rpartition("}")[2] for mark in ElementTree.fromstring(svg).iter()]
    assert (names.count("polyline"), names.count("polygon")) == (2, 1)


# The commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `looktwice noise` wrote."""
    folder = tmp_path_factory.mktemp("noise")
    told = run(
        "noise", DEMO / "pictures.npz", "--take", ":20", "--open", DEMO / "fashion.onnx", "--draws", DRAWS,
        "--views", "gaussian:0.1 rotation:20", "--figures", "figures", cwd=folder, COLUMNS="80",
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "rotation:20" in told.stdout
    return folder


def test_the_command_measures_draws_and_keeps(folder: Path) -> None:
    assert [item.view for item in NoiseFile.load(folder / "noise.json").noises] == ["gaussian:0.1", "rotation:20"]
    assert sorted(path.name for path in (folder / "figures").iterdir()) == [
        "gaussian-0.1-centred.svg",
        "gaussian-0.1.svg",
        "rotation-20-centred.svg",
        "rotation-20.svg",
    ]


def test_the_command_speaks_json(folder: Path) -> None:
    told = run(
        "noise", DEMO / "pictures.npz", "--take", ":5", "--open", DEMO / "fashion.onnx", "--draws", 5,
        "--json", "-o", "other.json", cwd=folder,
    )  # fmt: skip
    views = json.loads(told.stdout)["views"]
    assert len(views) == 4
    assert 0 < views[0]["noise"]["normal"]["ks"] <= views[0]["noise"]["paper"]["ks"]


def test_noise_that_was_measured_makes_a_profile(folder: Path) -> None:
    arguments = ["fit", DEMO / "pictures.npz", "--take", ":60", "-c", DEMO / "fashion.toml", "--calibrator", "transfer"]
    told = run(*arguments, "--noise", "noise.json", "--views", "rotation:20*6", cwd=folder)
    assert told.returncode == 0, told.stderr
    calibrator = restore(Profile.load(folder / "profile.json").calibrator)
    assert isinstance(calibrator, Transfer)
    assert calibrator.noise == NoiseFile.load(folder / "noise.json").noises[1].noise.cumulative
    assert calibrator.a is not None
    alone = run(*arguments, "--views", "rotation:20*6", cwd=folder)
    assert (alone.returncode, code_in(alone.stderr)) == (1, "option-conflict")
    other = run(*arguments, "--noise", "noise.json", cwd=folder)
    assert (other.returncode, code_in(other.stderr)) == (1, "votes-mismatch")


def test_the_prescription_is_one_command(tmp_path: Path) -> None:
    told = run(
        "transfer", "--open", DEMO / "fashion.onnx", "--open-pictures", DEMO / "pictures.npz", "--open-take", ":20",
        "--closed", DEMO / "fashion.toml", "--pictures", DEMO / "pictures.npz", "--take", "20:100",
        "--views", "gaussian:0.1 rotation:20", "--draws", 5, "--json", cwd=tmp_path,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    result = json.loads(told.stdout)
    assert result["view"] in ("gaussian:0.1", "rotation:20")
    assert [row["calibrator"] for row in result["results"]][2:] == [
        "gaussian",
        "probit",
        "jury, general panel",
        "transfer",
    ]
    assert set(result["differences"]) == {"gaussian", "probit", "jury, general panel"}
    assert Profile.load(tmp_path / "profile.json").panel == f"{result['view']}*5"


def outcome(name: str, brier: Floats) -> Outcome:
    """A calibrator that fared like this."""
    base = np.zeros(len(brier), np.int32)
    votes = Votes(tuple(map(str, range(len(brier)))), (), ("yes", "no"), base, np.empty((len(brier), 0), np.int32), 2)
    return replace(crossfit.outcome(Naive(), votes.labelled(["yes"] * len(brier))), name=name, brier=brier)


def test_the_verdict_on_a_transfer_follows_the_paired_difference(survey: NoiseFile) -> None:
    level, noise = np.full(400, 0.2), np.random.default_rng(0).normal(0.0, 0.01, 400)
    rivals = {"naive": level, "worse": level + 0.1, "equal": level + noise, "better": level - 0.1}
    others = tuple(outcome(name, brier) for name, brier in rivals.items())
    told = Transferred(survey.noises[0], outcome("transfer", level), others, Profile.model_construct()).sentences()
    verdicts = ("beats worse", "cannot be distinguished from equal", "loses to better")
    assert all(verdict in line for line, verdict in zip(told, verdicts, strict=True))
