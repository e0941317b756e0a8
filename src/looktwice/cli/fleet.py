"""What `score --engine ray` does: open what a fleet needs, show how it gets on, and sum up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from looktwice.asking.asker import Estimate
from looktwice.asking.outcome import Progress
from looktwice.asking.progress import ERR, say
from looktwice.asking.session import OFF, POSTGRES, AskOptions, ledger_name
from looktwice.classifiers.base import Terms
from looktwice.cli.console import Output, policy_of, print_json, safe, show_estimate, stop, stopping_signals
from looktwice.cli.look import tell_drift, tell_unfamiliar
from looktwice.errors import DataError, FleetError
from looktwice.fleet.driver import Cluster, Run, running
from looktwice.fleet.shards import Shards, Summary, shard_name
from looktwice.fleet.worker import Job
from looktwice.model import AsyncModel
from looktwice.verdicts.policy import DecisionOptions, Policy
from looktwice.verdicts.stream import Stream

ENOUGH = 1000
"""Pictures after which a share of bad ones says something."""
NO_LEDGER = (
    "a paid classifier, a budget or a ledger on several machines needs a PostgreSQL ledger that all of them can reach: "
    "start one (for example: docker run -d -p 5432:5432 -e POSTGRES_PASSWORD=... postgres:17) "
    "and give --ledger postgresql://user@host/database"
)


@dataclass(frozen=True)
class Machines:
    """What the options of the command say about the machines."""

    address: str | None = None
    """A cluster that is there, `auto` for the one this machine belongs to; None for one on this machine alone."""
    workers: int | None = None
    """As many as there are processors where None."""
    shard: int = 1000
    """Pictures in one file of the result, about."""
    max_bad: str | None = None
    """How many pictures may be unreadable before the run stops: a number, or a share such as 1%."""


@dataclass
class Tally:
    """Where a run stands."""

    pictures: int = 0
    before: int = 0
    """Those of them that an earlier run had done."""
    unscored: int = 0
    bad: int = 0
    unfamiliar: int = 0
    progress: Progress = field(default_factory=Progress)
    seconds: float = 0.0

    def add(self, summary: Summary) -> None:
        """Count a unit."""
        self.pictures += summary.pictures
        self.before += summary.pictures if summary.before else 0
        self.unscored += summary.unscored
        self.bad += summary.bad
        self.unfamiliar += summary.unfamiliar
        self.progress += summary.progress

    def line(self) -> str:
        """The tally for a person."""
        new, asked = self.pictures - self.before, self.progress
        parts = [f"{self.pictures} pictures ({new / max(self.seconds, 1e-9):.0f}/s)", f"{asked.sent} queries"]
        parts += [f"{self.before} done before"] if self.before else []
        parts += [f"{asked.hits} from the ledger"] if asked.hits else []
        parts += [f"{asked.retries} retries"] if asked.retries else []
        parts += [f"{asked.micros / 1e6:.4f} spent"] if asked.micros else []
        parts += [f"{self.unscored} not scored, {self.bad} of them unreadable"] if self.unscored else []
        return " · ".join(parts)


def score(
    paths: Sequence[str],
    take: str | None,
    verify: bool,
    profile_path: Path,
    classifier: str | None,
    out: str,
    decide: DecisionOptions,
    machines: Machines,
    ask: AskOptions,
    output: Output,
) -> bool:
    """Write the verdicts of all pictures to a folder; whether all have one."""
    if take is not None:
        raise DataError("--take is for one machine; name the pictures that you want scored on Ray")
    if verify:
        raise DataError("--verify is for one machine; on Ray name another folder to have everything looked at again")
    if ask.batch:
        raise DataError(
            "a fleet would wait up to a day for the batch of each shard; leave --batch out, or leave --engine ray out: "
            "one machine puts all questions into batches at once, and the vendor does the work"
        )
    for path in paths:
        if f"{_whole(out)}/".startswith(f"{_whole(path)}/"):  # they would be taken for tables of pictures
            raise DataError(f"the verdicts would lie among the pictures of {path}; name another folder")
    model = AsyncModel.load(profile_path, classifier, options=ask)
    policy = policy_of(model, decide)
    max_bad = MaxBad.parse(machines.max_bad)
    with _prepared(model, out, decide, machines, output.dry_run) as job:
        run = Run(paths, machines.shard, job)
        if output.dry_run:
            _estimated(run, model.terms, ledger_name(model.terms, model.options), output.json)
            return True
        watch = Watch(policy, max_bad, output.json_log)
        with _interruptible(run) as interrupted:
            watch.follow(run)
    if failure := watch.failure or max_bad.exceeded(watch.tally, enough=1):
        raise FleetError(f"{failure}; what is done is kept; run again to resume")
    if not interrupted:
        Shards(out).finish(watch.done)
    return _conclude(watch, policy, out, not interrupted and not watch.tally.unscored, output.json)


def _whole(path: str) -> str:
    return path.partition("?")[0].rstrip("/") if "://" in path else os.path.realpath(path)


@contextmanager
def _prepared(model: AsyncModel, out: str, decide: DecisionOptions, machines: Machines, dry: bool) -> Iterator[Job]:
    """A job with all that it needs, for as long as Ray runs."""
    profile, ask, terms = model.fitted(), model.options, model.terms
    ledger = shared_ledger(terms, ask)
    spent = model.asker.spent() if ledger else None  # opened here first, where a failure is one line
    ask = replace(ask, ledger=ledger or OFF).settled(terms, spent)
    asyncio.run(model.close())
    if not dry:
        header = {"profile": profile.model_dump(mode="json"), "options": asdict(decide), "seed": ask.seed}
        Shards(out).begin({**header, "classifier": model.classifier.fingerprint})
    with running(machines.address) as cluster:
        workers, concurrency = crew(terms, cluster, machines)
        rate = terms.per_second and (terms.per_second if ask.ledger != OFF else terms.per_second / workers)
        ask = replace(ask, concurrency=concurrency, rate=rate)
        yield Job(profile, model.description, ask, decide, os.getcwd(), out, workers, dry)


def shared_ledger(terms: Terms, ask: AskOptions) -> str | None:
    """The address of the ledger that all workers use; None for a local classifier, which is free and needs none."""
    limits = (ask.budget, ask.money, ask.per_day, ask.money_per_day)
    ledger = None if ask.ledger == OFF else ask.ledger
    if terms.local and ledger is None and limits == (None, None, None, None):
        return None
    if ledger is None or not ledger.startswith(POSTGRES):
        raise FleetError(NO_LEDGER)
    return ledger


def crew(terms: Terms, cluster: Cluster, machines: Machines) -> tuple[int, int]:
    """How many workers, and how many calls each may make at a time: together no more than the classifier allows.

    Each worker has one processor, and so has a model that runs in it.
    """
    workers = machines.workers or cluster.cpus
    if workers > cluster.cpus:
        raise FleetError(
            f"{workers} workers need as many processors, and the cluster has {cluster.cpus}; "
            f"give --workers {cluster.cpus} or add machines"
        )
    if terms.local:
        return workers, 1
    workers = min(workers, terms.concurrency)
    return workers, terms.concurrency // workers


class Watch:
    """Looks after a run: shows how it gets on, and stops it when something is wrong."""

    def __init__(self, policy: Policy, max_bad: MaxBad, json_log: bool) -> None:
        self.tally = Tally()
        self.done = set[str]()
        """The units whose results have arrived."""
        self._files: dict[int, str] = {}
        self.failure: str | None = None
        self.stream = Stream.of(policy)
        self.began: str | None = None
        """The file in which the pictures began to differ from the profile's, in the order of their verdicts."""
        self._max_bad, self._json_log = max_bad, json_log
        self._started = time.monotonic()

    def follow(self, run: Run) -> None:
        """Count the units as they are done; returns when there are no more, or after a failure."""
        with ERR.status("Starting ...") as status:
            for summary in run:
                if summary:
                    self.tally.add(summary)
                    self.done.add(summary.identity)
                    self._watch(summary)
                    self.failure = self.failure or summary.error or self._max_bad.exceeded(self.tally)
                else:
                    status.update(safe(self._shown(run.underway()).line()))
                if self.failure:
                    run.stop(self.failure)
        self.tally = self._shown(Progress())

    def _watch(self, summary: Summary) -> None:
        """Look for a change; the file of each unit is remembered until one is seen."""
        self._files[self.stream.seen] = shard_name(summary.identity)
        self.stream = self.stream.update(summary.glances)
        if self.began is None and (since := self.stream.since) is not None:
            self.began = self._files[max(seen for seen in self._files if seen <= since)]

    def _shown(self, underway: Progress) -> Tally:
        """Where the run stands, with what was asked for units that are not done; as a JSON line, too, if wanted."""
        seconds = time.monotonic() - self._started
        tally = replace(self.tally, progress=self.tally.progress + underway, seconds=seconds)
        if self._json_log:
            sys.stderr.write(json.dumps(asdict(tally)) + "\n")
        return tally


