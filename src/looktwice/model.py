"""A classifier with its ledger, budget and pace and, once fitted, its profile: the one road behind every door.

`AsyncModel` is the road; `Model` is the same for code that does not await, with every method taken from it.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar, Unpack

import numpy as np

from looktwice.asking import check
from looktwice.asking.asker import Asker, Estimate
from looktwice.asking.check import Checkup
from looktwice.asking.jobs import OnAnswer, askable
from looktwice.asking.outcome import Progress, Unscored
from looktwice.asking.sender import TYPICAL_SIZE
from looktwice.asking.session import AskKeywords, AskOptions, open_asker
from looktwice.calibration import calibrators, metrics, panels, paper
from looktwice.calibration.base import Calibrator
from looktwice.classifiers.base import names_of
from looktwice.classifiers.registry import Source, connect, describe
from looktwice.errors import DataError, FitError, LookTwiceError, ProfileError, ViewError
from looktwice.pictures import datasets, video
from looktwice.pictures.collection import Picture, PictureLike, PicturesLike, many, one, with_truths
from looktwice.pictures.descriptor import Floats, descriptor
from looktwice.pictures.image import Image
from looktwice.verdicts import evaluate, learn, look, pilot
from looktwice.verdicts.evaluate import Evaluation, VerdictsLike
from looktwice.verdicts.learn import Collected
from looktwice.verdicts.look import Verdict
from looktwice.verdicts.pilot import Choice, Selection, Setting
from looktwice.verdicts.policy import DecisionKeywords, DecisionOptions, Policy
from looktwice.verdicts.profile import Profile
from looktwice.views import CANDIDATES, GENERAL, GENERAL16, PROMPTED, Panel, View

P = ParamSpec("P")
T = TypeVar("T")

NO_VIEWS = "none"
"""The text of a panel without views: one query a picture, and its score where it gives one."""
VIEWS = 8
"""Views that a tuned panel may have, unless more or fewer are asked for."""
DEFAULTS = DecisionOptions()
ShowProgress = bool | Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class Tuned:
    """What choosing the views found, and the profile that was fitted with them."""

    profile: Profile
    chosen: Selection
    collected: Collected
    """The answers that the profile was fitted on."""
    settings: tuple[Setting, ...] = ()
    """For the paper's search: how each setting fared on the pilot."""


@dataclass(frozen=True, eq=False)
class Sized:
    """What choosing the size of pictures along with the views found."""

    tuned: Tuned
    """The profile for the size that was taken."""
    choices: tuple[Choice, ...]
    """Every size with every number of views; `pilot.frontier` has those that are worth their money."""
    taken: Choice


