"""Everything looktwice raises on purpose.

LookTwiceError
├── ImageError            a file that is not a picture we can use
├── DataError             pictures and truths that do not fit together, votes that cannot be read
├── ViewError             a view that cannot be read or rendered
├── FitError              labelled pictures that a calibrator cannot learn from
│   └── UnscoredError     none of them could be scored
├── ProfileError          a profile that is malformed, newer or not for this classifier
│   └── UntrustedError    one that names a classifier which the user has not approved
├── LedgerError           a ledger that cannot be opened, read or written
├── BudgetError           the budget is spent
├── MissingExtra          an optional part that is not installed
├── FleetError            machines that did not do their part
└── ClassifierError       the classifier did not give an answer
    ├── TransientError    it may answer if asked again later
    ├── PermanentError    it will not answer this, however often it is asked
    ├── QuotaError        it will not answer anyone until somebody pays or waits for long
    └── ChangedError      it answers, but no longer as it used to

Each message says what happened, with which value, and what to do now, in one line.
"""

from typing import Self


class LookTwiceError(Exception):
    """The root of the tree; the command line prints it as one line and leaves with a code that is not 0."""


class ImageError(LookTwiceError):
    """A file that is not a picture we can use; `why` tells it without the file's name."""

    def __init__(self, why: str, name: str = "") -> None:
        super().__init__(f"{name}: {why}" if name else why)
        self.why = why

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (str(self),)


class DataError(LookTwiceError):
    """Pictures and truths that do not fit together, or votes that cannot be read."""


class ViewError(LookTwiceError):
    """A view that cannot be read or rendered."""


class FitError(LookTwiceError):
    """Labelled pictures that a calibrator cannot learn from."""


class UnscoredError(FitError):
    """Labelled pictures of which none, or not all that are needed, could be scored."""


class ProfileError(LookTwiceError):
    """A profile that is malformed, newer than this program or not made for this classifier."""


class UntrustedError(ProfileError):
    """A profile that names a classifier which the user has neither named nor approved."""


class LedgerError(LookTwiceError):
    """A ledger that cannot be opened, read or written."""


class BudgetError(LookTwiceError):
    """The budget is spent."""


class MissingExtra(LookTwiceError):
    """An optional part that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} need: pip install 'looktwice[{extra}]'")


class FleetError(LookTwiceError):
    """Machines that did not do their part."""


class ClassifierError(LookTwiceError):
    """The classifier did not give an answer.

    `sent` is False if it was surely not reached, `status` is that of its reply if a whole one came, and `billed` is
    False if nothing is to be paid: it was not reached, or says that it did not do the work.
    """

    def __init__(self, message: str, *, sent: bool = True, status: int | None = None, billed: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        self.status = status
        self.billed = sent and billed


class TransientError(ClassifierError):
    """It may answer if asked again, soon or after `retry_after` seconds.

    `garbled` is True if it replied but not with what it promised, which, like a status of 500, is rarely worth more
    than a few tries.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        sent: bool = True,
        billed: bool = True,
        garbled: bool = False,
    ) -> None:
        super().__init__(message, sent=sent, status=status, billed=billed)
        self.retry_after = retry_after
        self.garbled = garbled


class PermanentError(ClassifierError):
    """It will not answer this, however often it is asked."""


class QuotaError(ClassifierError):
    """It will not answer anyone until somebody pays, or for `retry_after` seconds where it says how long."""

    def __init__(
        self, message: str, *, status: int | None = None, billed: bool = True, retry_after: float | None = None
    ) -> None:
        super().__init__(message, status=status, billed=billed)
        self.retry_after = retry_after


class ChangedError(ClassifierError):
    """It answers, but no longer as it used to."""