@dataclass(frozen=True)
class MaxBad:
    """How many pictures may be unreadable: a number or a share; None is no limit."""

    number: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str | None) -> MaxBad:
        """`20` or `1%`."""
        if text is None:
            return cls()
        try:
            limit = cls(share=float(text[:-1]) / 100) if text.endswith("%") else cls(number=int(text))
        except ValueError:
            raise DataError(f"--max-bad {text!r} is neither a number nor a share; write 20 or 1%") from None
        if (limit.number or 0) < 0 or not 0 <= (limit.share or 0) <= 1:
            raise DataError(f"--max-bad {text!r} is not possible; write 20 or 1%")
        return limit

    def exceeded(self, tally: Tally, enough: int = ENOUGH) -> str | None:
        """Why a run should stop, if it should; a share is looked at when there are enough pictures."""
        many = self.number is not None and tally.bad > self.number
        share = self.share is not None and tally.pictures >= enough and tally.bad > self.share * tally.pictures
        if not many and not share:
            return None
        return f"{tally.bad} of {tally.pictures} pictures cannot be read, more than --max-bad allows"


@contextmanager
def _interruptible(run: Run) -> Iterator[list[str]]:
    """A signal once stops the run gently, twice at once; the list then says why."""
    reasons: list[str] = []

    def halt(reason: str) -> None:
        reasons.append(reason)
        run.stop(reason)

    before = {each: signal.signal(each, lambda number, _: stop(number, halt)) for each in stopping_signals()}
    try:
        yield reasons
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _conclude(watch: Watch, policy: Policy, out: str, complete: bool, as_json: bool) -> bool:
    tally = watch.tally
    tell_unfamiliar(tally.unfamiliar, tally.pictures, policy.false_alarms)
    stream = watch.stream
    if as_json:
        drift = {"drift": stream.alarm, "drift_since": watch.began, "expected_accuracy": asdict(stream.expected())}
        print_json({"out": out, "complete": complete, **drift, **asdict(tally)})
    say(f"{safe(tally.line())} · {tally.seconds:.0f} s")
    say(f"Verdicts: {safe(out)}" + ("" if complete else "; run the same command again to resume"))
    tell_drift(stream, watch.began)
    return complete


def _estimated(summaries: Iterable[Summary | None], terms: Terms, ledger: str | None, as_json: bool) -> None:
    """Add up what the units would ask, and show it; a picture that is in two units counts twice."""
    total = Estimate(0, 0, 0, 0, 0, 0, None)
    for summary in summaries:
        if summary and summary.error:
            raise FleetError(summary.error)
        if summary and summary.estimate:
            total += summary.estimate
    seconds = total.queries / terms.per_second if terms.per_second else None
    show_estimate(replace(total, seconds=seconds), ledger, as_json)
