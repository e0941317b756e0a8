"""`AsyncModel`: a classifier with its ledger and budget and, once fitted, its profile; every interface calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack

import numpy as np

from looktwice.calibration import calibrators, metrics, panels, paper
from looktwice.calibration.base import Calibrator
from looktwice.classifiers import trust
from looktwice.classifiers.base import Pixels
from looktwice.classifiers.registry import Source
from looktwice.decisions import evaluation, fitting, judging, pilot, planning, transferring
from looktwice.decisions.evaluation import Evaluation, VerdictsLike
from looktwice.decisions.fitting import Collected, OnCollected
from looktwice.decisions.judging import Judging
from looktwice.decisions.pilot import Choice, Selection, Sized, Tuned
from looktwice.decisions.policy import DecisionKeywords, DecisionOptions, Policy
from looktwice.decisions.profile import Profile
from looktwice.decisions.stream import Monitor
from looktwice.decisions.transferring import Transferred
from looktwice.decisions.verdict import Verdict
from looktwice.engine.estimate import Estimate
from looktwice.engine.options import AskKeywords, AskOptions
from looktwice.engine.outcome import Unscored
from looktwice.engine.query import OnAnswer, askable
from looktwice.errors import DataError, FitError, ProfileError
from looktwice.images import datasets, video
from looktwice.images.collection import Picture, PictureLike, PicturesLike, many, one, with_truths
from looktwice.images.descriptor import Floats, descriptor
from looktwice.model.connection import Connection, ShowProgress
from looktwice.plots import figures
from looktwice.transfer.noise import NoiseFile
from looktwice.views import CANDIDATES, GENERAL, PROMPTED, Panel, View, questions, render
from looktwice.views.panels import panel_of

VIEWS = 8
"""Views that a tuned panel may have, unless more or fewer are asked for."""
DEFAULTS = DecisionOptions()


class AsyncModel(Connection):
    """A black-box classifier that says how sure it is.

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
        options = replace(options or AskOptions(), **asking)
        if profile and options.working_size is None:
            options = replace(options, working_size=profile.working_size)
        super().__init__(classifier, options, profile.seed if profile else 0, progress, on_answer)
        self.profile = profile
        if profile:
            profile.check(self.classifier)
        self._policies_of: Profile | None = None
        self._policies: dict[DecisionOptions, tuple[Policy, Judging]] = {}

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
        """The model of a saved profile; an UntrustedError if it names a classifier that the user has not approved.

        `classifier` names the classifier in place of the profile. A profile that was saved here is approved.
        """
        profile = Profile.load(Path(path))
        source = trust.checked(profile.classifier, Path(path)) if classifier is None else classifier
        return cls(source, profile, options=options, progress=progress, on_answer=on_answer, **asking)

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON, and approve the classifier for `load`."""
        self.fitted().save(Path(path))
        trust.remember(self.description)

    # Asking ----------------------------------------------------------------------------------------------------------

    async def ask(
        self, pictures: PicturesLike, labels: Sequence[object] | None = None, *, views: Panel | str | None = None
    ) -> Collected:
        """The answers about every picture under a panel, with truths where all are known.

        Without `views` it is the profile's panel, with codes of the profile's vocabulary, or the general one.
        """
        found = _labelled(pictures, labels) if labels is not None else many(pictures)
        async with self._showing(len(found)) as engine:
            if views is None and self.profile:
                return await fitting.collect_for(engine, found, self.profile)
            return await fitting.collect(engine, found, panel_of(views))

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
            return await self.engine.estimate(found, panel_of(views))
        policy = self.policy(options, **decision)
        return await self.engine.estimate(found, policy.panel, policy.screen())

    # Learning --------------------------------------------------------------------------------------------------------

    async def fit(
        self,
        pictures: PicturesLike,
        labels: Sequence[object] | None = None,
        *,
        views: Panel | str | None = None,
        calibrator: Calibrator | str = "jury",
        noise: str | Path | None = None,
        adaptive: bool = False,
        max_error: float | None = None,
        on_collected: OnCollected | None = None,
    ) -> Profile:
        """Learn how far to trust the classifier, from pictures whose truth is known.

        `pictures` is a collection with truths (a folder with one folder per class or with `labels.csv`, an `.npz`, an
        official data set), or pictures with `labels`. `noise` is the file of `looktwice noise`, for the calibrator
        `transfer`. `adaptive` asks sixteen views, so that later looks can ask more about unsure pictures, if 200
        answers or more were wrong; `max_error` lets them stop by whether an answer would still be accepted at that
        error. `on_collected` is called with the answers before they teach; by default it warns of those that miss.
        """
        panel, found = panel_of(views, adaptive), _labelled(pictures, labels)
        if (noise is not None) != (calibrator == paper.Transfer.name):
            raise FitError("the calibrator transfer and its noise, the file of `looktwice noise`, belong together")
        if noise is None:
            family = calibrators.named(calibrator)
        else:
            family = paper.Transfer(noise=NoiseFile.load(Path(noise)).of(panel))
        collected = await self._collected(found, panel, on_collected)
        return self.learn(collected, family, fixed=None if views else len(GENERAL), max_error=max_error)

    async def _collected(
        self, pictures: Sequence[Picture], panel: Panel, on_collected: OnCollected | None = None
    ) -> Collected:
        fitting.check_teachable(pictures)
        async with self._showing(len(pictures)) as engine:
            return await fitting.collect_to_learn(engine, pictures, panel, on_collected or fitting.warn)

    def learn(
        self, collected: Collected, calibrator: Calibrator, *, fixed: int | None = None, max_error: float | None = None
    ) -> Profile:
        """Fit on answers that `ask` gave; costs no query."""
        self.profile = fitting.learn(collected, calibrator, self.description, fixed=fixed, max_error=max_error)
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
        fitting.check_teachable(found)
        plan = self.plan(len(found), max_queries)
        async with self._showing(len(found)) as engine:
            chosen = await pilot.choose(engine, found, plan, self._candidates(), GENERAL, panels.LOSSES[loss])
        tuned = pilot.fit(chosen, plan.longest if max_queries else chosen.knee, self.description)
        self.profile = tuned.profile
        return tuned

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
        options = self.options.settled(self.terms, self.engine.spend())
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
                self.engine.lead(model.engine)
                selections[size] = chosen = (await model.tune(found, max_queries=max_queries, loss=loss)).chosen
                price = await model.engine.price(found) or 1.0
            choices += [Choice(size, views, (1 + views) * price, brier) for views, brier in enumerate(chosen.losses)]
        best = pilot.taken(pilot.frontier(choices))
        tuned = pilot.fit(selections[best.size], max(1, best.views), self.description)
        self.profile = tuned.profile
        return Sized(tuned, tuple(choices), best)

    def plan(self, pictures: int, max_queries: int | None = None) -> panels.Plan:
        """The plan of the pilot for this number of pictures; a budget makes it smaller."""
        longest = VIEWS if max_queries is None else max_queries - 1
        remaining = self.engine.runner.remaining() if self.options.is_limited() else None
        return panels.plan(pictures, len(self._candidates()), longest, remaining)

    def _candidates(self) -> tuple[View, ...]:
        """The views among which `tune` chooses: of the picture, and of the question where the classifier takes one."""
        return (*CANDIDATES, *askable(self.classifier, PROMPTED))

    async def search(
        self, pictures: PicturesLike, labels: Sequence[object] | None = None, *, family: str, draws: int = 20
    ) -> Tuned:
        """The paper's search over the settings of one transformation, with the paper's Gaussian model."""
        grid, found = pilot.grid_of(family), _labelled(pictures, labels)
        fitting.check_teachable(found, pilot.SEARCHED)
        async with self._showing(len(grid) * len(found)) as engine:
            chosen, settings = await pilot.search(engine, found, grid, draws)
        self.profile = fitting.learn(chosen.collected, paper.Gaussian(), self.description, n_selection=chosen.pilot)
        return Tuned(self.profile, chosen, chosen.collected, tuple(settings))

    async def transfer(
        self,
        noise: NoiseFile | str | Path,
        pictures: PicturesLike,
        labels: Sequence[object] | None = None,
        *,
        draws: int = 10,
        on_collected: OnCollected | None = None,
    ) -> Transferred:
        """The paper's prescription: fit with the F_n of the view that did best on an open model, and compare.

        `noise` was measured on the open model. The pictures are asked about under draws of that view and, for the
        jury that it is compared with, under the general panel.
        """
        chosen = (noise if isinstance(noise, NoiseFile) else NoiseFile.load(Path(noise))).best()
        found = _labelled(pictures, labels)
        drawn = await self._collected(found, Panel.parse(f"{chosen.view}*{draws}"), on_collected)
        general = await self._collected(found, GENERAL, lambda _: None)
        result = transferring.transferred(chosen, drawn, general, self.description)
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
        """Make a profile out of another classifier's jury, and of labelled pictures if there are any: fifty help."""
        source = teacher if isinstance(teacher, Profile) else Profile.load(Path(teacher))
        if found := _labelled(pictures, labels):
            transferring.jury_of(source)
            collected = await self._collected(found, source.views(), on_collected)
            self.profile = transferring.taught(source, collected, self.description)
        else:
            seed = self.options.seed or 0
            self.profile = transferring.untaught(source, self.classifier, self.description, seed)
        return self.profile

    # Verdicts --------------------------------------------------------------------------------------------------------

    def fitted(self) -> Profile:
        """The profile; an error if there is none yet."""
        if self.profile is None:
            raise ProfileError("this model has no profile yet; call fit with labelled pictures, or load one")
        return self.profile

    def policy(self, options: DecisionOptions = DEFAULTS, /, **decision: Unpack[DecisionKeywords]) -> Policy:
        """What these options mean for the profile; kept, since it is the same for every picture."""
        return self._judging(replace(options, **decision))[0]

    def _judging(self, options: DecisionOptions) -> tuple[Policy, Judging]:
        profile = self.fitted()
        if self._policies_of is not profile:
            self._policies_of, self._policies = profile, {}
        if options not in self._policies:
            policy = options.of(profile)
            self._policies[options] = policy, Judging(profile, policy)
        return self._policies[options]

    def strictest_guarantee(self, options: DecisionOptions = DEFAULTS) -> DecisionOptions:
        """The options with a guarantee: the one they name, or the strictest that the labelled pictures support."""
        return planning.strictest_guarantee(options, self.fitted())

    def monitor(self, options: DecisionOptions = DEFAULTS) -> Monitor:
        """Tests of live verdicts for drift: give it each verdict made with these options."""
        return Monitor(self.policy(options))

    def reliability_svg(self, options: DecisionOptions = DEFAULTS) -> str:
        """The reliability diagram of the labelled pictures on held-out folds; an empty one where none are known."""
        held_out = self.policy(options).held_out
        if not held_out.correct:
            return '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1" width="0" height="0"></svg>'
        curve = metrics.reliability(*held_out.arrays())
        return figures.reliability_svg(curve, title="Confidence and how often it was right")

    def rendered(self, picture: PictureLike, options: DecisionOptions = DEFAULTS) -> Iterator[Pixels]:
        """Each view of a picture as the classifier is shown it, in the order of the panel."""
        image = one(picture).image(self.terms.working_size)
        for question in questions(image, self.policy(options).panel, self.engine.settings.seed):
            yield from render(image, [question])

    async def look(
        self,
        picture: PictureLike,
        options: DecisionOptions = DEFAULTS,
        *,
        on_answer: OnAnswer | None = None,
        **decision: Unpack[DecisionKeywords],
    ) -> Verdict:
        """Label and confidence of one picture; `on_answer` is called with every answer about it.

        If it is cancelled it returns at once, and answers that are in flight are kept when they come.
        """
        found = self.score([one(picture)], options, on_answer=on_answer, **decision)
        (verdict,) = [verdict async for verdict in found]
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
        self,
        photos: Sequence[PictureLike] | str | Path,
        *,
        frames: int = video.FRAMES,
        on_answer: OnAnswer | None = None,
    ) -> Verdict | Unscored:
        """The same, or why there is no verdict: the first photo that was not scored."""
        if isinstance(photos, str | Path) or (len(photos) == 1 and isinstance(photos[0], str | Path)):
            path = Path(photos if isinstance(photos, str | Path) else str(photos[0]))
            photos = self.frames(path, frames) if video.is_video_file(path) else many(path)
        if len(photos) < 2:
            raise DataError("a burst is two or more photos of one thing, or one short video; give them all")
        named = [one(photo, f"photo {place}") for place, photo in enumerate(photos, 1)]
        async with self._showing(len(named)) as engine:
            return await judging.burst(engine, named, self.fitted(), on_answer)

    def frames(self, path: Path, count: int) -> list[Picture]:
        """Some frames of a video as the photos of a burst; an ImageError says why there are none."""
        found = video.frames(path, str(path), count, self.terms.working_size)
        return [one(image, f"{path.name}#{place}") for place, image in enumerate(found, 1)]

    async def score(
        self,
        pictures: PicturesLike | Iterator[Picture],
        options: DecisionOptions = DEFAULTS,
        *,
        on_answer: OnAnswer | None = None,
        **decision: Unpack[DecisionKeywords],
    ) -> AsyncGenerator[Verdict | Unscored]:
        """A verdict for each picture, in their order, or why there is none; answers in the ledger are not asked for.

        Each is handed over as soon as it and those before it are answered; `on_answer` is called with each answer as
        it arrives.
        """
        policy, judge = self._judging(replace(options, **decision))
        found = pictures if isinstance(pictures, Iterator) else many(pictures)
        total = None if isinstance(found, Iterator) else len(found)
        async with (
            self._showing(total) as engine,
            aclosing(judging.look(engine, found, self.fitted(), policy, on_answer, judge)) as verdicts,
        ):
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
        others = None if unlabelled is None else await asyncio.to_thread(evaluation.verdicts_of, unlabelled)
        if others is not None:
            metrics.check_powered(len(found), len(others))
        async with self._showing(len(found)) as engine:
            collected = await fitting.collect_for(engine, found, self.fitted(), policy)
        return evaluation.evaluation(collected, self.fitted(), policy, others)


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
