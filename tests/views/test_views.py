"""Views: one text each, pixels that depend on the question alone, and the change that each guarantees."""

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from types import ModuleType
from typing import Annotated, Literal, get_args

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy import ndimage, stats
from support import golden_views
from support.errors import coded

from looktwice.errors import ViewError
from looktwice.images.image import Image
from looktwice.views import (
    FAMILIES,
    GENERAL,
    GRIDS,
    RENDERER,
    Affine,
    Again,
    Between,
    Blur,
    Chain,
    Elastic,
    Gaussian,
    Mirror,
    Motion,
    Moving,
    Panel,
    Question,
    Rotation,
    Sampled,
    Shift,
    Tone,
    Turn,
    View,
    Worded,
    Zoom,
    base_question,
    parse,
    questions,
    register,
    render,
    render_into,
    renderer,
    rendering,
)
from looktwice.views.base import AS_DESCRIBED, REGISTERED

Pixels = NDArray[np.uint8]

KINDS = """
    again mirror turn:17 shift:0.1,-0.2 zoom:1.2 zoom:0.4 tone:contrast=1.5,grey=0.5,cast=0.2 blur:1 gaussian:0.1
    rotation:30 elastic:30,3 affine:20,0.2,0.5 affine:30,0.3,1 turn:40,border=constant
    rotation:30,border=edge,interpolation=nearest mirror+turn:10 mirror+rotation:10
    crop:0,0,0.6 perspective:0.3,-0.1 occlude:0.5 occlude:0.4,where=grid,fill=mean posterise:4 resample:0.4 jpeg:10
    mirror+crop:1,0.5,0.7 zoom:1.3+gaussian:0.05 rotation:9+tone:grey=1+rotation:9 mirror+elastic:20,4
    order:1 wording:2 ranked describe mirror+order:3 rotation:10+order:2
"""
EACH_KIND = tuple(map(parse, KINDS.split()))
WORDED = {part for view in EACH_KIND for part in view.parts if isinstance(part, Worded)}


def noisy(height: int, width: int, seed: int = 0) -> Image:
    return Image.from_array(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def smooth(height: int, width: int) -> Image:
    blurred = ndimage.gaussian_filter(noisy(height, width).pixels.astype(float), (4, 4, 0))
    low, high = blurred.min(), blurred.max()
    return Image.from_array(((blurred - low) / (high - low) * 255).astype(np.uint8))


def shown(image: Image, *views: str | View, seed: int = 0) -> Pixels:
    panel = Panel(tuple(parse(view) if isinstance(view, str) else view for view in views))
    return render(image, questions(image, panel, seed))


def any_view() -> st.SearchStrategy[View]:
    one = st.one_of([any_of(family) for family in FAMILIES])
    once = st.lists(
        one.filter(lambda view: not isinstance(view, Again)),
        min_size=2,
        max_size=4,
        unique_by=lambda view: type(view) if isinstance(view, Worded) else object(),
    )
    return one | once.map(lambda views: Chain(tuple(views)))


def any_of(family: type[View]) -> st.SearchStrategy[View]:
    wanted: dict[str, st.SearchStrategy[object]] = {}
    options: dict[str, st.SearchStrategy[object]] = {}
    for each in fields(family):
        *choices, last = get_args(each.type)
        if isinstance(last, Between):
            whole = st.integers(int(last.low), int(last.high))
            values: st.SearchStrategy[object] = whole if last.whole else st.floats(last.low, last.high)
        else:
            values = st.sampled_from([*choices, last])
        (wanted if each.default is MISSING else options)[each.name] = values
    return st.fixed_dictionaries(wanted, optional=options).map(lambda given: family(**given))


# Every family ------------------------------------------------------------------------------------------------------


def typical(family: type[View]) -> View:
    views = [view for view in EACH_KIND if type(view) is family]
    assert views, f"{family.__name__} is not among KINDS; add it with typical numbers"
    return views[0]


def every_family() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)


@every_family()
def test_every_family_changes_the_picture_or_the_words_except_again(family: type[View]) -> None:
    image = smooth(40, 30)
    drawn = shown(image, typical(family))[0]
    (asked,) = questions(image, Panel((typical(family),)), 0)
    assert np.array_equal(drawn, image.pixels) == (family is Again or issubclass(family, Worded))
    assert (asked.phrasing != AS_DESCRIBED) == issubclass(family, Worded)


@every_family()
def test_every_family_draws_the_same_from_its_text(family: type[View]) -> None:
    image, view = smooth(40, 30), typical(family)
    again = parse(str(view))
    assert again == view
    assert np.array_equal(shown(image, view, seed=4), shown(image, again, seed=4))


@every_family()
def test_every_family_fills_all_that_it_is_given(family: type[View]) -> None:
    image, view = smooth(40, 30), typical(family)
    asked = [Question(image.digest, view, 0, index) for index in range(3)]
    black, white = np.zeros((3, 40, 30, 3), np.uint8), np.full((3, 40, 30, 3), 255, np.uint8)
    for out in (black, white):
        view.draw(0, asked, image.pixels, out)
    assert np.array_equal(black, white)


