"""Options of a run, and projects: settings in `looktwice.toml` of the current folder or a parent.

The environment overrides a project. Reading the file runs no program and makes no connection. The file may be
untrusted: its ledger and profile must be in the same folder, and its classifiers must pass `registry.trusted`.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Self, TypedDict, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from looktwice import files
from looktwice.classifiers import AnyClassifier, Connected, Limits, Metered, checked, read_table
from looktwice.engine import (
    OFF,
    TYPICAL_SIZE,
    Budget,
    Channel,
    Meter,
    Money,
    Polling,
    QueryEngine,
    RetryPolicy,
    Scores,
    Settings,
    Spend,
    TokenMeter,
    close_ledger,
    micros,
    open_ledger,
    total,
)
from looktwice.errors import BudgetError, DataError, LookTwiceError
from looktwice.images import WorkingSize

LEAST: dict[str, int | float] = {
    **dict.fromkeys(("canaries", "seed", "per_day", "label_check"), 0),
    **dict.fromkeys(("concurrency", "working_size"), 1),
    "rate": 0.001,
    "longest_wait": 0.0,
}
"""The minimum values of numeric options; an integer minimum means that the option must be an integer."""
NOT_METERED = "a price table is for chat models, which are billed per token; use --price instead"


@dataclass(frozen=True)
class AskOptions:
    """Options of a run. Only the seed and the working size affect answers."""

    ledger: str | None = None
    """A path, `postgresql://…`, `memory` (kept until this process ends), `off`, or None for the default path, or no
    ledger if the classifier is local and free."""
    budget: int | str | None = None
    """The query budget: a total for this ledger and classifier, or with a plus sign (`"+500"`) relative to now."""
    money: Money | None = None
    """The money budget, in the same form: 25, or `"+2.50"`."""
    price: Money | None = None
    """The price of one query; by default the one in the classifier's description."""
    prices: str | Path | None = None
    """A table of token prices, for chat models; see `looktwice prices`."""
    rate: float | None = None
    """The maximum number of queries per second; by default the classifier's own limit."""
    concurrency: int | None = None
    """The maximum number of concurrent calls; by default the classifier's own limit."""
    canaries: int = 3
    """The number of stored answers to query again, to detect a changed classifier."""
    seed: int | None = None
    """The seed of the random views; by default the profile's, or 0."""
    per_day: int | None = None
    """The maximum number of queries per UTC day."""
    money_per_day: Money | None = None
    longest_wait: float = 900.0
    """The longest wait in seconds that the classifier may request; the run stops if it requests more."""
    scores: Scores = "use"
    """Whether a fit may use scores and ranked lists, if they help on held-out folds, or must ignore them; a profile
    that was fitted with scores requires them."""
    working_size: int | None = None
    """The longer side in pixels to which larger pictures are scaled down; by default the profile's, or what the
    classifier can use."""
    batch: bool = False
    """Use the vendor's batch interface, for chat models: answers within a day, at a lower price."""
    scope: str = ""
    """The scope of a relative budget, such as a command and its output: after an interruption, the same scope continues
    the budget instead of granting it again."""
    label_check: int = 20
    """The number of pictures whose answers are compared with their true labels before the other pictures are queried,
    if the classifier's labels are unknown; 0 skips the check."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value, kind = getattr(self, name), type(least)
            if value is not None and not (isinstance(value, int | kind) and value >= least):
                what = "a whole number" if kind is int else "a number"
                raise LookTwiceError(f"{name} is {value!r}; give {what} of at least {least:g}", code="option-invalid")
        if self.scores not in get_args(Scores):
            raise LookTwiceError(
                f"scores is {self.scores!r}; give {' or '.join(get_args(Scores))}", code="option-invalid"
            )

    def or_project(self) -> Self:
        """Fill in unset options from the environment and the project file."""
        stated = Project.here().limits()
        if self.price is not None:
            stated.pop("prices", None)
        return replace(self, **{name: value for name, value in stated.items() if getattr(self, name) is None})  # type: ignore[arg-type]

    def limits(self, classifier: AnyClassifier) -> Limits:
        """The classifier's limits, overridden by these options."""
        limits = classifier.limits
        return replace(
            limits,
            price_micros=limits.price_micros if self.price is None else micros(self.price),
            per_second=self.rate or limits.per_second,
            concurrency=self.concurrency or limits.concurrency,
            working_size=WorkingSize(long=self.working_size) if self.working_size else limits.working_size,
        )

    def for_classifier(self, one: Connected) -> AskOptions:
        """The options for one classifier: its own settings override these, and its own budget replaces the shared
        one."""
        priced = one.price is not None or one.prices is not None
        table = self.prices if isinstance(one.classifier, Metered) else None
        return replace(
            self,
            price=one.price if priced else self.price,
            prices=one.prices if priced else table,
            scope=f"{self.scope} alone" if self.scope else "",
            rate=one.rate or self.rate,
            concurrency=one.concurrency or self.concurrency,
            budget=one.budget,
            money=one.money,
            per_day=None,
            money_per_day=None,
        )

    def resolved_budget(self, spend: Spend, group: Sequence[str] = (), has_price: bool = True) -> Budget:
        """The budget of a group of classifiers, given the spend in the ledger so far."""
        queries = total(self.budget, int, spend.queries, "budget")
        money = total(self.money, micros, spend.micros, "money")
        daily = None if self.money_per_day is None else micros(self.money_per_day)
        if (money, daily) != (None, None) and not has_price:
            raise BudgetError(
                "a money limit needs the price of a query: give --price, a price in the classifier's description, "
                "or for a chat model a table of token prices with --prices",
                code="budget-invalid",
            )
        stated = tuple(str(limit) if str(limit).startswith("+") else "" for limit in (self.budget, self.money))
        scope = " ".join((*group, self.scope, *filter(None, stated))) if any(stated) and self.scope else ""
        return Budget(queries, money, self.per_day, daily, (stated[0], stated[1]), tuple(group), scope)

    def meter(self, classifier: AnyClassifier) -> Meter | None:
        """The price table, if queries do not all cost the same."""
        if self.prices is None:
            return None
        if self.price is not None:
            raise BudgetError(
                "give --price for a fixed price per query, or --prices for a table of token prices, not both",
                code="option-conflict",
            )
        if not isinstance(classifier, Metered):
            raise BudgetError(NOT_METERED, code="budget-invalid")
        return TokenMeter(classifier, read_table(Path(self.prices)).tariff(classifier.model), self.batch)

    def settled(self, limits: Limits, spend: Spend) -> Self:
        """Replace relative budgets by totals, given the current ledger."""
        budget = self.resolved_budget(spend, (), bool(limits.price_micros or self.prices))
        money = None if budget.micros is None else Decimal(budget.micros).scaleb(-6)
        return replace(self, budget=budget.queries, money=money)

    def is_limited(self) -> bool:
        """Whether any budget is set."""
        return any(limit is not None for limit in (self.budget, self.money, self.per_day, self.money_per_day))