class AsyncModel:
    """A closed classifier that says how sure it is.

    `classifier` is a description such as `onnx:model.onnx`, a TOML file, a Python function of one picture (or of a
    `batch`), or a connected classifier. The keyword arguments are those of `AskOptions`. `progress` shows a bar, or
    is called with the `Progress` of the run; `on_answer` is called with every answer as it arrives.
    Used as a context manager, or closed at the end, it saves everything and gives everything back.
    """

    def __init__(
        self,
        classifier: Source,
        profile: Profile | None = None,
        *,
        options: AskOptions | None = None,
        progress: ShowProgress = False,
        on_answer: OnAnswer | None = None,
        **asking: Unpack[AskKeywords],
    ) -> None:
        self.classifier = connect(classifier)
        self.description = describe(classifier, self.classifier)
        self.options = replace(options or AskOptions(), **asking)
        if profile and self.options.working_size is None:
            self.options = replace(self.options, working_size=profile.working_size)
        self.terms = self.options.terms(self.classifier)
        self.profile = profile
        if profile:
            profile.check(self.classifier.fingerprint, names_of(self.classifier).renames)
        self._progress, self._on_answer = progress, on_answer
        self._asker: Asker | None = None
        self._policies_of: Profile | None = None
        self._policies: dict[DecisionOptions, Policy] = {}

    @classmethod
    def load(
        cls,
        path: str | Path,
        classifier: Source | None = None,
        *,
        options: AskOptions | None = None,
        progress: ShowProgress = False,
        on_answer: OnAnswer | None = None,
        **asking: Unpack[AskKeywords],
    ) -> Self:
        """The model of a saved profile; `classifier` says where the classifier is if that has changed."""
        profile = Profile.load(Path(path))
        source = profile.classifier if classifier is None else classifier
        return cls(source, profile, options=options, progress=progress, on_answer=on_answer, **asking)

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON."""
        self.fitted().save(Path(path))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write what is queued, and let go of the ledger and the classifier; the next call opens them again."""
        asker, self._asker = self._asker, None
        await (asker or self.classifier).close()

    # Asking ----------------------------------------------------------------------------------------------------------

    @property
    def asker(self) -> Asker:
        """The classifier, ledger, pace and budget, opened when first needed."""
        if self._asker is None:
            seed = self.profile.seed if self.profile else 0
            self._asker = open_asker(self.classifier, self.description, self.options, seed)
            self._asker.on_answer = self._on_answer
        return self._asker

    @property
    def asked(self) -> Progress:
        """What was asked so far, since the ledger and the classifier were opened."""
        return replace(self._asker.progress) if self._asker else Progress()

    def typical_price(self) -> int:
        """What a question costs, in millionths; by the token, about, for a phone's photo at the working size."""
        meter = self.options.meter(self.classifier)
        return meter.quote(*self.terms.working_size.of(*TYPICAL_SIZE)).expected if meter else self.terms.price_micros

    def stop(self, message: str = "the run was stopped") -> None:
        """Send nothing more until `resume`; what is in flight is waited for and kept."""
        self.asker.stop(message)

    def resume(self) -> None:
        """Send again."""
        self.asker.resume()

    async def ask(
        self, pictures: PicturesLike, labels: Sequence[object] | None = None, *, views: Panel | str | None = None
    ) -> Collected:
        """The answers about every picture under a panel, with truths where all are known.

        Without `views` it is the profile's panel, with codes of the profile's vocabulary, or the general one.
        """
        found = _labelled(pictures, labels) if labels is not None else many(pictures)
        async with self._showing(len(found)) as asker:
            if views is None and self.profile:
                return await learn.collect_for(asker, found, self.profile)
            return await learn.collect(asker, found, panel_of(views))

    async def estimate(
        self,
        pictures: PicturesLike | Iterator[Picture],
        options: DecisionOptions = DEFAULTS,
        *,
        views: Panel | str | None = None,
        **decision: Unpack[DecisionKeywords],
    ) -> Estimate:
        """What asking about these pictures would cost at the most; nothing is asked."""
        found = pictures if isinstance(pictures, Iterator) else many(pictures)
        if views is not None:
            return await self.asker.estimate(found, panel_of(views))
        policy = self.policy(options, **decision)
        return await self.asker.estimate(found, policy.panel, policy.screen())

    async def check(self, picture: PictureLike | None = None) -> Checkup:
        """One picture, or a test card, asked three times: latency, price, limits, and whether answers repeat."""
        if self.options.batch:
            raise LookTwiceError("a check asks three times at once, and a batch takes up to a day; leave --batch out")
        image = Image.of(check.test_card()) if picture is None else one(picture).image(self.terms.working_size)
        return await check.examine(self.asker, image)

    # Learning --------------------------------------------------------------------------------------------------------

    async def fit(
        self,
        pictures: PicturesLike,
        labels: Sequence[object] | None = None,
        *,
        views: Panel | str | None = None,
        calibrator: Calibrator | str = "jury",
        adaptive: bool = False,
        max_error: float | None = None,
    ) -> Profile:
        """Learn how far to trust the classifier, from pictures whose truth is known.

        `pictures` is a collection with truths (a folder with one folder per class or with `labels.csv`, an `.npz`, an
        official data set), or pictures with `labels`. `adaptive` asks sixteen views, so that later looks can ask more
        about unsure pictures, if 200 answers or more were wrong; `max_error` lets them stop by whether an answer would
        still be accepted at that error.
        """
        family = calibrators.named(calibrator)
        panel, found = panel_of(views, adaptive), _labelled(pictures, labels)
        learn.check_teachable(found)
        collected = await self._collected(found, panel)
        return self.learn(collected, family, fixed=None if views else len(GENERAL), max_error=max_error)

    def learn(
        self, collected: Collected, calibrator: Calibrator, *, fixed: int | None = None, max_error: float | None = None
    ) -> Profile:
        """Fit on answers that `ask` gave; costs no query."""
        self.profile = learn.learn(collected, calibrator, self.description, fixed=fixed, max_error=max_error)
        return self.profile

    async def tune(
        self,
        pictures: PicturesLike,
        labels: Sequence[object] | None = None,
        *,
        max_queries: int | None = None,
        loss: panels.LossName = "log-loss",
    ) -> Tuned:
        """Choose the views on a thrifty pilot, and fit on all pictures.

        `max_queries` is for one picture, the first query included; by default up to 9, and fewer where more add little:
        a single one where the classifier's own score suffices, since a view is worth what it adds to that.
        `loss` is what the views are to lower on held-out pictures.
        """
        found = _labelled(pictures, labels)
        learn.check_teachable(found)
        plan = self.plan(len(found), max_queries)
        async with self._showing(len(found)) as asker:
            chosen = await pilot.choose(asker, found, plan, self._candidates(), GENERAL, panels.LOSSES[loss])
            _check_complete(asker)
        collected, profile = pilot.fit(chosen, plan.longest if max_queries else chosen.knee, self.description)
        self.profile = profile
        return Tuned(profile, chosen, collected)

    async def tune_sizes(
        self,
        pictures: PicturesLike,
        labels: Sequence[object] | None = None,
        *,
        sizes: Sequence[int],
        max_queries: int | None = None,
        loss: panels.LossName = "log-loss",
    ) -> Sized:
        """Choose the size of pictures along with the views: smaller ones may be cheaper, and so pay for more looks.

        `sizes` are pixels of the longer side. Each takes a pilot of its own.
        """
        found = _labelled(pictures, labels)
        options = self.options.settled(self.terms, self.asker.spent())
        selections: dict[int, Selection] = {}
        choices: list[Choice] = []
        for size in dict.fromkeys(sizes):
            model = AsyncModel(
                self.classifier,
                options=replace(options, working_size=size),
                progress=self._progress,
                on_answer=self._on_answer,
            )
            async with model:
                self.asker.lead(model.asker)
                selections[size] = chosen = (await model.tune(found, max_queries=max_queries, loss=loss)).chosen
                price = await model.asker.price(found) or 1.0
            choices += [Choice(size, views, (1 + views) * price, brier) for views, brier in enumerate(chosen.losses)]
        best = pilot.taken(pilot.frontier(choices))
        collected, self.profile = pilot.fit(selections[best.size], max(1, best.views), self.description)
        return Sized(Tuned(self.profile, selections[best.size], collected), tuple(choices), best)

    def plan(self, pictures: int, max_queries: int | None = None) -> panels.Plan:
        """The plan of the pilot for this number of pictures; a budget makes it smaller."""
        longest = VIEWS if max_queries is None else max_queries - 1
        return panels.plan(pictures, len(self._candidates()), longest, self.asker.room())

    def _candidates(self) -> tuple[View, ...]:
        """The views among which `tune` chooses: of the picture, and of the question where the classifier takes one."""
        return (*CANDIDATES, *askable(self.classifier, PROMPTED))

    async def search(
        self, pictures: PicturesLike, labels: Sequence[object] | None = None, *, family: str, draws: int = 20
    ) -> Tuned:
        """The paper's search over the settings of one transformation, with the paper's Gaussian model."""
        grid, found = pilot.grid_of(family), _labelled(pictures, labels)
        learn.check_teachable(found, pilot.SEARCHED)
        async with self._showing(len(grid) * len(found)) as asker:
            chosen, settings = await pilot.search(asker, found, grid, draws)
            _check_complete(asker)
        self.profile = learn.learn(chosen.collected, paper.Gaussian(), self.description, n_selection=chosen.pilot)
        return Tuned(self.profile, chosen, chosen.collected, tuple(settings))

    # Verdicts --------------------------------------------------------------------------------------------------------

    def fitted(self) -> Profile:
        """The profile; an error if there is none yet."""
        if self.profile is None:
            raise ProfileError("this model has no profile yet; call fit with labelled pictures, or load one")
        return self.profile

    def policy(self, options: DecisionOptions = DEFAULTS, /, **decision: Unpack[DecisionKeywords]) -> Policy:
        """What these options mean for the profile; kept, since it is the same for every picture."""
        profile, options = self.fitted(), replace(options, **decision)
        if self._policies_of is not profile:
            self._policies_of, self._policies = profile, {}
        if options not in self._policies:
            self._policies[options] = options.of(profile)
        return self._policies[options]

    async def look(
        self, picture: PictureLike, options: DecisionOptions = DEFAULTS, **decision: Unpack[DecisionKeywords]
    ) -> Verdict:
        """Label and confidence of one picture."""
        (verdict,) = [found async for found in self.score([one(picture)], options, **decision)]
        if isinstance(verdict, Unscored):
            raise verdict.error()
        return verdict

    async def burst(self, photos: Sequence[PictureLike] | str | Path, *, frames: int = video.FRAMES) -> Verdict:
        """One verdict for several photos of one thing: the first is the picture, the others are its views.

        A short video stands for evenly spaced frames of it: `model.burst("clip.mp4", frames=8)`.
        """
        verdict = await self.score_burst(photos, frames=frames)
        if isinstance(verdict, Unscored):
            raise verdict.error()
        return verdict

    async def score_burst(
        self, photos: Sequence[PictureLike] | str | Path, *, frames: int = video.FRAMES
    ) -> Verdict | Unscored:
        """The same, or why there is no verdict: the first photo that was not scored."""
        if isinstance(photos, str | Path) or (len(photos) == 1 and isinstance(photos[0], str | Path)):
            path = Path(photos if isinstance(photos, str | Path) else str(photos[0]))
            photos = self.frames(path, frames) if video.is_video_file(path) else many(path)
        if len(photos) < 2:
            raise DataError("a burst is two or more photos of one thing, or one short video; give them all")
        named = [one(photo, f"photo {place}") for place, photo in enumerate(photos, 1)]
        async with self._showing(len(named)) as asker:
            return await look.burst(asker, named, self.fitted())

    def frames(self, path: Path, count: int) -> list[Picture]:
        """Some frames of a video as the photos of a burst; an ImageError says why there are none."""
        found = video.frames(path, str(path), count, self.terms.working_size)
        return [one(image, f"{path.name}#{place}") for place, image in enumerate(found, 1)]

    async def score(
        self,
        pictures: PicturesLike | Iterator[Picture],
        options: DecisionOptions = DEFAULTS,
        **decision: Unpack[DecisionKeywords],
    ) -> AsyncGenerator[Verdict | Unscored]:
        """A verdict for each picture, in their order, or why there is none; answers in the ledger are not asked for."""
        profile, policy = self.fitted(), self.policy(options, **decision)
        found = pictures if isinstance(pictures, Iterator) else many(pictures)
        total = None if isinstance(found, Iterator) else len(found)
        async with self._showing(total) as asker, aclosing(look.look(asker, found, profile, policy)) as verdicts:
            async for verdict in verdicts:
                yield verdict

    async def familiarity(self, pictures: PicturesLike) -> Floats:
        """(n,): how much each picture is like the labelled ones, a p-value in (0, 1]; costs no query.

        At most 1 % of new pictures like them have one of 0.01 or less. A verdict has a lower one if the answers are
        unusual as well. NaN where the profile cannot tell.
        """
        policy, found = self.policy(), many(pictures)
        if policy.familiarity is None or not found:
            return np.full(len(found), np.nan)

        def described() -> Floats:
            images = (picture.image(self.terms.working_size) for picture in found)
            return np.stack([descriptor(image.pixels, image.original_size) for image in images])

        return policy.before_asking(await asyncio.to_thread(described))

    async def evaluate(
        self,
        pictures: PicturesLike,
        labels: Sequence[object] | None = None,
        options: DecisionOptions = DEFAULTS,
        *,
        unlabelled: VerdictsLike | None = None,
        **decision: Unpack[DecisionKeywords],
    ) -> Evaluation:
        """How good the confidences are on labelled pictures that took no part in fitting.

        `unlabelled` are verdicts of this model about other pictures, or the file into which `score` wrote them: their
        confidences narrow the interval of the accuracy.
        """
        policy, found = self.policy(options, **decision), _labelled(pictures, labels)
        # In a thread, since they may be what `score` of this very model is about to give.
        others = None if unlabelled is None else await asyncio.to_thread(evaluate.verdicts_of, unlabelled)
        if others is not None:
            metrics.check_powered(len(found), len(others))
        async with self._showing(len(found)) as asker:
            collected = await learn.collect_for(asker, found, self.fitted(), policy)
        return evaluate.evaluation(collected, self.fitted(), policy, others)

    async def _collected(self, pictures: Sequence[Picture], panel: Panel) -> Collected:
        async with self._showing(len(pictures)) as asker:
            collected = await learn.collect(asker, pictures, panel)
            _check_complete(asker)
        if collected.unscored:
            first = collected.unscored[0]
            problem = f"{len(collected.unscored)} of {len(pictures)} pictures were not scored, such as {first.name}"
            warnings.warn(f"{problem}: {first.message}", stacklevel=2)
        if disputed := collected.distinct().disputed:
            one, other = disputed[0]
            same = f"{len(disputed)} pictures are the same as others and have another truth"
            warnings.warn(f"{same}, such as {other} and {one}: the first truth counts", stacklevel=2)
        return collected

    @asynccontextmanager
    async def _showing(self, pictures: int | None) -> AsyncIterator[Asker]:
        """The asker, ready to send, with its progress shown as was asked for."""
        asker = self.asker
        if self._progress is False:
            yield asker
            return
        from looktwice.asking.progress import callback_display, shown

        async with shown(asker, pictures, None if self._progress is True else callback_display(self._progress)):
            yield asker