@every_family()
def test_every_family_has_a_word(family: type[View]) -> None:
    word = typical(family).adjective
    assert word
    assert word == word.strip().lower()


# Families of others ------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module called `elsewhere`, in which views can be defined; what a test registers is forgotten after it."""
    module, known = ModuleType("elsewhere"), dict(REGISTERED)
    vars(module).update(Annotated=Annotated, Between=Between, Literal=Literal)
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    yield
    REGISTERED.clear()
    REGISTERED.update(known)


def define(name: str, *bases: type, **members: object) -> type[View]:
    """A dataclass as another package would define it, without registering it."""
    family: type[View] = dataclass(frozen=True)(type(name, bases, {"__module__": "elsewhere", **members}))
    return family


def invert(view: View, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
    out[:] = 255 - picture


def test_a_family_that_does_not_draw_is_refused_when_it_is_defined(registry: None) -> None:
    with pytest.raises(ViewError, check=coded("view-plugin")):
        register(define("Silent", View, adjective="silent"))
    with pytest.raises(ViewError, check=coded("view-plugin")):
        register(define("Silent", Moving))
    with pytest.raises(TypeError, match="draw"):
        define("Silent", View, adjective="silent")()
    assert "silent" not in REGISTERED


@pytest.mark.parametrize("text", ["negative", "mirror+negative", "gpt@negative"])
def test_a_view_that_returns_pixels_instead_of_writing_them_is_refused(registry: None, text: str) -> None:
    register(define("Negative", View, adjective="negative", draw=lambda view, part, asked, picture, out: 255 - picture))
    with pytest.raises(ViewError, check=coded("view-plugin")):
        shown(noisy(8, 8), text)


def test_a_family_cannot_take_the_name_of_another(registry: None) -> None:
    own = define("Mirror", View, adjective="inverted", draw=invert)
    with pytest.raises(ViewError, check=coded("view-plugin")):
        register(own)
    assert parse("mirror") == Mirror()
    with pytest.raises(ViewError, check=coded("view-plugin")):
        own()


def test_a_class_that_is_defined_anew_replaces_itself(registry: None) -> None:
    first, second = (register(define("Negative", View, adjective="negative", draw=invert)) for _ in range(2))
    assert type(parse("negative")) is second
    with pytest.raises(ViewError, check=coded("view-plugin")):
        first()


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (float, {}),
        (Annotated[float, Between(0, np.inf)], {}),
        (Literal["left", "right"], {}),
        (Literal["a+b"], {"side": "a+b"}),
        (Literal["A", "b"], {"side": "b"}),
        (Literal[1, 2], {"side": 1}),
        ("Annotated[float, Unknown]", {}),
    ],
    ids=str,
)
def test_a_field_that_has_no_text_is_refused(registry: None, annotation: object, default: dict[str, object]) -> None:
    members = {"adjective": "odd", "draw": invert, "__annotations__": {"side": annotation}, **default}
    with pytest.raises(ViewError, check=coded("view-plugin")):
        register(define("Odd", View, **members))


def test_a_class_that_is_no_dataclass_or_has_no_plain_name_is_refused(registry: None) -> None:
    with pytest.raises(ViewError, check=coded("view-plugin")):
        register(type("Plain", (View,), {"adjective": "plain", "draw": invert}))
    with pytest.raises(ViewError, check=coded("view-plugin")):
        register(define("Übermalt", View, adjective="painted", draw=invert))


def test_a_family_of_another_module_works_like_those_of_looktwice(registry: None) -> None:
    # Texts, as `from __future__ import annotations` makes them.
    fields = {"amount": "Annotated[float, Between(0, 1e20)]", "how": "Literal['up', 'down']"}
    register(define("Far", View, adjective="far", draw=invert, how="up", __annotations__=fields))
    for text in ("far:2", "far:1e17,how=down", "mirror+far:1e17"):
        assert str(parse(text)) == str(Panel.parse(text)) == text
    assert parse("mirror+far:1e17") == Chain((Mirror(), parse("far:1e17,how=up")))
    assert parse("mirror+far:2").adjective == "mirrored and far"
    with pytest.raises(ViewError, check=coded("view-invalid")):
        parse("far:1,how=left")
    image = noisy(8, 9)
    assert np.array_equal(shown(image, "mirror+far:1")[0], 255 - image.pixels[:, ::-1])


def test_a_move_of_another_module_is_made_in_one_step(registry: None) -> None:
    register(define("Upset", Sampled, Moving, adjective="upset", motion=lambda view, _: Motion(angle=180)))
    image = noisy(20, 30)
    assert np.array_equal(shown(image, "upset", "mirror+turn:-60+upset+turn:-120")[0], image.pixels[::-1, ::-1])
    assert np.array_equal(shown(image, "turn:-60+upset+turn:-120")[0], image.pixels)


