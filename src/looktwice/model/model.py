"""`AsyncModel`: a classifier with its ledger and budget and, once fitted, its profile; every interface calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self, Unpack, cast

import numpy as np

from looktwice.calibration import Calibrator, Gaussian, Jury, Transfer, calibrators, risk
from looktwice.classifiers import AnswerKind
from looktwice.decisions import (
    Collected,
    DecisionKeywords,
    DecisionOptions,
    Evaluation,
    FitResult,
    NoiseFile,
    OnCollected,
    Profile,
    TagPolicy,
    Transferred,
    Verdict,
    VerdictsLike,
    collecting,
    evaluation,
    fitting,
    judging,
    pilot,
    tagging,
)
from looktwice.engine import Cause, Checkup, Estimate, OnAnswer, QueryEngine, Transaction, Unscored, check
from looktwice.errors import DataError, FitError, LookTwiceError
from looktwice.images import (
    Floats,
    Image,
    Picture,
    PictureLike,
    PicturesLike,
    collection,
    has_truths,
    many,
    one,
    with_truths,
)
from looktwice.model.connection import DEFAULTS, ModelState
from looktwice.views import GENERAL, Panel, panel_of

NO_LABEL = Cause.NO_LABEL.code


class AsyncModel(ModelState):
    """A black-box classifier with calibrated confidence.

    `classifier` is a description such as `onnx:model.onnx`, a TOML file, a Python function of one picture (or of a
    `batch`), or a connected classifier. The keyword arguments are those of `AskOptions`. `progress` shows a bar, or
    is called with the `Progress` of the run; `on_answer` is called with every answer as it arrives.
    Leaving the context manager, or `close`, saves all answers and releases all resources.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write queued answers, and close the ledger and the classifiers; the next call reopens them."""
        engine, self._engine = self._engine, None
        for open_one in [engine] if engine else [each.classifier for each in self.connected]:
            await open_one.close()

    @asynccontextmanager
    async def _showing(self, pictures: int | None) -> AsyncIterator[QueryEngine]:
        """The engine, ready to send, with progress display."""
        engine = self.engine
        if self._progress is False:
            yield engine
            return
        from looktwice.model.runs import callback_display, shown

        async with shown(engine, pictures, None if self._progress is True else callback_display(self._progress)):
            yield engine

    # Asking ----------------------------------------------------------------------------------------------------------

    async def check(self, picture: PictureLike | None = None) -> Checkup:
        """Ask about one picture, or a test image, three times: latency, price, limits, and repeatability."""
        if self.options.batch:
            raise LookTwiceError(
                "a check asks three times at once, but a batch takes up to a day; leave --batch out",
                code="option-conflict",
            )
        image = Image.from_array(check.test_card()) if picture is None else one(picture).image(self.limits.working_size)
        return await check.examine(self.engine.first, image)

    async def estimate(
        self,
        pictures: PicturesLike | Iterator[Picture],
        options: DecisionOptions = DEFAULTS,
        *,
        views: Panel | str | None = None,
        **decision: Unpack[DecisionKeywords],
    ) -> Estimate:
        """The maximum cost of querying these pictures; nothing is sent."""
        opened = pictures if isinstance(pictures, Iterator) else many(pictures)
        if views is not None:
            return await self.engine.estimate(opened, panel_of(views))
        policy = self.policy(options, **decision)
        return await self.engine.estimate(opened, policy.panel, policy.screen())

    async def ask(
        self, pictures: PicturesLike, labels: Sequence[object] | None = None, *, views: Panel | str | None = None
    ) -> Collected:
        """Collect the answers about every picture under a panel, with the true labels if all are known.

        The default panel is the profile's, with the profile's vocabulary; without a profile, it is the general panel.
        """
        known = labels is not None or has_truths(pictures)
        opened = labelled(pictures, labels, self.kind) if known else many(pictures)
        async with self._showing(len(opened)) as engine:
            if self.kind == "tags":
                panel = self.profile.views() if views is None and self.profile else self.panel(views)
                return await tagging.collect(engine, opened, panel)
            if views is None and self.profile:
                return await collecting.collect_for(engine, opened, self.profile)
            return await collecting.collect(engine, opened, panel_of(views))

    async def fit(
        self,
        pictures: PicturesLike,
        labels: Sequence[object] | None = None,
        *,
        views: Panel | str | None = None,
        calibrator: Calibrator | str = "jury",
        noise: str | Path | None = None,
        paper: str | None = None,
        draws: int = 20,
        max_price: float | None = None,
        max_queries: float | None = None,
        on_collected: OnCollected | None = None,
    ) -> FitResult:
        """Learn from labelled pictures how reliable the classifier's answers are, and which queries to send.

        `pictures` is a collection with true labels (a folder with one folder per class or with `labels.csv`, an `.npz`,
        an official data set), or pictures with `labels`. A pilot on a quarter of them selects the views, wordings and
        classifiers that are worth their cost, and only these are used for the other pictures; `plan` estimates the
        cost. The sequence of queries and the stopping rule are selected within `max_price` and `max_queries` per
        picture, on average; by default they are the cheapest whose Brier score is within one standard error and 1 % of
        the best.

        `views` replaces this selection by a fixed panel. `noise` is a file written by `looktwice noise`, for the
        calibrator `transfer`. `paper` searches the settings of one transformation as the paper does, in this many
        `draws`. `on_collected` is called with the answers before fitting; by default, a warning reports missing
        answers.
        """
        train = labelled(pictures, labels, self.kind)
        if self.kind == "tags":
            chosen = {"noise": noise, "paper": paper, "max_price": max_price, "max_queries": max_queries}
            return await self._fit_tags(train, self.panel(views), calibrator, chosen, on_collected)
        family, tell = self._calibrator(calibrator, noise, views), on_collected or collecting.warn
        asked = self._asked()
        if len(asked) > 1 and not (isinstance(family, Jury) and paper is None):
            raise FitError(
                "several classifiers need a jury; leave out paper and other calibrators, or give one classifier",
                code="option-conflict",
            )
        if paper is not None:
            return await self._search(train, paper, draws)
        collecting.check_teachable(train)
        panel, choice = self.panel(views), pilot.limits(asked, max_price, max_queries)
        fixed = views not in (None, "") or not isinstance(family, Jury)
        async with self._showing(len(train)) as engine:
            if fixed:
                selection = await pilot.ask_all(engine, train, panel)
            else:
                selection = await pilot.ask(engine, train, panel, asked)
        collected = collecting.check_learnable(selection.collected, len(train), tell)
        if isinstance(family, Jury):
            whole = fixed and len(asked) == 1
            result = pilot.fit(replace(selection, collected=collected), asked, choice, family.ballot, whole)
        else:
            profile = fitting.learn(collected, family, self.description)
            result = FitResult(profile, collected)
        self.profile = result.profile
        return result

    def _calibrator(
        self, calibrator: Calibrator | str, noise: str | Path | None, views: Panel | str | None
    ) -> Calibrator:
        if (noise is not None) != (calibrator == Transfer.name):
            raise FitError(
                "calibrator transfer and noise, the file written by `looktwice noise`, must be given together",
                code="option-conflict",
            )
        if noise is None:
            return calibrators.named(calibrator)
        return Transfer(noise=NoiseFile.load(Path(noise)).cumulative_for(panel_of(views)))

    async def _fit_tags(
        self,
        pictures: Sequence[Picture],
        panel: Panel,
        calibrator: Calibrator | str,
        options: Mapping[str, object],
        on_collected: OnCollected | None,
    ) -> FitResult:
        """Query every classifier about every labelled picture, and learn the probability of each tag."""
        given = [name for name, value in options.items() if value is not None]
        if given or calibrator != "jury":
            raise FitError(
                f"{(given or ['calibrator'])[0]} is for single-label answers, but this classifier returns tags; "
                "leave it out",
                code="option-conflict",
            )
        async with self._showing(len(pictures)) as engine:
            self.profile, collected = await tagging.fit(engine, pictures, panel, on_collected)
        return FitResult(self.profile, collected)

    async def _collected(
        self, pictures: Sequence[Picture], panel: Panel, on_collected: OnCollected | None = None
    ) -> Collected:
        collecting.check_teachable(pictures)
        async with self._showing(len(pictures)) as engine:
            collected = await collecting.collect(engine, pictures, panel)
        return collecting.check_learnable(collected, len(pictures), on_collected or collecting.warn)

    async def _search(self, pictures: Sequence[Picture], family: str, draws: int) -> FitResult:
        """The paper's search over the settings of one transformation, with the paper's Gaussian model."""
        grid = pilot.grid_of(family)
        collecting.check_teachable(pictures, pilot.SEARCHED)
        async with self._showing(len(grid) * len(pictures)) as engine:
            chosen, settings = await pilot.search(engine, pictures, grid, draws)
        self.profile = fitting.learn(chosen.collected, Gaussian(), self.description, n_selection=chosen.pilot)
        return FitResult(self.profile, chosen.collected, settings=tuple(settings), pilot=chosen.pilot)

    async def transfer(
        self,
        noise: NoiseFile | str | Path,
        pictures: PicturesLike,
        labels: Sequence[object] | None = None,
        *,
        draws: int = 10,
        on_collected: OnCollected | None = None,
    ) -> Transferred:
        """The paper's prescription: fit with the F_n of the best view on an open model, and compare the result with
        other calibrators.

        `noise` is the noise measured on the open model. The pictures are queried under draws of that view and, for the
        jury used as a comparison, under the general panel.
        """
        chosen = (noise if isinstance(noise, NoiseFile) else NoiseFile.load(Path(noise))).best()
        train = self._one_label(pictures, labels)
        drawn = await self._collected(train, Panel.parse(f"{chosen.view}*{draws}"), on_collected)
        general = await self._collected(train, GENERAL, lambda _: None)
        result = fitting.transferred(chosen, drawn, general, self.description)
        self.profile = result.profile
        return result

    async def borrow(
        self,
        teacher: Profile | str | Path,
        pictures: PicturesLike = (),
        labels: Sequence[object] | None = None,
        *,
        on_collected: OnCollected | None = None,
    ) -> Profile:
        """Make a profile from another classifier's jury, and from labelled pictures if given; as few as fifty help.

        If the teacher is the classifier's own profile, labelled pictures update it after a change in the pictures.
        """
        source = teacher if isinstance(teacher, Profile) else Profile.load(Path(teacher))
        if self.kind == "tags":
            train = labelled(pictures, labels, self.kind)
            async with self._showing(len(train)) as engine:
                self.profile = await tagging.repair(engine, train, source, on_collected)
        elif train := self._one_label(pictures, labels):
            fitting.jury_of(source)
            collected = await self._collected(train, source.views(), on_collected)
            self.profile = fitting.taught(source, collected, self.description)
        else:
            seed = self.options.seed or 0
            self.profile = fitting.untaught(source, self.classifier, self.description, seed)
        return self.profile

    def _one_label(self, pictures: PicturesLike, labels: Sequence[object] | None) -> Sequence[Picture]:
        """Labelled pictures for methods that need one label per picture."""
        if self.kind == "tags":
            raise FitError(
                "this is for single-label answers, but the classifier returns tags; use fit", code="option-conflict"
            )
        return labelled(pictures, labels)

    # Verdicts --------------------------------------------------------------------------------------------------------

    async def end_alarm(self) -> None:
        """End a drift alarm, here and in the ledger."""
        if self.profile and self.engine.ledger:
            digest = self.profile.digest
            await self.engine.ledger.change(partial(Transaction.set_alarm, profile=digest, alarm=None))
        self._policies = {}

    async def look(
        self,
        picture: PictureLike,
        options: DecisionOptions = DEFAULTS,
        *,
        on_answer: OnAnswer | None = None,
        **decision: Unpack[DecisionKeywords],
    ) -> Verdict:
        """The label and confidence for one picture, or a `TagVerdict`; `on_answer` is called with every answer about
        the picture.

        If cancelled, the method returns at once, and answers in flight are stored when they arrive.
        """
        verdicts = self.score([one(picture)], options, on_answer=on_answer, **decision)
        (verdict,) = [verdict async for verdict in verdicts]
        if isinstance(verdict, Unscored):
            raise verdict.error()
        return verdict

    async def burst(self, photos: Sequence[PictureLike] | str | Path) -> Verdict:
        """One verdict for several photos of one object: the first is the picture, the others are its views."""
        verdict = await self.score_burst(photos)
        if isinstance(verdict, Unscored):
            raise verdict.error()
        return verdict

    async def score_burst(
        self,
        photos: Sequence[PictureLike] | str | Path,
        *,
        on_answer: OnAnswer | None = None,
    ) -> Verdict | Unscored:
        """The verdict on a burst; if some photos were not scored, the `Unscored` of the first one."""
        if isinstance(photos, str | Path) or len(photos) == 1:
            photos = many(photos)
        if len(photos) < 2:
            raise DataError("a burst is two or more photos of one object; give all of them", code="pictures-none")
        named = [one(photo, f"photo {place}") for place, photo in enumerate(photos, 1)]
        async with self._showing(len(named)) as engine:
            return await judging.burst(engine, named, self.fitted(), on_answer)

    async def score(
        self,
        pictures: PicturesLike | Iterator[Picture],
        options: DecisionOptions = DEFAULTS,
        *,
        on_answer: OnAnswer | None = None,
        **decision: Unpack[DecisionKeywords],
    ) -> AsyncGenerator[Verdict | Unscored]:
        """Yield a verdict for each picture, in order, or the reason why there is none; queries with stored answers are
        not sent again.

        After a drift alarm, verdicts are held.

        Each verdict is yielded as soon as its picture and all previous ones are answered; `on_answer` is called with
        each answer as it arrives.
        """
        policy, judge, monitor = self._judging(replace(options, **decision))
        opened = pictures if isinstance(pictures, Iterator) else many(pictures)
        total = None if isinstance(opened, Iterator) else len(opened)
        async with (
            self._showing(total) as engine,
            aclosing(judging.look(engine, opened, self.fitted(), policy, on_answer, judge)) as verdicts,
        ):
            fair, down = True, set[str]()
            async for verdict in verdicts:
                if not isinstance(verdict, Unscored):
                    # A classifier that is down or out of budget is not a change of the pictures.
                    down |= {asked.classifier for asked in verdict.asked if asked.code not in (None, NO_LABEL)}
                    down -= {asked.classifier for asked in verdict.asked if asked.label is not None}
                    yield await monitor.observe(verdict, engine.ledger, compare=fair and not down)
                else:
                    # Which pictures still get a verdict then depends on what was asked before, such as the harder ones.
                    fair = fair and verdict.cause not in (Cause.BUDGET, Cause.STOPPED)
                    yield verdict

    async def familiarity(self, pictures: PicturesLike) -> Floats:
        """(n,): the familiarity of each picture, a p-value in (0, 1]; sends no query.

        At most 1 % of new familiar pictures have a familiarity of 0.01 or less. A verdict may report a lower
        familiarity, if the answers are unusual too. NaN if the profile does not support this.
        """
        policy, opened = self.policy(), many(pictures)
        if (familiarity := policy.familiarity) is None or not opened:
            return np.full(len(opened), np.nan)

        def described() -> Floats:
            return np.stack([familiarity.describe(picture.image(self.limits.working_size)) for picture in opened])

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
        """Evaluate the confidences on held-out labelled pictures; returns a `TagEvaluation` for tags.

        `unlabelled` contains this model's verdicts on other pictures, or is a file from `score`; their confidences
        narrow the interval of the accuracy.
        """
        policy, test = self.policy(options, **decision), labelled(pictures, labels, self.kind)
        if self.kind == "tags":
            if unlabelled is not None:
                raise DataError(
                    "unlabelled verdicts are for single-label answers; leave them out", code="option-conflict"
                )
            async with self._showing(len(test)) as engine:
                judged = await tagging.evaluate(engine, test, self.fitted(), cast("TagPolicy", policy))
            return cast("Evaluation", judged)
        # In a thread, since they may be a generator from `score` of the same model.
        others = None if unlabelled is None else await asyncio.to_thread(evaluation.verdicts_of, unlabelled)
        if others is not None:
            risk.check_powered(len(test), len(others))
        async with self._showing(len(test)) as engine:
            collected = await collecting.collect_for(engine, test, self.fitted(), policy)
        return evaluation.evaluate(collected, self.fitted(), policy, others)


def labelled(pictures: PicturesLike, labels: Sequence[object] | None, kind: AnswerKind = "label") -> Sequence[Picture]:
    """Pictures with true labels or tags: from a collection that contains them, or from pictures and separate labels."""
    if labels is not None:
        opened: Sequence[Picture] = with_truths(many(pictures), labels)
    elif isinstance(pictures, str | Path):
        opened = collection.labelled(Path(pictures))
    elif len(pictures) and all(
        isinstance(item, str | Path) and (Path(item).is_dir() or Path(item).suffix == ".npz") for item in pictures
    ):
        opened = collection.open_all_labelled([Path(str(item)) for item in pictures])
    else:
        opened = many(pictures)
    return collection.of_kind(opened, kind)
