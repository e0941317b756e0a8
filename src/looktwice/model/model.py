"""`AsyncModel`: a classifier with its ledger and budget and, once fitted, its profile; every interface calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self, Unpack, cast

import numpy as np

from looktwice.calibration import Calibrator, Jury, calibrators, metrics, paper, powered
from looktwice.classifiers import AnswerKind, Pixels, trust
from looktwice.decisions import (
    Collected,
    DecisionKeywords,
    DecisionOptions,
    Evaluation,
    FitResult,
    Frontier,
    Judging,
    Monitor,
    OnCollected,
    Plan,
    Policy,
    Profile,
    ProfileClassifier,
    Selection,
    TagPolicy,
    Transferred,
    Verdict,
    VerdictsLike,
    evaluation,
    fitting,
    judging,
    pilot,
    planning,
    tagging,
    transferring,
)
from looktwice.engine import Cause, Estimate, OnAnswer, Transaction, Unscored, askable
from looktwice.errors import DataError, FitError, ProfileError
from looktwice.images import (
    Floats,
    Picture,
    PictureLike,
    PicturesLike,
    datasets,
    descriptor,
    has_truths,
    many,
    one,
    video,
    with_truths,
)
from looktwice.model.connection import Classifiers, Connection, ShowProgress, of_profile
from looktwice.model.options import AskKeywords, AskOptions
from looktwice.model.project import Project
from looktwice.plots import figures
from looktwice.transfer import NoiseFile
from looktwice.views import GENERAL, PROMPTED, At, Base, Panel, panel_of, questions, render

NO_LABEL = Cause.NO_LABEL.code
DEFAULTS = DecisionOptions()


class AsyncModel(Connection):
    """A black-box classifier with calibrated confidence.

    `classifier` is a description such as `onnx:model.onnx`, a TOML file, a Python function of one picture (or of a
    `batch`), or a connected classifier. The keyword arguments are those of `AskOptions`. `progress` shows a bar, or
    is called with the `Progress` of the run; `on_answer` is called with every answer as it arrives.
    Leaving the context manager, or `close`, saves all answers and releases all resources.
    """

    def __init__(
        self,
        classifier: Classifiers,
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
            profile.check({connected.name: connected for connected in self.connected})
        self._policies_of: Profile | None = None
        self._policies: dict[DecisionOptions, tuple[Policy, Judging, Monitor]] = {}

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        classifiers: Classifiers | None = None,
        *,
        options: AskOptions | None = None,
        progress: ShowProgress = False,
        on_answer: OnAnswer | None = None,
        **asking: Unpack[AskKeywords],
    ) -> Self:
        """Load a saved profile; raises an UntrustedError if it names a classifier that the user has not approved.

        The default path is that of the project, with the project's limits. `classifiers` replace those that the profile
        names. Profiles saved on this machine are approved.
        """
        options = replace(options or AskOptions(), **asking)
        if path is None:
            path, options = Project.here().profile_path(), options.or_project()
        profile = Profile.load(Path(path))
        sources = of_profile(profile, Path(path)) if classifiers is None else classifiers
        return cls(sources, profile, options=options, progress=progress, on_answer=on_answer)

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON, and approve the classifier for `load`."""
        maps = {connected.name: dict(connected.rename) for connected in self.connected if connected.rename}
        self.fitted().model_copy(update={"label_maps": maps}).save(Path(path))
        for connected in self.connected:
            trust.remember(connected.description)

    # Asking ----------------------------------------------------------------------------------------------------------

    async def ask(
        self, pictures: PicturesLike, labels: Sequence[object] | None = None, *, views: Panel | str | None = None
    ) -> Collected:
        """Collect the answers about every picture under a panel, with truths if all are known.

        The default panel is the profile's, with the profile's vocabulary, or else the general one.
        """
        known = labels is not None or has_truths(pictures)
        found = _labelled(pictures, labels, self.kind) if known else many(pictures)
        async with self._showing(len(found)) as engine:
            if self.kind == "tags":
                panel = self.profile.views() if views is None and self.profile else self.panel(views)
                return await tagging.collect(engine, found, panel)
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
        """The maximum cost of querying these pictures; nothing is sent."""
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
        paper: str | None = None,
        draws: int = 20,
        max_price: float | None = None,
        max_queries: float | None = None,
        on_collected: OnCollected | None = None,
    ) -> FitResult:
        """Learn how far to trust the classifier, and what to ask it, from labelled pictures.

        `pictures` is a collection with truths (a folder with one folder per class or with `labels.csv`, an `.npz`, an
        official data set), or pictures with `labels`. A pilot on a quarter of them selects the views, wordings and
        classifiers that are worth asking, and only these are asked about the others; `plan` tells the cost. The
        sequence of queries and the stopping rule are selected within `max_price` and `max_queries` a picture on
        average; by default they are the cheapest whose Brier score is within one standard error and 1 % of the best.

        `views` fixes what is asked. `noise` is the file of `looktwice noise`, for the calibrator `transfer`. `paper`
        searches the settings of one transformation as the paper does, in this many `draws`. `on_collected` is called
        with the answers before fitting; by default it warns about missing ones.
        """
        found = _labelled(pictures, labels, self.kind)
        if self.kind == "tags":
            chosen = {"noise": noise, "paper": paper, "max_price": max_price, "max_queries": max_queries}
            return await self._fit_tags(found, self.panel(views), calibrator, chosen, on_collected)
        family, tell = self._calibrator(calibrator, noise, views), on_collected or fitting.warn
        asked = self._asked()
        if len(asked) > 1 and not (isinstance(family, Jury) and paper is None):
            raise FitError(
                "several classifiers are weighed by a jury; leave out paper and other calibrators, or give one "
                "classifier",
                code="option-conflict",
            )
        if paper is not None:
            return await self._search(found, paper, draws)
        fitting.check_teachable(found)
        panel, choice = self.panel(views), pilot.limits(asked, max_price, max_queries)
        fixed = views not in (None, "") or not isinstance(family, Jury)
        async with self._showing(len(found)) as engine:
            if fixed:
                selection = Selection(await fitting.collect(engine, found, panel))
            else:
                selection = await pilot.ask(engine, found, panel, asked)
        collected = fitting.check_learnable(selection.collected, len(found), tell)
        if isinstance(family, Jury):
            whole = fixed and len(asked) == 1
            result = pilot.fit(replace(selection, collected=collected), asked, choice, family.ballot, whole)
        else:
            profile = fitting.learn(collected, family, self.description)
            result = FitResult(profile, Frontier(()), collected)
        self.profile = result.profile
        return result

    def _calibrator(
        self, calibrator: Calibrator | str, noise: str | Path | None, views: Panel | str | None
    ) -> Calibrator:
        if (noise is not None) != (calibrator == paper.Transfer.name):
            raise FitError(
                "the calibrator transfer and its noise, the file of `looktwice noise`, belong together",
                code="option-conflict",
            )
        if noise is None:
            return calibrators.named(calibrator)
        return paper.Transfer(noise=NoiseFile.load(Path(noise)).of(panel_of(views)))

    async def _fit_tags(
        self,
        pictures: Sequence[Picture],
        panel: Panel,
        calibrator: Calibrator | str,
        options: Mapping[str, object],
        on_collected: OnCollected | None,
    ) -> FitResult:
        """Ask every classifier about every labelled picture, and learn the probability of each tag."""
        given = [name for name, value in options.items() if value is not None]
        if given or calibrator != "jury":
            raise FitError(
                f"{(given or ['calibrator'])[0]} is for answers of one label, and this classifier returns tags; leave "
                "it out",
                code="option-conflict",
            )
        async with self._showing(len(pictures)) as engine:
            self.profile, collected = await tagging.fit(engine, pictures, panel, on_collected)
        return FitResult(self.profile, Frontier(()), collected)

    def _asked(self) -> list[ProfileClassifier]:
        """The classifiers as stored in a profile, the cheapest first; a single one has no name."""
        asked = [fitting.described(channel) for channel in self.engine.channels.values()]
        return asked if len(asked) > 1 else [asked[0].model_copy(update={"name": ""})]

    def panel(self, views: Panel | str | None = None) -> Panel:
        """The panel that `fit` asks about labelled pictures: these views or all candidates of the pilot, for all
        classifiers."""
        _, *others = self.engine.channels
        tags = self.kind == "tags"  # asked as they are, unless views are named
        panel = Panel(()) if tags and views in (None, "") else panel_of(views)
        if views in (None, "") and not tags:
            panel = Panel((*panel, *askable(self.classifier, PROMPTED)))
        return Panel((*(At(name, Base()) for name in others), *panel)) if others else panel

    def plan(self, pictures: PicturesLike | int, views: Panel | str | None = None) -> Plan:
        """The maximum queries and cost of `fit` for this many labelled pictures, by stage."""
        count = pictures if isinstance(pictures, int) else len(many(pictures))
        asked = self._asked()
        prices = {"": asked[0].price, **{each.name: each.price for each in asked}}
        return pilot.plan(count, self.panel(views), prices, fixed=views not in (None, ""))

    def use(self, profile: Profile) -> None:
        """Use this profile from now on, such as another point of the frontier: `model.use(result.at(…))`."""
        profile.check({connected.name: connected for connected in self.connected})
        self.profile = profile

    async def _collected(
        self, pictures: Sequence[Picture], panel: Panel, on_collected: OnCollected | None = None
    ) -> Collected:
        fitting.check_teachable(pictures)
        async with self._showing(len(pictures)) as engine:
            collected = await fitting.collect(engine, pictures, panel)
        return fitting.check_learnable(collected, len(pictures), on_collected or fitting.warn)

    def learn(self, collected: Collected, calibrator: Calibrator) -> Profile:
        """Fit on the answers of `ask`, without queries."""
        self.profile = fitting.learn(collected, calibrator, self.description)
        return self.profile

    async def _search(self, pictures: Sequence[Picture], family: str, draws: int) -> FitResult:
        """The paper's search over the settings of one transformation, with the paper's Gaussian model."""
        grid = pilot.grid_of(family)
        fitting.check_teachable(pictures, pilot.SEARCHED)
        async with self._showing(len(grid) * len(pictures)) as engine:
            chosen, settings = await pilot.search(engine, pictures, grid, draws)
        self.profile = fitting.learn(chosen.collected, paper.Gaussian(), self.description, n_selection=chosen.pilot)
        return FitResult(self.profile, Frontier(()), chosen.collected, settings=tuple(settings), pilot=chosen.pilot)

    async def transfer(
        self,
        noise: NoiseFile | str | Path,
        pictures: PicturesLike,
        labels: Sequence[object] | None = None,
        *,
        draws: int = 10,
        on_collected: OnCollected | None = None,
    ) -> Transferred:
        """The paper's prescription: fit with the F_n of the best view on an open model, and compare.

        `noise` was measured on the open model. The pictures are asked about under draws of that view and, for the
        jury that it is compared with, under the general panel.
        """
        chosen = (noise if isinstance(noise, NoiseFile) else NoiseFile.load(Path(noise))).best()
        found = self._one_label(pictures, labels)
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
        """Make a profile from another classifier's jury, and from labelled pictures if there are any; fifty help.

        With the classifier's own profile as the teacher, labels of changed pictures update it.
        """
        source = teacher if isinstance(teacher, Profile) else Profile.load(Path(teacher))
        if self.kind == "tags":
            found = _labelled(pictures, labels, self.kind)
            async with self._showing(len(found)) as engine:
                self.profile = await tagging.repair(engine, found, source, on_collected)
        elif found := self._one_label(pictures, labels):
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
            raise ProfileError(
                "this model has no profile yet; call fit with labelled pictures, or load one", code="not-fitted"
            )
        return self.profile

    def policy(self, options: DecisionOptions = DEFAULTS, /, **decision: Unpack[DecisionKeywords]) -> Policy:
        """The policy of these options, a `TagPolicy` for tags; cached, since all pictures share it."""
        return self._judging(replace(options, **decision))[0]

    def _judging(self, options: DecisionOptions) -> tuple[Policy, Judging, Monitor]:
        profile = self.fitted()
        if self._policies_of is not profile:
            self._policies_of, self._policies = profile, {}
        if options not in self._policies:
            policy = options.of(profile)
            monitor = Monitor(policy, profile.digest, options.on_drift == "hold")
            self._policies[options] = policy, Judging(profile, policy), monitor
        return self._policies[options]

    def strictest_guarantee(self, options: DecisionOptions = DEFAULTS) -> DecisionOptions:
        """Add a guarantee to the options: the given one, or the strictest that the labelled pictures support."""
        return planning.strictest_guarantee(options, self.fitted())

    def labels_missing(
        self, options: DecisionOptions = DEFAULTS, /, **decision: Unpack[DecisionKeywords]
    ) -> int | None:
        """How many more labelled pictures, drawn at random, what these options claim takes; 0 if there are enough.

        None if more labels would not help. Every interface reports this number.
        """
        options = replace(options, **decision)
        policy = self.policy(options)
        return planning.missing_labels(policy.claim_tests(options.claims(), self.fitted(), options.level))

    def monitor(self, options: DecisionOptions = DEFAULTS) -> Monitor:
        """The drift monitor of pictures scored with these options."""
        return self._judging(options)[2]

    async def end_alarm(self) -> None:
        """End a drift alarm, here and in the ledger."""
        if self.profile and self.engine.ledger:
            digest = self.profile.digest
            await self.engine.ledger.change(partial(Transaction.set_alarm, profile=digest, alarm=None))
        self._policies = {}

    def reliability_svg(self, options: DecisionOptions = DEFAULTS) -> str:
        """The reliability diagram of the labelled pictures on held-out folds; an empty one where none are known."""
        held_out = self.fitted().held_out if self.kind == "tags" else self.policy(options).held_out
        if not held_out.correct:
            return '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1" width="0" height="0"></svg>'
        curve = metrics.reliability(*held_out.arrays())
        return figures.reliability_svg(curve, title="Confidence and how often it was right")

    def rendered(self, picture: PictureLike, options: DecisionOptions = DEFAULTS) -> Iterator[Pixels]:
        """Render the views of a picture, in the order of the panel."""
        image = one(picture).image(self.limits.working_size)
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
        """Label and confidence of one picture, or a `TagVerdict`; `on_answer` is called with every answer about it.

        If cancelled it returns at once, and answers in flight are stored when they arrive.
        """
        found = self.score([one(picture)], options, on_answer=on_answer, **decision)
        (verdict,) = [verdict async for verdict in found]
        if isinstance(verdict, Unscored):
            raise verdict.error()
        return verdict

    async def burst(self, photos: Sequence[PictureLike] | str | Path, *, frames: int = video.FRAMES) -> Verdict:
        """One verdict for several photos of one object: the first is the picture, the others are its views.

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
        """The verdict of a burst, or the first photo that was not scored."""
        if isinstance(photos, str | Path) or (len(photos) == 1 and isinstance(photos[0], str | Path)):
            path = Path(photos if isinstance(photos, str | Path) else str(photos[0]))
            photos = self.frames(path, frames) if video.is_video_file(path) else many(path)
        if len(photos) < 2:
            raise DataError(
                "a burst is two or more photos of one thing, or one short video; give them all", code="pictures-none"
            )
        named = [one(photo, f"photo {place}") for place, photo in enumerate(photos, 1)]
        async with self._showing(len(named)) as engine:
            return await judging.burst(engine, named, self.fitted(), on_answer)

    def frames(self, path: Path, count: int) -> list[Picture]:
        """Frames of a video as the photos of a burst; raises an ImageError if there are none."""
        found = video.frames(path, str(path), count, self.limits.working_size)
        return [one(image, f"{path.name}#{place}") for place, image in enumerate(found, 1)]

    async def score(
        self,
        pictures: PicturesLike | Iterator[Picture],
        options: DecisionOptions = DEFAULTS,
        *,
        on_answer: OnAnswer | None = None,
        **decision: Unpack[DecisionKeywords],
    ) -> AsyncGenerator[Verdict | Unscored]:
        """Yield a verdict for each picture, in order, or why there is none; stored answers are not asked for again.

        From a drift alarm on, verdicts are held.

        Each is returned as soon as it and those before it are answered; `on_answer` is called with each answer as
        it arrives.
        """
        policy, judge, monitor = self._judging(replace(options, **decision))
        found = pictures if isinstance(pictures, Iterator) else many(pictures)
        total = None if isinstance(found, Iterator) else len(found)
        async with (
            self._showing(total) as engine,
            aclosing(judging.look(engine, found, self.fitted(), policy, on_answer, judge)) as verdicts,
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

        At most 1 % of new familiar pictures have 0.01 or less. A verdict has a lower one if its answers are also
        unusual. NaN if the profile cannot tell.
        """
        policy, found = self.policy(), many(pictures)
        if policy.familiarity is None or not found:
            return np.full(len(found), np.nan)

        def described() -> Floats:
            images = (picture.image(self.limits.working_size) for picture in found)
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
        """Evaluate the confidences on held-out labelled pictures; returns a `TagEvaluation` for tags.

        `unlabelled` are verdicts of this model about other pictures, or a file of `score`: their
        confidences narrow the interval of the accuracy.
        """
        policy, found = self.policy(options, **decision), _labelled(pictures, labels, self.kind)
        if self.kind == "tags":
            if unlabelled is not None:
                raise DataError("unlabelled verdicts are of one label; leave them out", code="option-conflict")
            async with self._showing(len(found)) as engine:
                judged = await tagging.evaluate(engine, found, self.fitted(), cast("TagPolicy", policy))
            return cast("Evaluation", judged)
        # In a thread, since they may be a generator from `score` of the same model.
        others = None if unlabelled is None else await asyncio.to_thread(evaluation.verdicts_of, unlabelled)
        if others is not None:
            powered.check(len(found), len(others))
        async with self._showing(len(found)) as engine:
            collected = await fitting.collect_for(engine, found, self.fitted(), policy)
        return evaluation.evaluate(collected, self.fitted(), policy, others)

    def _one_label(self, pictures: PicturesLike, labels: Sequence[object] | None) -> Sequence[Picture]:
        """Labelled pictures for methods that need one label each."""
        if self.kind == "tags":
            raise FitError(
                "this is for answers of one label, and the classifier returns tags; use fit", code="option-conflict"
            )
        return _labelled(pictures, labels)


def _labelled(pictures: PicturesLike, labels: Sequence[object] | None, kind: AnswerKind = "label") -> Sequence[Picture]:
    """Pictures with truths of a kind: a collection that has them, or pictures and their labels."""
    if labels is not None:
        found: Sequence[Picture] = with_truths(many(pictures), labels)
    elif isinstance(pictures, str | Path):
        found = datasets.open_labelled(Path(pictures))
    elif len(pictures) and all(
        isinstance(item, str | Path) and (Path(item).is_dir() or Path(item).suffix == ".npz") for item in pictures
    ):
        found = datasets.open_all_labelled([Path(str(item)) for item in pictures])
    else:
        found = many(pictures)
    return datasets.of_kind(found, kind)
