"""Classifiers with their ledger and budgets, opened on first use."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Self

from looktwice.classifiers import (
    NO_LABEL,
    AnswerKind,
    Connected,
    Described,
    Limits,
    Metered,
    Source,
    answer_kind,
    describe,
    read_renames,
    registry,
    resolve,
)
from looktwice.decisions import LabelMap, Profile, propose
from looktwice.engine import (
    MEMORY,
    OFF,
    POSTGRES,
    TYPICAL_SIZE,
    Channel,
    Checkup,
    Money,
    OnAnswer,
    Polling,
    Progress,
    QueryEngine,
    RetryPolicy,
    Settings,
    Spend,
    check,
    close_ledger,
    maintenance,
    open_ledger,
)
from looktwice.engine.ledger.maintenance import DayCost
from looktwice.errors import BudgetError, DataError, LookTwiceError, ProfileError
from looktwice.images import Image, PictureLike, one
from looktwice.model.options import FILE, NOT_METERED, AskOptions, Project
from looktwice.views import CLASSIFIER_NAME

ShowProgress = bool | Callable[[Progress], None]
Classifiers = Source | Sequence[Source]
"""A classifier, or several."""


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
    for name, text in profile.described():
        alone = next(iter(listed)) if not name and len(listed) == 1 else name
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
            f"{kinds['tags']} returns tags but {kinds['label']} one label, and these cannot be combined; give "
            'classifiers of one kind (answer = "tags" in a description)',
            code="option-conflict",
        )
    return next(iter(kinds))


class Connection:
    """One or several classifiers; closing saves all answers and releases all resources.

    The attributes for classifier, description and limits refer to the first classifier, which has the lowest price.
    """

    profile: Profile | None
    """The fitted profile; None before the fit."""

    def __init__(
        self,
        classifier: Classifiers,
        options: AskOptions,
        seed: int,
        progress: ShowProgress,
        on_answer: OnAnswer | None,
    ) -> None:
        sources: list[Source] = list(classifier) if isinstance(classifier, list | tuple) else [classifier]  # type: ignore[list-item]
        if not sources:
            raise LookTwiceError("no classifier is given; give at least one", code="option-invalid")
        self.connected = in_order([connect(source) for source in sources], options)
        """The classifiers, cheapest first."""
        self.kind = _kind(self.connected)
        """Whether its answers are labels or tags."""
        first = self.connected[0]
        self.classifier, self.description = first.classifier, first.description
        self.options = options
        self.limits = options.for_classifier(first).limits(self.classifier)
        self._seed, self._progress, self._on_answer = seed, progress, on_answer
        self._engine: QueryEngine | None = None

    def fitted(self) -> Profile:
        """The profile; raises an error if there is none yet."""
        if self.profile is None:
            raise ProfileError(
                "this model has no profile yet; call fit with labelled pictures, or load one", code="not-fitted"
            )
        return self.profile

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write queued answers, and close the ledger and the classifiers; the next call reopens them."""
        engine, self._engine = self._engine, None
        for open_one in [engine] if engine else [each.classifier for each in self.connected]:
            await open_one.close()

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

    @property
    def in_flight(self) -> int:
        """Calls to the classifier that are in flight."""
        return self._engine.in_flight if self._engine else 0

    def unavailable(self) -> str | None:
        """The reason why no query can be sent now, as a sentence; None if queries can be sent.

        Possible reasons: the run was stopped, a budget is spent, the ledger failed, or the classifier is rate-limited
        for longer than the longest wait. Reads the ledger.
        """
        return self.engine.unavailable()

    def ledger_name(self) -> str | None:
        """The location where answers are stored, for display; None if they are not stored."""
        return ledger_name(self.connected, self.options)

    def _ledger(self) -> str | None:
        """The location of the ledger, if it exists and is persistent."""
        place = ledger_place(self.connected, self.options)
        if place in (None, OFF, MEMORY) or not (place.startswith(POSTGRES) or Path(place).exists()):
            return None
        return place

    def days(self) -> list[DayCost]:
        """The daily spend on the classifiers, from the ledger."""
        prints, place = {each.fingerprint for each in self.connected}, self._ledger()
        return [day for day in maintenance.stats(place) if day.fingerprint in prints] if place else []

    def label_maps(self, truths: Iterable[str]) -> dict[str, LabelMap | None]:
        """The correspondence between labels and true labels for each classifier; None for a classifier without known
        labels.

        A classifier's known labels are those in its description and those in the ledger. No query is sent.
        """
        place, wanted = self._ledger(), set(truths)
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

    async def check(self, picture: PictureLike | None = None) -> Checkup:
        """Ask about one picture, or a test image, three times: latency, price, limits, and repeatability."""
        if self.options.batch:
            raise LookTwiceError(
                "a check asks three times at once, but a batch takes up to a day; leave --batch out",
                code="option-conflict",
            )
        image = Image.from_array(check.test_card()) if picture is None else one(picture).image(self.limits.working_size)
        return await check.examine(self.engine.first, image)

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


