"""Votes: the answers of a classifier about pictures and their views.

Labels are stored as codes into one vocabulary: an answer takes four bytes regardless of the length of its label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from looktwice.calibration.evidence import (
    MISSING,
    UNLISTED,
    Bools,
    Codes,
    Evidence,
    Places,
    RankedList,
    Row,
    require,
)
from looktwice.errors import DataError, FitError, MissingExtra

if TYPE_CHECKING:
    import pandas as pd


Labels = Sequence[str | int | None] | NDArray[np.generic]

Rows = Places | Bools | list[int] | list[bool] | slice

LabelTable = Sequence[Sequence[str | int | None]] | NDArray[np.generic]


ENDINGS = (".npz", ".parquet")
"""The extensions of votes files, which determine the format."""

OUTSIDE = -2
"""The code of a true label outside the vocabulary: no answer is equal to it."""


class Details(TypedDict, total=False):
    """Optional arguments of `Votes.from_labels`, for n pictures and S views."""

    names: Sequence[str]
    """(n,): the names of the pictures."""
    panel: Sequence[str]
    """(S,): the views."""
    scores: ArrayLike
    """(n, 1 + S): the score of the base label and the score of each view's label, NaN where there is none."""
    lists: Sequence[Sequence[Sequence[tuple[str | int, float | None]]]]
    """(n, 1 + S): ranked lists, an alternative to `scores`: pairs of label and score (or None), the best first."""


