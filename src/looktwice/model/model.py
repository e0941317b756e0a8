"""`AsyncModel`: a classifier with its ledger and budget and, once fitted, its profile; every interface calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self, Unpack, cast

import numpy as np

from looktwice.calibration import risk
from looktwice.classifiers import Pixels, registry
from looktwice.decisions import (
    DecisionKeywords,
    DecisionOptions,
    Evaluation,
    Judging,
    Monitor,
    Policy,
    Profile,
    TagPolicy,
    Verdict,
    VerdictsLike,
    collecting,
    evaluation,
    judging,
    planning,
    tagging,
)
from looktwice.engine import Cause, Estimate, OnAnswer, Transaction, Unscored
from looktwice.errors import DataError
from looktwice.images import (
    Floats,
    Picture,
    PictureLike,
    PicturesLike,
    many,
    one,
)
from looktwice.model.connection import Classifiers, ShowProgress, of_profile
from looktwice.model.learning import Learner, labelled
from looktwice.model.options import AskKeywords, AskOptions, Project
from looktwice.views import Panel, panel_of, questions, render

NO_LABEL = Cause.NO_LABEL.code
DEFAULTS = DecisionOptions()


class AsyncModel(Learner):
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

        The default path is the project's profile, with the project's limits. `classifiers` replace the ones listed in
        the profile. Profiles saved on this machine are approved.
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
            registry.remember(connected.description)

    # Asking ----------------------------------------------------------------------------------------------------------

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

    # Verdicts --------------------------------------------------------------------------------------------------------

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
        """The number of further labelled pictures, drawn at random, that the claims of these options need; 0 if none.

        None if more labels would not help. All interfaces report this number.
        """
        options = replace(options, **decision)
        policy = self.policy(options)
        return planning.missing_labels(policy.claim_tests(options.claims(), self.fitted(), options.level))

    def monitor(self, options: DecisionOptions = DEFAULTS) -> Monitor:
        """The drift monitor for pictures scored with these options."""
        return self._judging(options)[2]

    async def end_alarm(self) -> None:
        """End a drift alarm, here and in the ledger."""
        if self.profile and self.engine.ledger:
            digest = self.profile.digest
            await self.engine.ledger.change(partial(Transaction.set_alarm, profile=digest, alarm=None))
        self._policies = {}

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