def test_a_random_move_of_another_module_draws_each_question_its_own(registry: None) -> None:
    motion = {"motion": lambda view, u: Motion(right=u[:, 0] - 0.5)}
    register(define("Jitter", Sampled, Moving, random=True, adjective="shifted", **motion))
    image = noisy(20, 30)
    drawn = shown(image, *["jitter"] * 9, seed=1)
    assert len({pixels.tobytes() for pixels in drawn}) == 9
    right = rendering.uniforms(questions(image, Panel.parse("jitter*9"), 1), 0)[:, 0] - 0.5
    assert np.array_equal(drawn, shown(image, *[Shift(share, 0) for share in right]))


def test_only_versions_of_their_own_join_the_renderer(registry: None) -> None:
    members = {"adjective": "inverted", "draw": invert}
    register(define("Plain", View, **members))
    register(define("Second", View, version="2", **members))
    assert (
        renderer(view for view in EACH_KIND if not set(view.parts) & WORDED)
        == renderer([parse("plain")])
        == RENDERER
        == "1"
    )
    assert renderer(Panel.parse("mirror second mirror+second plain")) == renderer([parse("second")]) == "1 second=2"


# Text --------------------------------------------------------------------------------------------------------------


@given(any_view())
def test_every_view_is_read_back_from_its_text(view: View) -> None:
    assert parse(str(view)) == view
    assert str(parse(str(view))) == str(view)


@given(any_view(), any_view())
def test_views_are_equal_exactly_when_their_texts_are(one: View, other: View) -> None:
    assert (one == other) == (str(one) == str(other))


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (Rotation(30), "rotation:30"),
        (Rotation(30.0, border="constant"), "rotation:30,border=constant"),
        (Affine(10, 0.1, 0.3), "affine:10,0.1,0.3"),
        (Mirror(), "mirror"),
        (Zoom(1.15), "zoom:1.15"),
        (Turn(-0.0), "turn:0"),
        (Tone(brightness=0.1), "tone:brightness=0.1"),
        (Shift(0.00001, -1), "shift:1e-05,-1"),
        (Turn(5, border="edge", interpolation="nearest"), "turn:5,border=edge,interpolation=nearest"),
        (Chain((Mirror(), Turn(10))), "mirror+turn:10"),
        (Gaussian(np.float64(0.25)), "gaussian:0.25"),
    ],
)
def test_text_is_as_short_as_it_goes(view: View, text: str) -> None:
    assert str(view) == text
    assert parse(text) == view


def test_text_that_is_not_canonical_is_read_and_printed_canonically() -> None:
    assert str(parse("turn:010.50,interpolation=nearest,border=reflect")) == "turn:10.5,interpolation=nearest"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("rotatoin:30", "view-unknown"),
        ("Rotation:30", "view-unknown"),
        ("wobble", "view-unknown"),
        ("", "view-unknown"),
        ("rotation", "view-invalid"),
        ("rotation:", "view-invalid"),
        ("rotation:30,4", "view-invalid"),
        ("rotation:thirty", "view-invalid"),
        ("rotation:1_0", "view-invalid"),
        ("rotation:nan", "view-invalid"),
        ("rotation:٣", "view-invalid"),
        ("rotation:1e999", "view-invalid"),
        ("rotation:-1", "view-invalid"),
        ("rotation:30,border=mirror", "view-invalid"),
        ("rotation:30,colour=red", "view-invalid"),
        ("rotation:30,border=edge,border=edge", "view-invalid"),
        ("mirror:border=edge", "view-invalid"),
        ("tone:grey=", "view-invalid"),
        ("mirror+", "view-unknown"),
        ("mirror+again", "view-invalid"),
        ("mirror+" * 200, "view-invalid"),
        ("x" * 500, "view-unknown"),
    ],
)
def test_text_that_names_no_view_is_explained_in_one_line(text: str, code: str) -> None:
    with pytest.raises(ViewError, check=coded(code)) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.01, 1.01, "0.1", None])
def test_a_number_out_of_range_is_refused(bad: float) -> None:
    with pytest.raises(ViewError, check=coded("view-invalid")):
        Gaussian(bad)


@given(st.text(max_size=60) | st.from_regex(r"[a-z]{1,9}(:[-0-9.,e=a-z+*]{0,20})?", fullmatch=True))
def test_any_text_is_read_or_refused(text: str) -> None:
    for reader in (parse, Panel.parse):
        with suppress(ViewError):
            reader(text)


# Panels and questions ----------------------------------------------------------------------------------------------


RANDOM = st.one_of([any_of(family) for family in FAMILIES if family.random])


@given(st.lists(RANDOM | RANDOM.map(lambda view: Chain((Mirror(), view))) | st.just(Again()), max_size=8))
def test_every_panel_is_read_back_from_its_text(views: list[View]) -> None:
    panel = Panel((*views, *views))
    assert Panel.parse(str(panel)) == panel


