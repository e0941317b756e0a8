"""The exceptions of looktwice.

LookTwiceError
├── ImageError            a file that is not a usable picture
├── DataError             inconsistent pictures and true labels, unreadable votes
├── ViewError             a view that cannot be read or rendered
├── FitError              labelled pictures that a calibrator cannot be fitted on
│   └── UnscoredError     none or too few of them could be scored
├── ProfileError          a profile that is malformed, too new or for another classifier
│   └── UntrustedError    a profile whose classifier the user has not approved
├── LedgerError           a ledger that cannot be opened, read or written
├── BudgetError           the budget is spent
├── MissingExtra          an optional part that is not installed
├── FleetError            workers of a cluster that failed
└── ClassifierError       the classifier did not give an answer
    ├── TransientError    a retry may succeed
    ├── PermanentError    a retry cannot succeed
    ├── QuotaError        the quota is exceeded
    └── ChangedError      the classifier's answers have changed

Each message states in one line what happened, which value caused it, and what to do now; `code` identifies the cause.
"""

import copyreg
import sys
from collections.abc import Sequence
from typing import ClassVar

CODES = {
    "address-unusable": "the service cannot listen at this address and port",
    "budget-invalid": "an amount of queries or money that cannot be a budget",
    "budget-spent": "the budget does not cover the next query",
    "calibrator-malformed": "the calibrator in a profile or file is inconsistent",
    "calibrator-plugin": "a calibrator from another package or your own code that cannot be used",
    "calibrator-unknown": "no calibrator has this name",
    "certificate-invalid": "a TLS certificate or its key cannot be used",
    "classifier-changed": "the classifier no longer answers as before",
    "classifier-failed": "the classifier failed, and no further attempt was made",
    "classifier-refused": "the classifier refuses this query, however often it is sent",
    "classifier-timeout": "the reply was late or incomplete",
    "classifier-unavailable": "the classifier failed temporarily and may answer later",
    "classifier-unknown": "the ledger has no classifier, or more than one, with this name",
    "classifier-unreachable": "no connection to the classifier",
    "classifier-untrusted": "a file names a classifier that the user has not approved",
    "credentials-missing": "a key that the classifier needs is not set",
    "credentials-refused": "the classifier does not accept the key (status 401 or 403)",
    "data-invalid": "values that do not fit together",
    "description-invalid": "the description of a classifier cannot be used",
    "description-missing": "the description, model or label file of a classifier does not exist",
    "disk-full": "no space is left on the disk",
    "error": "any error without a specific code",
    "extra-missing": "an optional part of looktwice is not installed",
    "file-ending": "the extension of a file is not a known format",
    "file-exists": "a file or folder that exists would be overwritten",
    "file-locked": "another run is writing to this file, or the file cannot be locked",
    "file-malformed": "a file has unexpected content",
    "file-missing": "a file or folder does not exist",
    "file-unreadable": "a file or folder cannot be read",
    "file-unwritable": "a file or folder cannot be written",
    "fit-impossible": "the calibrator cannot be fitted on these pictures",
    "fleet-failed": "workers of a cluster failed",
    "fleet-unreachable": "Ray cannot be reached or started",
    "guarantee-impossible": "no number of labelled pictures can support this guarantee",
    "image-missing": "the file of a picture cannot be opened",
    "image-too-large": "a picture has more pixels or bytes than the limit",
    "image-unfit": "the classifier cannot take a picture of this size",
    "image-unreadable": "a picture is broken, cut off or empty",
    "image-unsupported": "a file type or pixel format that cannot be read as a picture",
    "labels-missing": "pictures without the labels that are needed",
    "labels-one-class": "all labelled pictures are right, or all are wrong",
    "labels-too-few": "too few labelled pictures",
    "labels-unmatched": "labels do not match the pictures, or the classifier's labels",
    "ledger-closed": "the ledger was closed",
    "ledger-damaged": "the ledger's database is damaged",
    "ledger-foreign": "the file or schema is not a ledger of this version",
    "ledger-invalid": "this location cannot be used for a ledger",
    "ledger-locked": "another program has locked the ledger for too long",
    "ledger-missing": "there is no ledger at this location yet",
    "ledger-newer": "a newer looktwice wrote the ledger",
    "ledger-required": "the operation needs a persistent ledger, or one that all machines can reach",
    "ledger-unsupported": "this database or drive cannot hold a ledger",
    "ledger-unusable": "the ledger cannot be opened, read or written",
    "model-closed": "the model was closed, forked or called from its own callback",
    "model-unsupported": "a model whose inputs or outputs cannot be used",
    "no-label": "the classifier answered, but its answer contained no label",
    "not-fitted": "a calibrator or model was used before it was fitted",
    "option-conflict": "options that exclude or require each other",
    "option-invalid": "a value that an option or argument cannot have",
    "panel-invalid": "views that cannot form a panel",
    "pictures-duplicate": "a picture is given twice",
    "pictures-many": "several pictures were given where one is expected",
    "pictures-none": "no pictures, or too few for the operation",
    "pictures-selected": "a warning: another profile did not accept these pictures, so no guarantee holds for them",
    "platform-unsupported": "the operation needs Linux or macOS",
    "price-missing": "a price or limit is missing from the price table",
    "profile-incomplete": "the profile does not contain what the operation needs",
    "profile-malformed": "the profile cannot be read",
    "profile-mismatch": "the profile was fitted on another classifier, reading or renderer",
    "profile-missing": "there is no such profile",
    "profile-newer": "a newer looktwice wrote the profile",
    "program-unusable": "a program or function cannot be started or imported",
    "project-invalid": "the project file looktwice.toml, or a setting in it, cannot be used",
    "quota-exceeded": "the account's quota is used up",
    "rate-limited": "the classifier is rate-limited (status 429) for longer than allowed",
    "reply-malformed": "the classifier's reply was invalid",
    "stopped": "the run ended before the query was sent",
    "token-invalid": "the service's tokens are missing or malformed",
    "unfamiliar": "a picture is unlike the labelled ones, and unfamiliar pictures are refused on request",
    "unscored": "too few labelled pictures could be scored",
    "view-invalid": "a view or one of its values is invalid",
    "view-plugin": "a view from another package that cannot be used",
    "view-unknown": "no view has this name",
    "view-unsupported": "a view that this classifier does not support",
    "votes-malformed": "votes with inconsistent shapes or codes",
    "votes-mismatch": "votes about views, labels or pictures other than expected",
}
"""Each `error.code` and its meaning; docs/reference/errors.md is generated from it."""


