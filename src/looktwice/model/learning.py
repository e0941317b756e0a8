"""Fitting: learn from labelled pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from looktwice.calibration import Calibrator, Gaussian, Jury, Transfer, calibrators
from looktwice.classifiers import AnswerKind
from looktwice.decisions import (
    Collected,
    FitResult,
    NoiseFile,
    OnCollected,
    Plan,
    Profile,
    ProfileClassifier,
    Transferred,
    collecting,
    fitting,
    pilot,
    tagging,
)
from looktwice.engine import askable
from looktwice.errors import FitError
from looktwice.images import (
    Picture,
    PicturesLike,
    collection,
    has_truths,
    many,
    with_truths,
)
from looktwice.model.connection import Connection
from looktwice.views import GENERAL, PROMPTED, At, Base, Panel, panel_of


class Learner(Connection):
    """Classifiers and, after fitting, their profile."""

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
                "calibrator transfer requires noise, the file written by `looktwice noise`, and the reverse",
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

    def _asked(self) -> list[ProfileClassifier]:
        """The classifiers as stored in a profile, cheapest first; a single one has no name."""
        asked = [collecting.described(channel) for channel in self.engine.channels.values()]
        return asked if len(asked) > 1 else [asked[0].model_copy(update={"name": ""})]

    def panel(self, views: Panel | str | None = None) -> Panel:
        """The panel that `fit` uses for labelled pictures: these views or all candidates of the pilot, for all
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

    async def _collected(
        self, pictures: Sequence[Picture], panel: Panel, on_collected: OnCollected | None = None
    ) -> Collected:
        collecting.check_teachable(pictures)
        async with self._showing(len(pictures)) as engine:
            collected = await collecting.collect(engine, pictures, panel)
        return collecting.check_learnable(collected, len(pictures), on_collected or collecting.warn)

    def learn(self, collected: Collected, calibrator: Calibrator) -> Profile:
        """Fit on answers that `ask` collected, without queries."""
        self.profile = fitting.learn(collected, calibrator, self.description)
        return self.profile

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