def test_repeats_in_a_row_are_written_once() -> None:
    panel = Panel.parse("mirror  rotation:30 rotation:30.0*2\nzoom:1.15 rotation:30")
    assert str(panel) == "mirror rotation:30*3 zoom:1.15 rotation:30"
    assert str(panel[:3]) == "mirror rotation:30*2"
    assert len(panel) == 6
    assert list(panel)[4] == Zoom(1.15)


def test_random_views_and_again_count_up_and_fixed_views_do_not() -> None:
    slots = Panel.parse("again rotation:30 mirror rotation:20 rotation:30*2 again").slots
    assert [index for _, index in slots] == [1, 0, 0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    "text",
    [
        "mirror zoom:1.15 mirror",
        "mirror*3",
        "rotation:30*0",
        "rotation:30*",
        "rotation:30*-2",
        "rotation:30*²",
        "rotation:30*99999999999999",
        "rotation:30*9999 rotation:20*9999",
        "rotation:30 " * 1000,
    ],
)
def test_a_panel_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ViewError, check=coded("panel-invalid")):
        Panel.parse(text)


def test_only_questions_with_random_views_know_the_seed() -> None:
    image, panel = noisy(8, 8), Panel.parse("mirror rotation:30*2 again mirror+rotation:10")
    asked = questions(image, panel, seed=5)
    assert [question.seed for question in asked] == [0, 5, 5, 0, 5]
    assert base_question(image) == Question(image.digest, Again(), 0, 0)
    assert base_question(image) not in asked


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_no_ledger_can_hold_is_refused(seed: int) -> None:
    with pytest.raises(ViewError, check=coded("panel-invalid")):
        questions(noisy(8, 8), GENERAL, seed)


def test_the_grids_of_the_paper_are_complete() -> None:
    assert {family: len(views) for family, views in GRIDS.items()} == {
        "gaussian": 8,
        "elastic": 12,
        "rotation": 6,
        "affine": 35,
    }
    assert len(GENERAL) == 8


# Chance ------------------------------------------------------------------------------------------------------------


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.permutations(EACH_KIND * 2),
    st.integers(0, 2**63 - 1),
    st.integers(1, len(EACH_KIND)),
)
@settings(max_examples=30)
def test_pixels_do_not_depend_on_what_else_is_asked(
    size: tuple[int, int], views: list[View], seed: int, cut: int
) -> None:
    image = noisy(*size)
    asked = [Question(image.digest, view, seed, index) for index, view in enumerate(views)]
    together = render(image, asked)
    assert np.array_equal(together[cut:], render(image, asked[cut:]))
    assert np.array_equal(together[::-1], render(image, asked[::-1]))
    assert np.array_equal(together, np.concatenate([render(image, [question]) for question in asked]))


@pytest.mark.parametrize("view", [view for view in EACH_KIND if view.random], ids=str)
def test_the_first_draws_stay_the_same_when_more_are_asked(view: View) -> None:
    image = noisy(40, 30)
    few, many = (shown(image, *[view] * count, seed=3) for count in (4, 60))
    assert np.array_equal(few, many[:4])
    assert len({pixels.tobytes() for pixels in many}) > 50


@pytest.mark.parametrize("view", [view for view in EACH_KIND if view.random], ids=str)
def test_seed_picture_and_view_each_change_the_draw(view: View) -> None:
    image = noisy(32, 32)
    assert not np.array_equal(shown(image, view, seed=0), shown(image, view, seed=1))
    words = [
        rendering.words([Question(digest, other, seed, 0)], part, 4).tobytes()
        for digest in ("a", "b")
        for other in (view, Rotation(29))
        for seed in (0, 1)
        for part in (0, 1)
    ]
    assert len(set(words)) == 16


def test_fixed_views_look_the_same_under_every_seed() -> None:
    fixed = [view for view in EACH_KIND if not view.random]
    assert np.array_equal(shown(noisy(20, 30), *fixed, seed=0), shown(noisy(20, 30), *fixed, seed=1))


def test_the_two_random_parts_of_a_chain_are_drawn_apart() -> None:
    asked = [Question("a", parse("rotation:10+rotation:10"), 0, index) for index in range(200)]
    one, other = rendering.uniforms(asked, 0), rendering.uniforms(asked, 1)
    assert abs(np.corrcoef(one[:, 0], other[:, 0])[0, 1]) < 0.2


def test_each_random_part_of_a_chain_shows_its_own_draw() -> None:
    image, view = noisy(32, 40), parse("rotation:40+tone:grey=1+rotation:40")
    asked = questions(image, Panel((view,)), 0)
    first, last = (float(np.asarray(Rotation(40).motion(rendering.uniforms(asked, part)).angle)[0]) for part in (0, 2))
    assert abs(first - last) > 1
    assert np.array_equal(render(image, asked)[0], shown(image, Chain((Turn(first), Tone(grey=1), Turn(last))))[0])