def panel_of(views: Panel | str | None, adaptive: bool = False) -> Panel:
    """The panel that a text names, `none` one without views; without a text, the general panel, or sixteen views."""
    if views == NO_VIEWS:
        return Panel(())
    if isinstance(views, str) and NO_VIEWS in views.split():
        raise ViewError(f"{NO_VIEWS!r} means no view at all, and stands alone; leave it or the other views out")
    if views is None or views == "":
        return GENERAL16 if adaptive else GENERAL
    return Panel.parse(views) if isinstance(views, str) else views


def _labelled(pictures: PicturesLike, labels: Sequence[object] | None) -> Sequence[Picture]:
    """Pictures with truths: a collection that has them, or pictures and their labels."""
    if labels is not None:
        return with_truths(many(pictures), labels)
    if isinstance(pictures, str | Path):
        return datasets.open_labelled(Path(pictures))
    found = many(pictures)
    if any(picture.truth is None and not picture.excluded for picture in found):
        raise FitError("the truth of every picture is needed; give labels, or a collection that has them")
    return found


def _check_complete(asker: Asker) -> None:
    """Nothing is learned from the first few pictures of a run that was stopped."""
    if asker.stopped:
        raise DataError("the run was stopped before all pictures were asked about; do it again to resume")


# The same without await ----------------------------------------------------------------------------------------------