class AskKeywords(TypedDict, total=False):
    """The query options as keyword arguments; see `AskOptions`."""

    ledger: str | None
    budget: int | str | None
    money: Money | None
    price: Money | None
    prices: str | Path | None
    rate: float | None
    concurrency: int | None
    canaries: int
    seed: int | None
    per_day: int | None
    money_per_day: Money | None
    longest_wait: float
    scores: Scores
    working_size: int | None
    batch: bool
    label_check: int


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


# Projects -------------------------------------------------------------------------------------------------------------

FILE = "looktwice.toml"
FOLDER = ".looktwice"
"""The folder of a project's ledger; a folder with this name, like the project file, identifies a project."""
NAME, USER = "ledger.db", "user"
LEDGER, PROFILE = "LOOKTWICE_LEDGER", "LOOKTWICE_PROFILE"
"""Environment variables that override the file."""
Amount = Annotated[Decimal, Field(ge=0)]
BARE = re.compile("[A-Za-z0-9_-]+")
"""Keys that TOML allows without quotes."""
Names = dict[str, str]
"""A map from a classifier's labels to other names."""


class Project(BaseModel):
    """The settings of a project, all optional."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    classifiers: tuple[str, ...] | dict[str, str] = ()
    """Descriptions such as `cheap.toml` or `onnx:model.onnx`, or a table of them by name."""
    profile: str = "profile.json"
    ledger: str | None = None
    """A file in this folder, or `user` for the ledger in the user's data folder; by default `.looktwice/ledger.db`."""
    budget: int | None = Field(default=None, ge=0)
    money: Amount | None = None
    per_day: int | None = Field(default=None, ge=0)
    money_per_day: Amount | None = None
    """Limits for all classifiers together; see `AskOptions`."""
    prices: str | None = None
    """A table of token prices, for chat models."""
    rename: dict[str, Names | str] = {}
    """Renamed labels by classifier, or a CSV file of them."""
    _folder: Path | None = PrivateAttr(None)

    @classmethod
    def here(cls) -> Project:
        """The project of the current folder; a project without settings if there is none."""
        folder = _folder()
        if folder and (folder / FILE).is_file():
            return cls.read(folder / FILE)
        project = cls()
        project._folder = folder
        return project

    @classmethod
    def read(cls, path: Path) -> Project:
        """The project in a file; raises a DataError if it is invalid."""
        try:
            values = tomllib.loads(path.read_text("utf-8"))
            project = checked(cls, values, f"the project file {str(path)!r}", "docs/howto/project-file.md")
        except (OSError, ValueError, RecursionError) as error:
            why = str(error).partition("\n")[0]
            why = why if FILE in why else f"the project file {str(path)!r} cannot be read: {why}"
            raise DataError(why, code="project-invalid") from None
        project._folder = path.parent
        for name in ("profile", "ledger", "prices"):
            project._inside(name)
        return project

    @property
    def file(self) -> Path:
        """The path of the file, which may not exist."""
        return (self._folder or Path()) / FILE

    def descriptions(self) -> Iterator[tuple[str | None, str]]:
        """The name of each classifier, if given, and its description with paths relative to the project."""
        listed = self.classifiers
        for name, text in listed.items() if isinstance(listed, Mapping) else ((None, text) for text in listed):
            scheme = "onnx:" if text.startswith("onnx:") else ""
            path = text.removeprefix(scheme)
            yield name, f"{scheme}{self._below(path)}" if scheme or path.endswith(".toml") else text

    def profile_path(self) -> Path:
        """The path of the profile: from the environment, the file, or `profile.json`."""
        stated = os.environ.get(PROFILE)
        return Path(stated) if stated else self._below(self.profile)

    def stated_ledger(self) -> str | None:
        """The ledger specified in the environment or the file, if any."""
        if (stated := os.environ.get(LEDGER)) or self.ledger is None:
            return stated or None
        return str(files.data_folder() / NAME if self.ledger == USER else self.file.parent / self.ledger)

    def ledger_place(self) -> str:
        """The default location of the ledger."""
        usual = self._folder / FOLDER if self._folder else files.data_folder()
        return self.stated_ledger() or str(usual / NAME)

    def names(self, classifier: str) -> Names | Path:
        """The renamed labels of a classifier, or the CSV file with them."""
        named = self.rename.get(classifier, {})
        return self._below(named) if isinstance(named, str) else named

    def limits(self) -> dict[str, object]:
        """The run options specified in the file."""
        stated = {name: getattr(self, name) for name in ("budget", "money", "per_day", "money_per_day")}
        stated |= {"ledger": self.stated_ledger(), "prices": self.prices and str(self._below(self.prices))}
        return {name: value for name, value in stated.items() if value is not None}

    def _below(self, path: str) -> Path:
        """Resolve a path relative to the project's folder."""
        return Path(path) if self._folder is None or self._folder == Path.cwd() else self._folder / path

    def _inside(self, name: str) -> None:
        """Raise an error for a path outside the project's folder: an untrusted file must not choose what is read and
        written."""
        path, folder = getattr(self, name), self.file.parent.resolve()
        if path is not None and ("://" in path or not (folder / path).resolve().is_relative_to(folder)):
            instead = {"ledger": f"set {LEDGER}", "profile": f"set {PROFILE}"}.get(name, f"give --{name}")
            raise DataError(  # the address of a database may hold a password
                f"the {name} in {str(self.file)!r} is outside the folder of that file; {instead} instead",
                code="project-invalid",
            )