def test_threads_draw_the_same_as_one_after_the_other() -> None:
    images = [noisy(32, 32, seed) for seed in range(40)]
    panel = Panel.parse("gaussian:0.1*3 elastic:30,3*3 rotation:30*3 mirror zoom:1.1")
    alone = [render(image, questions(image, panel, 0)) for image in images]
    with ThreadPoolExecutor(4) as pool:
        side_by_side = list(pool.map(lambda image: render(image, questions(image, panel, 0)), images))
    assert np.array_equal(alone, side_by_side)


def test_no_generator_of_the_process_is_touched() -> None:
    before = np.random.get_state(legacy=False)
    shown(noisy(32, 32), *EACH_KIND)
    assert str(before) == str(np.random.get_state(legacy=False))


def test_chance_is_uniform_within_and_across_pictures() -> None:
    within = rendering.uniforms([Question("a" * 32, Rotation(30), 0, index) for index in range(5000)], 0)
    across = np.concatenate([rendering.uniforms([Question(f"{n:032x}", Rotation(30), 0, 0)], 0) for n in range(5000)])
    for column in (*within.T, *across.T):
        assert stats.kstest(column, "uniform").pvalue > 0.001
    for numbers in (within, across):
        assert np.abs(np.corrcoef(numbers.T) - np.eye(4)).max() < 0.05
    assert abs(np.corrcoef(within[1:, 0], within[:-1, 0])[0, 1]) < 0.05


def test_draws_stay_within_their_limits_and_fill_them() -> None:
    u = rendering.uniforms([Question("b" * 32, Rotation(30), 1, index) for index in range(4000)], 0)
    angle = np.asarray(Rotation(30).motion(u).angle)
    assert stats.kstest(angle, "uniform", (-30, 60)).pvalue > 0.001
    assert np.abs(angle).max() <= 30
    moved = Affine(10, 0.3, 1).motion(u)
    factor = np.asarray(moved.factor)
    assert np.abs(moved.right).max() <= 0.3
    assert np.abs(moved.down).max() <= 0.3
    assert factor.min() == 0.1
    assert 1.99 < factor.max() <= 2
    assert np.mean(factor == 0.1) == pytest.approx(0.05, abs=0.02)


# Pixels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 2), (8, 8), (33, 17), (250, 300), (3, 1000)], ids=str)
def test_every_view_draws_every_size(size: tuple[int, int]) -> None:
    image = noisy(*size)
    pixels = shown(image, *EACH_KIND)
    assert pixels.shape == (len(EACH_KIND), *size, 3)
    assert pixels.dtype == np.uint8


@pytest.mark.slow
def test_every_kind_of_view_draws_a_4k_picture() -> None:
    image = Image.from_array(np.tile(noisy(240, 256).pixels, (9, 15, 1)))
    views = ["mirror", "turn:10", "rotation:30", "gaussian:0.1", "elastic:50,2", "tone:grey=1", "blur:1"]
    views += ["crop:0,0,0.6", "perspective:0.2,0", "occlude:0.5", "posterise:4", "resample:0.5", "jpeg:30"]
    assert image.pixels.shape == (2160, 3840, 3)
    for view in views:
        pixels = shown(image, view)[0]
        assert pixels.shape == image.pixels.shape
        assert not np.array_equal(pixels, image.pixels)
    assert np.array_equal(shown(image, "mirror", "zoom:1")[0], image.pixels[:, ::-1])


@given(st.integers(1, 40), st.integers(1, 40), st.tuples(*[st.integers(0, 255)] * 3), st.integers(0, 1000))
@settings(max_examples=30)
def test_a_plain_picture_stays_plain_under_every_move(
    height: int, width: int, colour: tuple[int, int, int], seed: int
) -> None:
    image = Image.from_array(np.full((height, width, 3), colour, np.uint8))
    moves = (
        "mirror",
        "turn:33",
        "zoom:0.3",
        "shift:0.4,-1",
        "rotation:90",
        "affine:30,0.3,1",
        "elastic:70,2",
        "blur:2",
        "crop:0,1,0.3",
        "perspective:-0.45,0.45",
        "resample:0.1",
        "occlude:0.5,fill=mean",
    )
    assert np.array_equal(np.unique(shown(image, *moves, seed=seed).reshape(-1, 3), axis=0), [colour])


@pytest.mark.parametrize(
    "text",
    [
        "turn:0",
        "zoom:1",
        "shift:0,0",
        "tone",
        "mirror+mirror",
        "rotation:0",
        "gaussian:0",
        "crop:0.3,0,1",
        "perspective:0,0",
        "occlude:0",
        "posterise:256",
        "resample:1",
    ],
)
def test_a_view_that_changes_nothing_changes_no_pixel(text: str) -> None:
    for image in (noisy(32, 32), noisy(31, 20)):
        assert np.array_equal(shown(image, text)[0], image.pixels)


def test_mirror_swaps_left_and_right_exactly() -> None:
    image = noisy(31, 20)
    mirrored = shown(image, "mirror")[0]
    assert np.array_equal(mirrored, image.pixels[:, ::-1])
    assert np.array_equal(shown(Image.from_array(mirrored), "mirror")[0], image.pixels)