class _Loop:
    """An event loop in a thread of its own, so that it does not matter whether the caller has one."""

    def __init__(self) -> None:
        # Not uvloop, 2 to 5 % faster here: a child that this process forks would crash as it ends.
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._ended = False
        self._taking = threading.RLock()  # garbage may be collected while it is held
        self._thread = threading.Thread(target=self._live, name="looktwice", daemon=True)
        self._thread.start()

    @property
    def forked(self) -> bool:
        """Whether it belongs to another process, whose thread this one does not have."""
        return self._process != os.getpid()

    def _live(self) -> None:
        async def leave() -> None:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

        self._loop.run_forever()
        self._loop.run_until_complete(leave())
        self._loop.close()

    def run(self, work: Awaitable[T], interrupt: Callable[[], None], resume: Callable[[], None]) -> T:
        """The result of async work. Ctrl-C interrupts it, waits for its end and resumes; a second one leaves."""
        future = self._take(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(interrupt)
            # In the loop, so that it cannot come before the interrupt, and not before the end: it would go on.
            future.add_done_callback(lambda _: self._soon(resume))
            with suppress(Exception):
                future.result()
            raise
        except CancelledError:
            raise _closed() from None

    def leave(self, work: Coroutine[None, None, None], wait: bool) -> None:
        """Do work that ends something; nothing of it is left where the loop has ended."""
        try:
            future = self._take(work)
        except LookTwiceError:
            return
        if wait:
            with suppress(CancelledError):
                future.result()

    def end(self, work: Coroutine[None, None, None]) -> Future[None]:
        """Do the last work and let the thread end, without waiting for it."""
        with self._taking:
            future = self._take(work)
            self._ended = True
        future.add_done_callback(lambda _: self._soon(self._loop.stop))
        return future

    def close(self, work: Coroutine[None, None, None]) -> None:
        """Run the last coroutine, and wait until the thread has ended."""
        try:
            self.end(work).result()
        finally:
            self._thread.join()

    def _take(self, work: Awaitable[T]) -> Future[T]:
        """Begin work in the loop; an error where there is none."""

        async def main() -> T:
            return await work

        with self._taking:
            if not self._ended and not self.forked:
                return asyncio.run_coroutine_threadsafe(main(), self._loop)
        if inspect.iscoroutine(work):
            work.close()
        raise (
            _closed()
            if self._ended
            else LookTwiceError("the model was opened before this process was forked; make another in this process")
        )

    def _soon(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(work)


def _closed() -> LookTwiceError:
    return LookTwiceError("the model was closed while it was asking; what was answered is kept, so ask again")


def _waiting(
    method: Callable[Concatenate[AsyncModel, P], Awaitable[T]],
) -> Callable[Concatenate[Model, P], T]:
    """A method of `AsyncModel` that is waited for."""

    @wraps(method)
    def call(self: Model, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._opened().run(method(self._model, *args, **kwargs), self._model.stop, self._model.resume)

    return call


class _End:
    """What stands for the end of a stream."""


_END = _End()


def _streaming(
    method: Callable[Concatenate[AsyncModel, P], AsyncGenerator[T]],
) -> Callable[Concatenate[Model, P], Iterator[T]]:
    """A generator of `AsyncModel` that is iterated without await; leaving the loop early stops asking."""

    @wraps(method)
    def call(self: Model, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        found, turn = method(self._model, *args, **kwargs), asyncio.Lock()
        loop, thread = self._opened(), threading.get_ident()

        async def step() -> T | _End:
            async with turn:
                return await anext(found, _END)

        async def leave() -> None:
            async with turn:
                await found.aclose()

        self._streams.add(leave)
        try:
            while not isinstance(item := loop.run(step(), self._model.stop, self._model.resume), _End):
                yield item
                thread = threading.get_ident()
        finally:
            self._streams.discard(leave)
            # Other threads get here as they collect garbage, and may be those that are waited for.
            loop.leave(leave(), wait=threading.get_ident() == thread and not turn.locked())

    return call


class Model:
    """A closed classifier that says how sure it is; see `AsyncModel` for the arguments.

    >>> import numpy as np
    >>> def classify(image): return "bright" if image.mean() > 128 else "dark"
    >>> images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8)
    >>> with Model(classify) as model:
    ...     profile = model.fit(images, [classify(image) for image in images], views="gaussian:0.1*4")
    ...     model.look(images[0]).label in ("bright", "dark")
    True
    """

    def __init__(
        self,
        classifier: Source,
        profile: Profile | None = None,
        *,
        options: AskOptions | None = None,
        progress: ShowProgress = False,
        on_answer: OnAnswer | None = None,
        **asking: Unpack[AskKeywords],
    ) -> None:
        self._wrap(AsyncModel(classifier, profile, options=options, progress=progress, on_answer=on_answer, **asking))

    @classmethod
    def load(
        cls,
        path: str | Path,
        classifier: Source | None = None,
        *,
        options: AskOptions | None = None,
        progress: ShowProgress = False,
        on_answer: OnAnswer | None = None,
        **asking: Unpack[AskKeywords],
    ) -> Self:
        """The model of a saved profile; `classifier` says where the classifier is if that has changed."""
        model = cls.__new__(cls)
        model._wrap(
            AsyncModel.load(path, classifier, options=options, progress=progress, on_answer=on_answer, **asking)
        )
        return model

    def _wrap(self, model: AsyncModel) -> None:
        self._model = model
        self._loop: _Loop | None = None
        self._opening = threading.Lock()
        self._streams: set[Callable[[], Coroutine[None, None, None]]] = set()
        """What ends each stream that is not read to its end."""

    @property
    def profile(self) -> Profile | None:
        """What was learned about the classifier; None before `fit`."""
        return self._model.profile

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON."""
        self._model.save(path)

    def learn(
        self, collected: Collected, calibrator: Calibrator, *, fixed: int | None = None, max_error: float | None = None
    ) -> Profile:
        """Fit on answers that `ask` gave; costs no query."""
        return self._model.learn(collected, calibrator, fixed=fixed, max_error=max_error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is queued, and give everything back; the next call opens it again."""
        with self._opening:
            loop, self._loop = self._loop, None
        if loop:
            _open_models().discard(self)
            self._forgotten.detach()
            if not loop.forked:
                loop.close(self._leave())

    async def _leave(self) -> None:
        """End what is being asked, and keep what was answered of it."""
        if self._model._asker:
            self._model.stop("the model was closed")
        for leave in [*self._streams]:
            await leave()
        await self._model.close()

    def _opened(self) -> _Loop:
        with self._opening:
            self._loop = self._loop or self._open()
            return self._loop

    def _open(self) -> _Loop:
        loop, model = _Loop(), self._model
        # Whoever collects the garbage must not wait: it may hold a lock that closing needs.
        self._forgotten = weakref.finalize(self, lambda: None if loop.forked else loop.end(model.close()))
        self._forgotten.atexit = False
        _open_models().add(self)
        return loop

    ask = _waiting(AsyncModel.ask)
    estimate = _waiting(AsyncModel.estimate)
    check = _waiting(AsyncModel.check)
    fit = _waiting(AsyncModel.fit)
    tune = _waiting(AsyncModel.tune)
    tune_sizes = _waiting(AsyncModel.tune_sizes)
    search = _waiting(AsyncModel.search)
    look = _waiting(AsyncModel.look)
    burst = _waiting(AsyncModel.burst)
    score_burst = _waiting(AsyncModel.score_burst)
    score = _streaming(AsyncModel.score)
    familiarity = _waiting(AsyncModel.familiarity)
    evaluate = _waiting(AsyncModel.evaluate)


@cache
def _open_models() -> weakref.WeakSet[Model]:
    """The models that nobody has closed yet; the process closes them when it ends."""
    found = weakref.WeakSet[Model]()

    def close() -> None:
        for model in list(found):
            with suppress(RuntimeError):  # no thread can be started any more to close a ledger, whose answers are saved
                model.close()

    atexit.register(close)
    return found