class LookTwiceError(Exception):
    """The base class of all errors. Programs should check `code`, a key of CODES; the message is for people."""

    code: str = "error"

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ImageError(LookTwiceError):
    """A file that is not a usable picture; `why` is the message without the file's name."""

    code = "image-unreadable"

    def __init__(self, why: str, name: str = "", *, code: str = "") -> None:
        super().__init__(f"{name}: {why}" if name else why, code=code)
        self.why = why


class DataError(LookTwiceError):
    """Inconsistent pictures and true labels, or unreadable votes."""

    code = "data-invalid"


class ViewError(LookTwiceError):
    """A view that cannot be read or rendered."""

    code = "view-invalid"


class FitError(LookTwiceError):
    """Labelled pictures on which a calibrator cannot be fitted."""

    code = "fit-impossible"


class UnscoredError(FitError):
    """Too few of the labelled pictures could be scored, or none."""

    code = "unscored"


class ProfileError(LookTwiceError):
    """A profile that is malformed, newer than this program or made for another classifier."""

    code = "profile-malformed"


class UntrustedError(ProfileError):
    """A profile whose classifier the user has neither given nor approved."""

    code = "classifier-untrusted"


class LedgerError(LookTwiceError):
    """A ledger that cannot be opened, read or written."""

    code = "ledger-unusable"


class BudgetError(LookTwiceError):
    """The budget is spent."""

    code = "budget-spent"


class MissingExtra(LookTwiceError):
    """An optional part that is not installed."""

    code = "extra-missing"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} need: pip install 'looktwice[{extra}]'")


class FleetError(LookTwiceError):
    """Workers of a cluster that failed."""

    code = "fleet-failed"


class ClassifierError(LookTwiceError):
    """The classifier did not give an answer.

    `sent` is False if the classifier was certainly not reached, and `status` is the HTTP status of a complete reply.
    `billed` is False if nothing is charged: the classifier was not reached, or it reported that it did not process the
    request. A retry may succeed after `retry_after` seconds, if known. `garbled` is True if the reply was invalid; like
    a status of 500, an invalid reply is rarely worth more than a few retries.
    """

    code = "classifier-failed"
    by_status: ClassVar[dict[int, str]] = {}
    """The error code for each HTTP status; the key 0 is used for all other statuses."""

    def __init__(
        self,
        message: str,
        *,
        sent: bool = True,
        status: int | None = None,
        billed: bool = True,
        retry_after: float | None = None,
        garbled: bool = False,
        code: str = "",
    ) -> None:
        known = self.by_status.get(status, self.by_status.get(0, "")) if status else ""
        super().__init__(message, code=code or known)
        self.sent, self.status, self.billed = sent, status, sent and billed
        self.retry_after, self.garbled = retry_after, garbled


class TransientError(ClassifierError):
    """A retry may succeed."""

    code = "classifier-unavailable"
    by_status: ClassVar[dict[int, str]] = {429: "rate-limited"}


class PermanentError(ClassifierError):
    """A retry cannot succeed, or the classifier's description is invalid."""

    code = "description-invalid"
    by_status: ClassVar[dict[int, str]] = {
        401: "credentials-refused",
        403: "credentials-refused",
        0: "classifier-refused",
    }


class QuotaError(ClassifierError):
    """The quota is exceeded; queries fail until it is raised, or for `retry_after` seconds."""

    code = "quota-exceeded"


class ChangedError(ClassifierError):
    """The classifier's answers have changed."""

    code = "classifier-changed"


def shown(name: str) -> str:
    """Prepare a name for printing in a terminal: it is quoted and escaped if it is empty or has control characters."""
    return name if name and name.isprintable() else repr(name)


def few(names: Sequence[str], what: str) -> str:
    """The number of names, and the first three: `5 pictures (a.png, b.png, c.png and 2 more)`."""
    first = ", ".join(map(shown, names[:3]))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'} ({first}{more})"


def require_posix(what: str) -> None:
    """Raise an error on systems without POSIX signals, file locks and process groups."""
    if sys.platform == "win32":
        message = f"{what} needs Linux or macOS; on Windows, run looktwice in the Windows Subsystem for Linux"
        raise LookTwiceError(message, code="platform-unsupported")