def test_turn_goes_counter_clockwise_exactly_at_quarter_turns() -> None:
    image = noisy(24, 24)
    assert np.array_equal(shown(image, "turn:90")[0], np.rot90(image.pixels))
    assert np.array_equal(shown(image, "turn:-90")[0], np.rot90(image.pixels, -1))
    assert np.array_equal(shown(image, "turn:180")[0], image.pixels[::-1, ::-1])


def test_shift_moves_right_and_down_by_shares_of_the_sides() -> None:
    image = noisy(20, 40)
    moved = shown(image, "shift:0.25,0.1,border=constant")[0]
    assert np.array_equal(moved[2:, 10:], image.pixels[:-2, :-10])
    assert not moved[:2].any()
    assert not moved[:, :10].any()


def test_zoom_enlarges_about_the_centre() -> None:
    image = noisy(21, 21)
    near = shown(image, "zoom:2")[0]
    assert np.array_equal(near[::2, ::2], image.pixels[5:16, 5:16])


def test_the_three_borders_continue_the_picture_as_they_say() -> None:
    row = np.arange(8, dtype=np.uint8)
    image = Image.from_array(np.tile(row[None, :, None], (4, 1, 3)))
    texts = [f"shift:0.25,0,border={border}" for border in ("reflect", "constant", "edge")]
    reflected, black, drawn_out = shown(image, *texts)[:, 0, :, 0]
    assert reflected.tolist() == [2, 1, 0, 1, 2, 3, 4, 5]
    assert black.tolist() == [0, 0, 0, 1, 2, 3, 4, 5]
    assert drawn_out.tolist() == [0, 0, 0, 1, 2, 3, 4, 5]


def test_nearest_shows_only_colours_of_the_picture() -> None:
    image = Image.from_array((noisy(30, 30).pixels // 128) * 255)
    texts = ["turn:20", "rotation:45", "elastic:50,4"]
    assert set(np.unique(shown(image, *[f"{text},interpolation=nearest" for text in texts]))) == {0, 255}
    assert len(np.unique(shown(image, *texts))) > 100


def test_nearest_takes_the_nearest() -> None:
    image = noisy(21, 21)
    nearest = np.rint((np.arange(21) - 10) / 3 + 10).astype(int)
    near = shown(image, "zoom:3,interpolation=nearest")[0]
    assert np.array_equal(near, image.pixels[np.ix_(nearest, nearest)])


def test_moves_agree_with_scipy() -> None:
    image = smooth(50, 70)
    angle, cy, cx = np.radians(20), 24.5, 34.5
    matrix = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) / 1.2
    # scipy counts rows first: the matrix takes (y, x) of the output to (y, x) of the picture.
    offset = np.array([cy, cx]) - matrix @ np.array([cy + 0.1 * 50, cx - 0.1 * 70])
    planes = [
        ndimage.affine_transform(plane.astype(float), matrix, offset, order=1, mode="mirror")
        for plane in image.pixels.transpose(2, 0, 1)
    ]
    ours = shown(image, "zoom:1.2+turn:20+shift:-0.1,0.1")[0]
    assert np.abs(ours - np.stack(planes, axis=2)).max() < 2.5


def test_a_chain_is_its_views_one_after_the_other() -> None:
    image = noisy(30, 40)
    mirrored = Image.from_array(shown(image, "mirror")[0])
    assert np.array_equal(shown(image, "mirror+tone:grey=1")[0], shown(mirrored, "tone:grey=1")[0])
    assert np.array_equal(shown(image, "mirror+turn:10")[0], shown(mirrored, "turn:10")[0])
    assert np.array_equal(
        shown(image, "mirror+turn:10,border=edge+blur:1")[0],
        shown(Image.from_array(shown(mirrored, "turn:10,border=edge")[0]), "blur:1")[0],
    )


def test_neighbouring_moves_are_made_in_one_step() -> None:
    image = noisy(32, 32)
    assert np.array_equal(shown(image, "turn:30+turn:-30")[0], image.pixels)


@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.1])
def test_noise_has_the_standard_deviation_it_says(sigma: float) -> None:
    grey = Image.from_array(np.full((64, 64, 3), 128, np.uint8))
    noise = (shown(grey, *[Gaussian(sigma)] * 8).astype(float) - 128) / 255
    rounding = 1 / 255**2 / 12
    assert noise.std() == pytest.approx(np.sqrt(sigma**2 + rounding), rel=0.01)
    assert abs(noise.mean()) < 5 * sigma / np.sqrt(noise.size)
    assert np.abs(np.corrcoef(noise.reshape(-1, 3).T) - np.eye(3)).max() < 0.02
    assert np.abs(np.corrcoef(noise.reshape(8, -1)) - np.eye(8)).max() < 0.04
    assert stats.kurtosis(noise.ravel()) == pytest.approx(0, abs=0.05)