@dataclass(frozen=True, eq=False, repr=False)
class Votes:
    """The answers about n pictures under a panel of S views, as codes into the vocabulary.

    `names` (n,) are the names of the pictures and `panel` (S,) the names of the views. `base` (n,) and `views` (n, S)
    are positions in `vocabulary`, -1 where there is no answer. `classes` counts all classes, including those that were
    never returned. `digests` (n,) identify equal pictures, `evidence` contains scores and ranked lists, and `unsayable`
    (S + 1,) contains the codes that the classifier of the base and of each view cannot return.
    """

    names: tuple[str, ...]
    panel: tuple[str, ...]
    vocabulary: tuple[str, ...]
    base: Codes
    """(n,): the base label of each picture, MISSING if there is none."""
    views: Codes
    """(n, S): the label of each view, MISSING where it was not queried."""
    classes: int
    """The number of classes of the classifier, at least 2, including labels that were never returned."""
    digests: tuple[str, ...] = field(default=(), kw_only=True)
    """(n,): digests of the pixels, which identify equal pictures; empty if unknown."""
    evidence: Evidence | None = field(default=None, kw_only=True)
    """Scores and ranked lists; None if the classifier returned none."""
    unsayable: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)
    """(S + 1,): the codes that the classifiers of the base and of each view cannot return; empty if they can return
    all."""

    _by_picture: ClassVar[tuple[str, ...]] = ("names", "base", "views", "digests")

    def __post_init__(self) -> None:
        n, s, words, answers = len(self.names), len(self.panel), len(self.vocabulary), (self.base, self.views)
        require(
            self.base.shape == (n,) and self.views.shape == (n, s),
            f"votes for {n} pictures and {s} views need shapes {(n,)} and {(n, s)}, "
            f"not {self.base.shape} and {self.views.shape}",
        )
        require(len(self.digests) in (0, n), f"{n} pictures have votes, but {len(self.digests)} digests were given")
        require(
            len(self.unsayable) in (0, s + 1),
            f"{s} views and the base need {s + 1} lists of labels that the classifier cannot return, "
            f"not {len(self.unsayable)}",
        )
        require(
            all(x.max(initial=0) < max(words, 1) and x.min(initial=0) >= MISSING for x in answers),
            "votes contain a code outside their vocabulary; the file was not made by looktwice",
        )
        require(self.classes >= max(2, words), f"{self.classes} classes cannot hold a vocabulary of {words} labels")
        if self.evidence:
            self.evidence.check(n, s, words)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        counts = f"{len(self):,} pictures, {len(self.panel)} views, {len(self.vocabulary)} labels"
        return f"<{type(self).__name__}: {counts}>"

    def check(self) -> None:
        """Raise an error, because these votes have no true labels."""
        raise FitError(
            "these votes have no true labels to learn from; pass them to Votes.from_labels, or call labelled",
            code="labels-missing",
        )

    @classmethod
    def collect(
        cls,
        rows: Iterable[Row],
        panel: Sequence[str],
        vocabulary: Sequence[str] = (),
        classes: int | None = None,
    ) -> Votes:
        """Build votes from answered rows; labels outside the vocabulary are added in order of appearance.

        Duplicates in the vocabulary are merged, since answers cannot distinguish them.
        """
        codes = {label: code for code, label in enumerate(dict.fromkeys(vocabulary))}
        names, digests, base, views, lists = [], [], [], [], []
        for row in rows:
            names.append(row.name)
            lists.append(row.lists)
            digests.append(row.digest)
            base.append(MISSING if row.base is None else codes.setdefault(row.base, len(codes)))
            views.append([MISSING if v is None else codes.setdefault(v, len(codes)) for v in row.views])
        evidence = Evidence.collect(lists, len(panel) + 1, codes) if any(lists) else None
        return Votes(
            tuple(names),
            tuple(panel),
            tuple(codes),
            np.array(base, np.int32),
            np.array(views, np.int32).reshape(len(names), len(panel)),
            max(classes or 0, len(codes), 2),
            digests=tuple(digests) if any(digests) else (),
            evidence=evidence,
        )

    @overload
    @classmethod
    def from_labels(
        cls,
        base: Labels,
        views: LabelTable,
        truths: None = None,
        vocabulary: Labels | None = None,
        **details: Unpack[Details],
    ) -> Votes: ...
    @overload
    @classmethod
    def from_labels(
        cls,
        base: Labels,
        views: LabelTable,
        truths: Labels,
        vocabulary: Labels | None = None,
        **details: Unpack[Details],
    ) -> LabelledVotes: ...
    @classmethod
    def from_labels(
        cls,
        base: Labels,
        views: LabelTable,
        truths: Labels | None = None,
        vocabulary: Labels | None = None,
        **details: Unpack[Details],
    ) -> Votes | LabelledVotes:
        """Build votes from labels in lists or arrays, given as strings, or as integers that are converted to strings.

        `base` has shape (n,) and contains the label of each picture; `views` has shape (n, S) and contains the labels
        of its views. None, a masked entry, an empty string or the number -1 means that a query was not sent, or
        returned no label. With `truths`, of shape (n,), the votes are labelled. `vocabulary` lists all labels that the
        classifier can return; by default, the labels that appear.

        `names` are the names of the n pictures and `panel` the names of the S views. `scores`, of shape (n, 1 + S), are
        the classifier's scores of the base label and of each view's label, NaN where there is none. Alternatively,
        `lists` holds the ranked list of each of the 1 + S answers: pairs of label and score (or None), the best first.

        >>> votes = Votes.from_labels(["cat", "dog"], [["cat", "cat"], ["dog", None]], truths=["cat", "fox"])
        >>> votes.vocabulary, votes.base.tolist(), votes.views.tolist(), votes.truths.tolist()
        (('cat', 'dog'), [0, 1], [[0, 0], [1, -1]], [0, -2])
        """

        from looktwice.calibration import storage

        if unknown := details.keys() - Details.__annotations__.keys():
            raise TypeError(
                f"from_labels() has no argument {min(unknown)!r}; it has {', '.join(Details.__annotations__)}"
            )
        votes = storage.collect(base, views, vocabulary, details)
        return votes if truths is None else storage.labelled(votes, truths)

    def save(self, path: str | Path) -> None:
        """Write the votes, with true labels if they have any, as .npz or .parquet according to the extension."""
        from looktwice.calibration import storage

        storage.save(storage.checked(path), self)

    @staticmethod
    def load(path: str | Path) -> Votes | LabelledVotes:
        """Load votes from a file written by `save` or the command line; labelled if it contains true labels."""
        from looktwice.calibration import storage

        return storage.load(storage.checked(path))

    def to_frame(self) -> pd.DataFrame:
        """Convert to a pandas data frame with one row per picture: name, base label, label of each view, and true label
        if known."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtra("frames", "pandas") from None
        words = np.array([*self.vocabulary, None], object)
        titles = ["base", *(f"{s} {view}" for s, view in enumerate(self.panel, start=1))]
        columns = dict(zip(titles, words[self.answers()].T, strict=True))
        truths = {"truth": self.words} if isinstance(self, LabelledVotes) else {}
        return pd.DataFrame({"name": self.names, **columns, **truths})

    def labelled(
        self, truths: Iterable[str], excluded: Sequence[tuple[int, ...]] = (), probabilities: Sequence[float] = ()
    ) -> LabelledVotes:
        """Add the true label of each picture.

        If the true label of a picture is unknown but some labels are known to be wrong, `excluded` contains the codes
        of the wrong labels, and the true label is a human-readable text. `probabilities` are the relative probabilities
        with which pictures were selected for labelling; empty if equal.
        """
        words = tuple(map(str, truths))
        doubtful = np.array(list(map(bool, excluded)) or [False] * len(words), bool)
        require(
            len(doubtful) == len(words),
            f"{len(words)} pictures have true labels, but excluded labels are given for {len(excluded)}",
        )
        truth: dict[str, Any] = {
            "truths": np.where(doubtful, np.int32(OUTSIDE), self.codes(words)),
            "words": words,
            "excluded": tuple(excluded) if doubtful.any() else (),
            "probabilities": tuple(probabilities) if len(set(probabilities)) > 1 else (),
        }
        return LabelledVotes(**vars(self) | truth)

    def take(self, rows: Rows) -> Self:
        """The votes on a subset of the pictures, given as a slice, positions or a mask."""
        places = np.arange(len(self))[rows]
        kept: dict[str, Any] = {name: getattr(self, name) for name in self._by_picture}
        for name, values in kept.items():  # an empty tuple, which stands for unknown values, stays empty
            if isinstance(values, tuple):
                kept[name] = tuple(values[place] for place in places.tolist()) if values else ()
            else:
                kept[name] = values[places]
        return replace(self, evidence=self.evidence and self.evidence.take(places), **kept)

    def distinct(self) -> Self:
        """Remove duplicates: of pictures with equal digests, keep the first."""
        first: dict[str, int] = {}
        rows = [row for row, digest in enumerate(self.digests) if not digest or first.setdefault(digest, row) == row]
        return self.take(np.array(rows)) if len(rows) < len(self.digests) else self

    def under(self, columns: Sequence[int]) -> Self:
        """The votes of some of the views, in the order given."""
        return self.of_sources([0, *(column + 1 for column in columns)])

    def of_sources(self, places: Sequence[int]) -> Self:
        """The answers at these positions of (base, view 1 … view S); the first becomes the base."""
        names, answers = ("base", *self.panel), self.answers()[:, places]
        return replace(
            self,
            panel=tuple(names[place] for place in places[1:]),
            base=answers[:, 0],
            views=answers[:, 1:],
            evidence=self.evidence and Evidence(self.evidence.labels[:, places], self.evidence.scores[:, places]),
            unsayable=tuple(self.unsayable[place] for place in places) if self.unsayable else (),
        )

    def apart(self, known: int, classes: int) -> Iterator[tuple[Places, Self]]:
        """Split into the pictures whose answers are all among the first `known` labels, and every other picture alone.

        Each part has its own vocabulary, with at least `classes` classes: the verdict on a picture must not depend on
        new labels in the answers about other pictures.
        """
        lists = (
            np.full((len(self), 0), MISSING) if self.evidence is None else self.evidence.labels.reshape(len(self), -1)
        )
        codes = np.column_stack([self.answers(), lists])
        new = (codes >= known).any(axis=1)
        for rows in filter(len, (np.flatnonzero(~new), *np.flatnonzero(new)[:, None])):
            more = np.unique(codes[rows][codes[rows] >= known])
            place = np.arange(len(self.vocabulary) + 1, dtype=np.int32)
            place[more], place[-1] = known + np.arange(len(more)), MISSING
            part = self.take(rows)
            evidence = part.evidence and replace(part.evidence, labels=place[part.evidence.labels])
            words = (*self.vocabulary[:known], *(self.vocabulary[code] for code in more))
            yield (
                rows,
                replace(
                    part,
                    vocabulary=words,
                    base=place[part.base],
                    views=place[part.views],
                    classes=max(classes, len(words)),
                    evidence=evidence,
                    unsayable=tuple(
                        tuple(int(place[code]) for code in codes if code < known or code in more)
                        for codes in self.unsayable
                    ),
                ),
            )

    def recoded(self, vocabulary: Sequence[str]) -> Votes:
        """Recode the votes to this vocabulary, with their other labels appended."""
        words = tuple(dict.fromkeys((*vocabulary, *self.vocabulary)))
        known = {label: code for code, label in enumerate(words)}
        place = np.array([*(known[label] for label in self.vocabulary), OUTSIDE, MISSING], np.int32)
        recoded = Votes(
            self.names,
            self.panel,
            words,
            place[self.base],
            place[self.views],
            max(self.classes, len(words)),
            digests=self.digests,
            evidence=self.evidence and replace(self.evidence, labels=place[self.evidence.labels]),
            unsayable=tuple(tuple(place[list(codes)].tolist()) for codes in self.unsayable),
        )
        if not isinstance(self, LabelledVotes):
            return recoded
        excluded = [tuple(place[list(codes)].tolist()) for codes in self.excluded]
        return recoded.labelled(self.words, excluded, self.probabilities)

    def answers(self) -> Codes:
        """(n, S + 1): the base label, followed by the labels of the views."""
        return np.column_stack([self.base, self.views])

    def cannot_say(self, labels: Codes) -> Bools | None:
        """(n, c, S + 1): whether the classifier of an answer cannot return each of the labels (n, c).

        Returns None if every classifier can return every label.
        """
        if not any(self.unsayable):
            return None
        silent = np.stack([np.isin(labels, codes) for codes in self.unsayable], axis=2)
        answers = self.answers()[:, None, :]
        return silent & (answers != MISSING) & (answers != labels[:, :, None])

    def label_only(self) -> Self:
        """The votes without scores and ranked lists."""
        return replace(self, evidence=None) if self.evidence else self

    def lists(self) -> list[tuple[RankedList, ...]]:
        """The ranked lists of each picture, as in `Row`."""
        if self.evidence is None:
            return [()] * len(self)

        def ranked(codes: list[int], scores: list[float]) -> RankedList:
            pairs = zip(codes, scores, strict=True)
            return tuple((self.vocabulary[c], None if np.isnan(x) else x) for c, x in pairs if c != UNLISTED)

        rows = zip(self.evidence.labels.tolist(), self.evidence.scores.tolist(), strict=True)
        return [tuple(map(ranked, *row)) for row in rows]

    def codes(self, labels: Iterable[str]) -> Codes:
        """The code of each label, OUTSIDE for one that is not in the vocabulary."""
        known = {label: code for code, label in enumerate(self.vocabulary)}
        return np.array([known.get(label, OUTSIDE) for label in labels], np.int32)


@dataclass(frozen=True, eq=False, repr=False)
class LabelledVotes(Votes):
    """Votes with true labels, on which calibrators are fitted and evaluated.

    `truths` (n,) are positions in `vocabulary`, -2 for a label outside of it; `words` (n,) are the true labels as text.
    `excluded` (n,) holds the codes known to be wrong where the true label is otherwise unknown, and `probabilities`
    (n,) the relative probabilities with which the pictures were selected for labelling.
    """

    truths: Codes
    """(n,): the code of each true label, OUTSIDE for one that is not in the vocabulary."""
    words: tuple[str, ...]
    """(n,): the true labels."""
    excluded: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)
    """(n,): the codes known to be wrong, for pictures whose true label is otherwise unknown; the true label's code is
    then OUTSIDE, so that every answer is treated as wrong. Empty if every true label is known."""
    probabilities: tuple[float, ...] = field(default=(), kw_only=True)
    """(n,): the relative probability with which each picture was selected for labelling; empty if equal."""

    _by_picture = (*Votes._by_picture, "truths", "words", "excluded", "probabilities")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.excluded) in (0, len(self)),
            f"{len(self)} pictures have votes, but excluded labels are given for {len(self.excluded)}",
        )
        require(
            len(self.probabilities) in (0, len(self)) and all(0.0 < p <= 1.0 for p in self.probabilities),
            f"{len(self)} pictures need as many probabilities above 0 and up to 1, or none",
        )
        require(
            self.truths.shape == (len(self),) and len(self.words) == len(self),
            f"{len(self)} pictures have votes, but {len(self.words)} true labels were given",
        )
        inside = (self.truths >= 0) & (self.truths < len(self.vocabulary))
        require(
            bool((inside | (self.truths == OUTSIDE)).all()),
            "true labels contain a code outside the vocabulary; let `labelled` create the codes",
        )

    def even(self) -> Bools:
        """(n,): a subsample in which all pictures had the same probability of selection.

        Rejection sampling: a picture is kept with probability min(p)/p. The draw depends
        on the picture alone, so it is reproducible.
        """
        if not self.probabilities:
            return np.ones(len(self), bool)
        keys = self.digests if all(self.digests) and self.digests else self.names
        lots = np.array([int.from_bytes(sha256(f"even {key}".encode()).digest()[:7]) / 2**56 for key in keys])
        chance = np.array(self.probabilities)
        return np.asarray(lots * chance < chance.min(), bool)

    def evenly(self) -> Self:
        """The votes on the subsample selected by `even`."""
        return self.take(np.flatnonzero(self.even())) if self.probabilities else self

    def doubtful(self) -> Bools:
        """(n,): whether the true label is unknown except for excluded labels."""
        return np.array(list(map(bool, self.excluded)) or [False] * len(self), bool)

    def excluded_labels(self, row: int) -> list[str]:
        """The labels known to be wrong for a picture; a label outside the vocabulary is an empty string."""
        codes = self.excluded[row] if self.excluded else ()
        return ["" if code == OUTSIDE else self.vocabulary[code] for code in codes]

    def forbids(self, labels: Codes) -> Bools:
        """(n, c): whether each of these labels, (n, c), is known to be wrong."""
        forbidden = np.zeros(labels.shape, bool)
        for row in np.flatnonzero(self.doubtful()):
            forbidden[row] = np.isin(labels[row], self.excluded[row])
        return forbidden

    def disputed(self) -> list[tuple[str, str]]:
        """Pairs of names of equal pictures with different true labels."""
        first: dict[str, int] = {}
        rows = [(first.setdefault(digest, row), row) for row, digest in enumerate(self.digests) if digest]
        return [(self.names[one], self.names[other]) for one, other in rows if self.words[one] != self.words[other]]

    def check(self) -> None:
        """Raise an error if there is nothing to learn from: no picture, or no known true label."""
        if len(self) == 0:
            raise FitError("there are no labelled pictures to learn from; give at least 20", code="labels-too-few")
        if (self.truths == OUTSIDE).all():
            known = ~self.doubtful()
            if not known.any():
                raise FitError("no picture has a known true label; label some pictures", code="labels-missing")
            check_truths([word for word, sure in zip(self.words, known, strict=True) if sure], self.vocabulary)


def check_truths(truths: Iterable[str], labels: Iterable[str]) -> None:
    """Raise an error if no true label is among the labels, in which case they probably use different names."""
    true, known = set(truths), set(labels)
    if true and known and true.isdisjoint(known):
        raise DataError(
            f"none of the true labels ({few(true)}) is among the classifier's labels ({few(known)}); in arrays, map "
            "one to the other, such as [names[truth] for truth in truths]; for a classifier's description, `looktwice "
            "labels` proposes names (`rename`, or `labels` where it answers with positions); for a CSV of true labels, "
            "--truths-column selects another column",
            code="labels-unmatched",
        )


def few(labels: Iterable[str]) -> str:
    """The first three labels in alphabetical order."""
    ordered = sorted(labels)
    return ", ".join(repr(label[:40]) for label in ordered[:3]) + (", …" if len(ordered) > 3 else "")
