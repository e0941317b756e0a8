"""Classifiers with their ledger and budgets, opened on first use, and their profile."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Self, Unpack

from looktwice.calibration import Calibrator
from looktwice.classifiers import (
    NO_LABEL,
    AnswerKind,
    Connected,
    Described,
    Pixels,
    Source,
    answer_kind,
    describe,
    read_renames,
    registry,
    resolve,
)
from looktwice.decisions import (
    Collected,
    DecisionKeywords,
    DecisionOptions,
    Judging,
    LabelMap,
    Monitor,
    Plan,
    Policy,
    Profile,
    ProfileClassifier,
    collecting,
    fitting,
    pilot,
    planning,
    propose,
)
from looktwice.engine import MEMORY, OFF, POSTGRES, Money, OnAnswer, Progress, QueryEngine, askable, maintenance
from looktwice.errors import DataError, LookTwiceError, ProfileError
from looktwice.images import PictureLike, PicturesLike, many, one
from looktwice.model.options import (
    FILE,
    AskKeywords,
    AskOptions,
    Project,
    in_order,
    ledger_place,
    open_engine,
    typical_price,
)
from looktwice.views import CLASSIFIER_NAME, PROMPTED, At, Base, Panel, panel_of, questions, render

ShowProgress = bool | Callable[[Progress], None]
Classifiers = Source | Sequence[Source]
"""A classifier, or several."""
DEFAULTS = DecisionOptions()


def connect(
    source: Source,
    *,
    name: str | None = None,
    price: Money | None = None,
    rename: Mapping[str, str] | str | Path | None = None,
    budget: int | str | None = None,
    money: Money | None = None,
    rate: float | None = None,
    concurrency: int | None = None,
    prices: str | Path | None = None,
) -> Connected:
    """Connect a classifier under a name, for use alone or with others: `Model([connect("cheap.toml"), connect(ask)])`.

    `source` is a string such as `onnx:model.onnx`, a TOML file, a function, or a classifier. A function takes one
    picture (uint8, height × width × RGB) and returns a label, or with `@looktwice.batched` takes a list of pictures and
    returns a list of labels; it may be async. `rename` maps labels to other names: a dictionary, or a CSV file with the
    columns `label` and `name`. `budget` and `money` apply to this classifier, in addition to the model's budgets. The
    default name is taken from the TOML file (`name`, else the file's stem) or is the function's name.
    """
    if isinstance(source, str | Path):
        source = resolve(str(source))
    if isinstance(source, Connected):
        known = source
    else:
        classifier = registry.connect(source)
        known = Connected(classifier, name_of(source), describe(source, classifier))
    renames = read_renames(Path(rename)) if isinstance(rename, str | Path) else rename or {}
    given = {"name": name, "price": price, "prices": prices, "rate": rate, "concurrency": concurrency,
             "budget": budget, "money": money}  # fmt: skip
    said = {key: value for key, value in given.items() if value is not None}
    described = source.asking if isinstance(source, Described) else {}
    named = replace(known, rename={**known.rename, **renames}, **{**described, **said})  # type: ignore[arg-type]
    if not CLASSIFIER_NAME.fullmatch(named.name):
        raise LookTwiceError(
            f"a classifier cannot be called {named.name!r}; give it a name of at most 60 characters, without spaces, "
            "@ and *",
            code="option-invalid",
        )
    return named


def named(given: Sequence[str] = ()) -> list[Connected]:
    """The classifiers given by the user, or else the ones in the project file, with the project's renamed labels.

    Raises an UntrustedError if the file names a classifier that the user has not approved.
    """
    project = Project.here()
    sources: list[tuple[str | None, Described]] = [(None, resolve(text)) for text in given]
    sources = sources or [(name, registry.trusted(text, project.file)) for name, text in project.descriptions()]
    if not sources:
        raise LookTwiceError(
            f'no classifier is given; use -c, or write for example classifiers = ["my-api.toml"] into {FILE}',
            code="option-invalid",
        )
    connected = [connect(one, name=name, rename=project.names(name or name_of(one))) for name, one in sources]
    for unknown in () if given else project.rename.keys() - {each.name for each in connected}:
        if meant := get_close_matches(unknown, [each.name for each in connected], 1):
            raise DataError(
                f"{str(project.file)!r} renames labels of {unknown!r}, but there is no such classifier; did you mean "
                f"{meant[0]!r}?",
                code="project-invalid",
            )
    return connected


def of_profile(profile: Profile, path: Path) -> list[Connected]:
    """The classifiers of a saved profile, which must be approved; for the project's profile, the ones in the project
    file.

    Labels are renamed as in the fit, or as in the project file.
    """
    project, listed = Project.here(), dict[str, str]()
    if path.absolute() == project.profile_path().absolute():
        listed = {name or name_of(resolve(text)): text for name, text in project.descriptions()}
    connected = []
    for name, saved in profile.described():
        alone = next(iter(listed)) if not name and len(listed) == 1 else name
        beside = path.parent / saved  # for a profile that is used from another folder
        text = str(beside) if saved.endswith(".toml") and not Path(saved).exists() and beside.exists() else saved
        checked = registry.trusted(listed[alone], project.file) if alone in listed else registry.trusted(text, path)
        called = alone or name_of(checked)
        rename = project.names(called) if called in project.rename else profile.label_maps.get(called)
        connected.append(connect(checked, name=called, rename=rename))
    return connected


def name_of(source: Source) -> str:
    """The default name of a classifier."""
    if isinstance(source, Described):
        if "name" in source.asking:
            return str(source.asking["name"])
        text = Path(source.address or source.text).stem
    else:
        text = str(getattr(source, "__name__", type(source).__name__))
    return re.sub(r"[\s@*]+", "-", text)[:60] or "classifier"


def _kind(connected: Sequence[Connected]) -> AnswerKind:
    """The common kind of answers; raises an error if classifiers differ."""
    kinds = {answer_kind(each.classifier): each.name for each in connected}
    if len(kinds) > 1:
        raise LookTwiceError(
            f"{kinds['tags']} returns tags, but {kinds['label']} returns one label, and these cannot be combined; "
            'specify classifiers of one kind (answer = "tags" in a description)',
            code="option-conflict",
        )
    return next(iter(kinds))


class ModelState:
    """What a model has with and without an event loop: its classifiers, their engine, and once fitted its profile.

    The attributes for classifier, description and limits refer to the first classifier, which has the lowest price.
    """

    profile: Profile | None = None
    """The fitted profile of the classifier; None before `fit`."""

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
        sources: list[Source] = list(classifier) if isinstance(classifier, list | tuple) else [classifier]  # type: ignore[list-item]
        if not sources:
            raise LookTwiceError("no classifier is given; give at least one", code="option-invalid")
        self.connected = in_order([connect(source) for source in sources], options)
        """The classifiers, cheapest first."""
        self.kind = _kind(self.connected)
        """Whether the answers are labels or tags."""
        first = self.connected[0]
        self.classifier, self.description = first.classifier, first.description
        self.options = options
        self.limits = options.for_classifier(first).limits(self.classifier)
        if profile:
            profile.check({connected.name: connected for connected in self.connected})
            self.profile = profile
        self._seed, self._progress, self._on_answer = profile.seed if profile else 0, progress, on_answer
        self._opening = threading.Lock()
        self._engine: QueryEngine | None = None
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

    def fitted(self) -> Profile:
        """The profile; raises an error if there is none yet."""
        if self.profile is None:
            raise ProfileError(
                "this model has no profile yet; call fit with labelled pictures, or load one", code="not-fitted"
            )
        return self.profile

    @property
    def engine(self) -> QueryEngine:
        """The query engine, opened on first use."""
        if self._engine is None:
            self._engine = open_engine(self.connected, self.options, self._seed)
            self._engine.on_answer = self._on_answer
        return self._engine

    @property
    def asked(self) -> Progress:
        """The queries so far, since the ledger and the classifier were opened."""
        return replace(self._engine.progress) if self._engine else Progress()

    @property
    def is_open(self) -> bool:
        """Whether the ledger and the classifier are open."""
        return self._engine is not None

    def unavailable(self) -> str | None:
        """The reason why no query can be sent now, as a sentence; None if queries can be sent.

        Possible reasons: the run was stopped, a budget is spent, the ledger failed, or the classifier is rate-limited
        for longer than the longest wait. Reads the ledger.
        """
        return self.engine.unavailable()

    def ledger_name(self) -> str | None:
        """The location where answers are stored, for display; None if they are not stored."""
        place = ledger_place(self.connected, self.options)
        return None if place == OFF else "postgresql" if place and place.startswith(POSTGRES) else place

    def label_maps(self, truths: Iterable[str]) -> dict[str, LabelMap | None]:
        """The correspondence between labels and true labels for each classifier; None for a classifier without known
        labels.

        A classifier's known labels are those in its description and those in the ledger. No query is sent.
        """
        place, wanted = ledger_place(self.connected, self.options), set(truths)
        if place in (None, OFF, MEMORY) or not (place.startswith(POSTGRES) or Path(place).exists()):
            place = None
        maps: dict[str, LabelMap | None] = {}
        for asked in self.connected:
            known = {asked.rename.get(label, label) for label in asked.classifier.labels or ()}
            words = maintenance.labels(place, asked.fingerprint) if place and not known else ()
            known |= {asked.names.label(word) for word in words} - {NO_LABEL}
            maps[asked.name] = propose(known, wanted) if known else None
        return maps

    def sends_to(self) -> tuple[str, ...]:
        """The addresses to which pictures are sent, as far as the descriptions state them."""
        reached = (registry.reach(resolve(each.description)).sends for each in self.connected)
        return tuple(dict.fromkeys(address for sends in reached for address in sends))

    def typical_price(self, name: str = "") -> int:
        """The price, in millionths, of a query to the classifier with this name, by default the first one; with token
        prices, an estimate for a phone photo at the working size."""
        asked = next((each for each in self.connected if each.name == name), self.connected[0])
        return typical_price(asked, self.options)

    def stop(self, message: str = "the run was stopped") -> None:
        """Send nothing more until `resume`; answers in flight are awaited and stored."""
        self.engine.stop(message)

    def resume(self) -> None:
        """Undo `stop`."""
        self.engine.resume()

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

    def learn(self, collected: Collected, calibrator: Calibrator) -> Profile:
        """Fit on answers that `ask` collected, without queries."""
        self.profile = fitting.learn(collected, calibrator, self.description)
        return self.profile

    def use(self, profile: Profile) -> None:
        """Replace the profile, for example by another operating point: `model.use(result.at(max_queries=3))`."""
        profile.check({connected.name: connected for connected in self.connected})
        self.profile = profile

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

    def rendered(self, picture: PictureLike, options: DecisionOptions = DEFAULTS) -> Iterator[Pixels]:
        """Render the views of a picture, in the order of the panel."""
        image = one(picture).image(self.limits.working_size)
        for question in questions(image, self.policy(options).panel, self.engine.settings.seed):
            yield from render(image, [question])