def test_noise_stops_at_black_and_white() -> None:
    black = Image.from_array(np.zeros((64, 64, 3), np.uint8))
    noise = shown(black, "gaussian:0.2")[0]
    assert np.mean(noise == 0) == pytest.approx(0.5, abs=0.03)
    assert noise.max() > 2 * 51


@pytest.mark.parametrize(("alpha", "sigma"), [(50, 5), (20, 2), (70, 10)])
def test_elastic_views_agree_with_the_textbook(alpha: float, sigma: float) -> None:
    image, view = smooth(48, 60), Elastic(alpha, sigma)
    asked = questions(image, Panel((view,)), 0)
    noise = rendering.words(asked, 0, 48 * 60 // 2).view(np.int16).reshape(2, 48, 60) / 32768
    assert stats.kstest(noise.ravel(), "uniform", (-1, 2)).pvalue > 0.001
    dx, dy = (ndimage.gaussian_filter(field, sigma, mode="mirror", truncate=4) * alpha / 2 for field in noise)
    y, x = np.mgrid[0:48, 0:60].astype(float)
    planes = [
        ndimage.map_coordinates(plane.astype(float), [y + dy, x + dx], order=1, mode="mirror")
        for plane in image.pixels.transpose(2, 0, 1)
    ]
    assert np.abs(render(image, asked)[0] - np.stack(planes, axis=2)).max() < 2.5
    assert np.abs(dx).max() > 0.3


def test_tone_does_what_its_numbers_say() -> None:
    image = Image.from_array(np.array([[[100, 150, 200], [0, 10, 250]]], np.uint8))
    brighter, flat, grey, warm = shown(image, "tone:brightness=0.1", "tone:contrast=0", "tone:grey=1", "tone:cast=0.1")
    assert brighter.tolist() == [[[126, 176, 226], [26, 36, 255]]]
    assert np.ptp(flat) == 0
    assert abs(int(flat[0, 0, 0]) - 128) <= 1
    assert grey.tolist() == [[[141, 141, 141], [34, 34, 34]]]
    assert warm.tolist() == [[[110, 150, 180], [0, 10, 225]]]


def test_blur_agrees_with_scipy() -> None:
    image = noisy(40, 50)
    expected = ndimage.gaussian_filter(image.pixels.astype(float), (1.5, 1.5, 0), mode="mirror", truncate=4)
    assert np.abs(shown(image, Blur(1.5))[0] - expected).max() < 1.5


def test_a_crop_shows_its_part_enlarged() -> None:
    image = noisy(20, 40)
    corner, middle = shown(image, "crop:1,0,0.5,interpolation=nearest", "crop:0.5,0.5,0.5,interpolation=nearest")
    assert np.array_equal(corner, image.pixels[:10, 20:].repeat(2, axis=0).repeat(2, axis=1))
    assert np.array_equal(middle, image.pixels[5:15, 10:30].repeat(2, axis=0).repeat(2, axis=1))
    assert np.array_equal(shown(image, "crop:0.5,0.5,0.8")[0], shown(image, "zoom:1.25")[0])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("crop:0,0,0.5", "upper-left-cropped"),
        ("crop:1,0.5,0.5", "right-cropped"),
        ("crop:0.5,0.8,0.5", "lower-cropped"),
        ("mirror+crop:0.5,0.5,0.5", "mirrored and cropped"),
    ],
)
def test_the_word_of_a_crop_says_which_part_is_shown(text: str, word: str) -> None:
    assert parse(text).adjective == word


def test_perspective_agrees_with_a_homography() -> None:
    image = smooth(50, 70)
    a, b, cy, cx = 0.3, -0.2, 24.5, 34.5
    y, x = np.mgrid[0:50, 0:70].astype(float)
    depth = 1 + a * (x - cx) / 35 + b * (y - cy) / 25
    places = [(y - cy) / depth + cy, (x - cx) / depth + cx]
    planes = [
        ndimage.map_coordinates(plane.astype(float), places, order=1, mode="mirror")
        for plane in image.pixels.transpose(2, 0, 1)
    ]
    assert np.abs(shown(image, "perspective:0.3,-0.2")[0] - np.stack(planes, axis=2)).max() < 2.5


def test_occlusion_covers_what_it_says_and_nothing_else() -> None:
    image = noisy(16, 24)
    covered = {
        "occlude:0.5": (slice(4, 12), slice(6, 18)),
        "occlude:0.25,where=left": (slice(None), slice(0, 6)),
        "occlude:0.25,where=right": (slice(None), slice(18, 24)),
        "occlude:0.5,where=top": (slice(0, 8), slice(None)),
        "occlude:0.5,where=bottom": (slice(8, 16), slice(None)),
    }
    for text, part in covered.items():
        expected = image.pixels.copy()
        expected[part] = 128
        assert np.array_equal(shown(image, text)[0], expected), text
    grid = shown(noisy(16, 32), "occlude:0.5,where=grid")[0]
    cells = (grid == 128).all(axis=2).reshape(4, 4, 4, 8)
    assert cells[:, 1:3, :, 2:6].all()
    assert cells.sum() == 16 * 2 * 4
    mean = np.rint(image.pixels.reshape(-1, 3).mean(axis=0))
    assert np.array_equal(shown(image, "occlude:1,fill=mean")[0], np.broadcast_to(mean, image.pixels.shape))