def _folder() -> Path | None:
    """The current folder, or its closest parent with a project's file or folder.

    Other users' projects are ignored, since anyone can create one in a shared folder.
    """
    with suppress(OSError):  # the current folder may be gone
        here = Path.cwd()
        for folder in (here, *here.parents):
            if _is_ours(folder / FILE) or _is_ours(folder / FOLDER):
                return folder
    return None


def _is_ours(mark: Path) -> bool:
    """Whether such a file or folder exists and belongs to this user or the system; for root, every owner is
    accepted."""
    if not mark.exists():
        return False
    user = os.getuid() if hasattr(os, "getuid") else 0
    return user in (0, mark.stat().st_uid) or mark.stat().st_uid == 0


def write_names(path: Path, names: Mapping[str, Names], classifiers: tuple[str, ...] = ()) -> None:
    """Add renamed labels to a project file, by classifier, preserving everything else.

    A new file lists these classifiers and refers to the current ledger, so that its paid answers remain in use. Raises
    a DataError with the lines to add by hand if the file cannot be edited automatically.
    """
    text = f'classifiers = {json.dumps(classifiers, ensure_ascii=False)}\nledger = "{USER}"\n'
    text = path.read_text("utf-8") if path.exists() else text
    added = ""
    for classifier, pairs in names.items():
        header = f"[rename.{classifier if BARE.fullmatch(classifier) else _quoted(classifier)}]\n"
        lines = "".join(f"{_quoted(label)} = {_quoted(name)}\n" for label, name in pairs.items())
        added += header + lines
        text = text.replace(header, header + lines) if header in text else f"{text}\n{header}{lines}"
    try:
        known = tomllib.loads(text)["rename"]
        done = all(known[classifier].items() >= pairs.items() for classifier, pairs in names.items())
    except (ValueError, KeyError, AttributeError):
        done = False
    if not done:
        raise DataError(
            f"{str(path)!r} has renamed labels in another form; add by hand: {added}", code="project-invalid"
        )
    files.write(path, text)


def _quoted(text: str) -> str:
    """Quote a string for TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