# Engines and ledgers --------------------------------------------------------------------------------------------------


def typical_price(asked: Connected, options: AskOptions) -> int:
    """The price of a query in millionths; with token prices, an estimate for a phone photo at the working size."""
    own = options.for_classifier(asked)
    limits, meter = own.limits(asked.classifier), own.meter(asked.classifier)
    return meter.quote(*limits.working_size.scaled(*TYPICAL_SIZE)).expected if meter else limits.price_micros


def in_order(classifiers: Sequence[Connected], options: AskOptions) -> list[Connected]:
    """The classifiers sorted by query price, the lowest first; ties keep the given order.

    A local classifier without a price is treated as free; any other classifier without a price is treated as costing 1
    per query.
    """

    def price(one: Connected) -> float:
        own, micros = options.for_classifier(one), typical_price(one, options)
        return micros / 1e6 if micros or own.price is not None or own.limits(one.classifier).local else 1.0

    names = [one.name for one in classifiers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LookTwiceError(
            f"two classifiers are called {twice!r}; give one of them another name: connect(…, name=…)",
            code="option-conflict",
        )
    return sorted(classifiers, key=price) if len(classifiers) > 1 else list(classifiers)


def open_engine(classifiers: Sequence[Connected], options: AskOptions, seed: int = 0) -> QueryEngine:
    """Create an engine for these classifiers, with ledger and budgets; close it when done.

    `seed` is the default seed of the random views.
    """
    if options.prices is not None and not any(isinstance(one.classifier, Metered) for one in classifiers):
        raise BudgetError(NOT_METERED, code="budget-invalid")
    asked = [options.for_classifier(one) for one in classifiers]
    limits = [own.limits(one.classifier) for one, own in zip(classifiers, asked, strict=True)]
    meters = [own.meter(one.classifier) for one, own in zip(classifiers, asked, strict=True)]
    priced = [bool(each.price_micros or meter) for each, meter in zip(limits, meters, strict=True)]
    group = tuple(dict.fromkeys(one.fingerprint for one in classifiers))
    place = ledger_place(classifiers, options)
    ledger = open_ledger(place) if place else None
    try:
        spend = ledger.spend(*group) if ledger else Spend()
        total = options.resolved_budget(spend, group, any(priced))
        channels = []
        for one, own, each, meter, price in zip(classifiers, asked, limits, meters, priced, strict=True):
            needed = ledger if needs_ledger(each, own, options) else None
            spent = needed.spend(one.fingerprint) if needed else Spend()
            budgets = (total, own.resolved_budget(spent, (one.fingerprint,), price))
            settings = Settings(
                each,
                seed if options.seed is None else options.seed,
                options.scores,
                options.label_check,
                options.canaries,
                tuple(budget for budget in budgets if budget.is_limited()),
                RetryPolicy(longest_wait=options.longest_wait),
                one.description,
            )
            polling = Polling() if options.batch else None
            channels.append(Channel(one.classifier, needed, settings, meter, polling, one.name, one.rename))
        return QueryEngine(channels)
    except BaseException:
        if ledger:
            close_ledger(ledger)
        raise


def needs_ledger(limits: Limits, own: AskOptions, options: AskOptions) -> bool:
    """Whether queries to a classifier are claimed and stored. Returns False for a free classifier, which is local and
    has no price, budget, rate limit or ledger specified by the user."""
    limited = limits.price_micros or limits.per_second or own.prices or own.is_limited()
    counted = (options.budget, options.per_day) != (None, None)  # of money it spends nothing
    return not limits.local or bool(limited) or counted or options.ledger not in (None, OFF)


def ledger_place(classifiers: Sequence[Connected], options: AskOptions) -> str | None:
    """The location of the ledger; None if all classifiers are free. Without a persistent ledger, limits apply for as
    long as the engine is open."""
    if options.ledger not in (None, OFF):
        return options.ledger
    asked = [(own.limits(one.classifier), own) for one in classifiers for own in (options.for_classifier(one),)]
    if not any(needs_ledger(limits, own, options) for limits, own in asked):
        return None
    if options.ledger == OFF:
        return OFF
    project = Project.here()
    return project.stated_ledger() or (OFF if all(limits.local for limits, _ in asked) else project.ledger_place())


def ledger_name(classifiers: Sequence[Connected], options: AskOptions) -> str | None:
    """The location for display and logs; a database address is omitted, since it may contain a password."""
    place = ledger_place(classifiers, options)
    if place == OFF:
        return None
    return "postgresql" if place and place.startswith(POSTGRES) else place