def test_posterised_pictures_have_so_many_levels_and_keep_black_and_white() -> None:
    ramp = Image.from_array(np.tile(np.arange(256, dtype=np.uint8)[None, :, None], (2, 1, 3)))
    two, four, all_of_them = shown(ramp, "posterise:2", "posterise:4", "posterise:256")
    assert np.unique(two).tolist() == [0, 255]
    assert np.unique(four).tolist() == [0, 85, 170, 255]
    assert np.array_equal(two[0, 127:129, 0], [0, 255])
    assert np.array_equal(all_of_them, ramp.pixels)


def test_resampling_loses_what_is_fine_and_keeps_what_is_coarse() -> None:
    fine, coarse = noisy(64, 64), smooth(64, 64)
    assert np.array_equal(shown(fine, "resample:1")[0], fine.pixels)
    for share in (0.5, 0.25):
        drawn = shown(fine, f"resample:{share}")[0]
        assert (
            np.abs(np.diff(drawn.astype(int), axis=1)).mean() < np.abs(np.diff(fine.pixels.astype(int), axis=1)).mean()
        )
    assert np.abs(shown(coarse, "resample:0.5")[0].astype(int) - coarse.pixels).mean() < 3


def test_jpeg_loses_more_the_lower_its_quality() -> None:
    image = smooth(64, 64)
    drawn = shown(image, "jpeg:90", "jpeg:30", "jpeg:5").astype(int)
    lost = np.abs(drawn - image.pixels).mean(axis=(1, 2, 3))
    assert 0 < lost[0] < lost[1] < lost[2] < 40


def test_maps_that_are_kept_draw_the_same_as_maps_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    image, fixed = noisy(64, 48), [view for view in EACH_KIND if not view.random]
    kept = shown(image, *fixed)
    monkeypatch.setattr(rendering, "MAP_PIXELS", 0)
    assert np.array_equal(kept, shown(image, *fixed))


def test_maps_of_small_pictures_are_kept_and_those_of_large_ones_are_not() -> None:
    moves = Mirror(), Zoom(1.3)
    assert rendering.fixed_maps(moves, 32, 32) is rendering.fixed_maps(moves, 32, 32)
    assert rendering.fixed_maps(moves, 1024, 1024) is not rendering.fixed_maps(moves, 1024, 1024)


def test_pixels_are_written_into_the_array_that_is_given() -> None:
    image = noisy(16, 24)
    asked = questions(image, GENERAL, 0)
    pixels = np.zeros((20, 16, 24, 3), np.uint8)
    render_into(image, asked, pixels[4:12])
    assert np.array_equal(pixels[4:12], render(image, asked))
    assert not pixels[:4].any()
    assert not pixels[12:].any()


def test_no_question_draws_nothing() -> None:
    assert render(noisy(8, 9), ()).shape == (0, 8, 9, 3)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((8, 16, 23, 3), np.uint8),
        np.zeros((8, 16, 24, 3), np.float32),
        np.zeros((8, 16, 24, 4), np.uint8)[..., :3],
        np.frombuffer(bytes(8 * 16 * 24 * 3), np.uint8).reshape(8, 16, 24, 3),
    ],
    ids=["shape", "type", "gaps", "read-only"],
)
def test_an_array_that_cannot_be_filled_is_refused(pixels: Pixels) -> None:
    image = noisy(16, 24)
    with pytest.raises(ViewError, check=coded("view-invalid")):
        render_into(image, questions(image, GENERAL, 0), pixels)


def test_a_question_about_another_picture_is_refused() -> None:
    with pytest.raises(ViewError, check=coded("view-invalid")):
        render(noisy(8, 8, 0), questions(noisy(8, 8, 1), GENERAL, 0))


def test_a_picture_too_long_for_the_maps_is_refused() -> None:
    with pytest.raises(ViewError, check=coded("image-too-large")):
        shown(noisy(1, 40_000), "mirror")
    longest = noisy(1, 32_766)
    assert np.array_equal(shown(longest, *[f"shift:0,0.{n}" for n in range(9)])[0], longest.pixels)
    assert shown(longest, "mirror", "rotation:30", "elastic:20,2").shape == (3, 1, 32_766, 3)


# The same everywhere -----------------------------------------------------------------------------------------------


def test_views_have_the_pixels_on_record() -> None:
    recorded = json.loads(golden_views.FILE.read_text())[golden_views.opencv()]
    assert golden_views.digests() == recorded


def test_all_versions_of_opencv_on_record_draw_the_same() -> None:
    first, *others = json.loads(golden_views.FILE.read_text()).values()
    assert others == [first] * len(others)
    assert others
