"""Codes of errors: all are on record, none is made up, and they survive a change of process."""

import pickle
import re
import runpy
import sys
from pathlib import Path

import pytest
from support.errors import code_in, coded
from support.workshop import call

from looktwice.classifiers import transport
from looktwice.classifiers.registry import connect
from looktwice.engine.ledger.ledger import open_ledger
from looktwice.engine.query import Cause, Unscored
from looktwice.errors import CODES, ClassifierError, ImageError, LookTwiceError, MissingExtra, PermanentError
from looktwice.files import FileLock

ROOT = Path(__file__).parents[1]
REFERENCE = runpy.run_path(str(ROOT / "tools" / "error_reference.py"))


@pytest.mark.slow
def test_the_page_of_codes_is_made_from_the_code() -> None:
    kept = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    assert kept == REFERENCE["page"](), "run: python tools/error_reference.py > docs/reference/errors.md"


@pytest.mark.slow
def test_every_code_is_on_record_and_used() -> None:
    rows = {*(cause.code for cause in Cause), "pictures-selected"}  # the latter is a warning of `score`
    assert set(REFERENCE["raised"]()) | rows == set(CODES)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in CODES)
    assert list(CODES) == sorted(CODES)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LookTwiceError("why"), "error"),
        (ImageError("why", "a.png", code="image-too-large"), "image-too-large"),
        (MissingExtra("Parquet files", "parquet"), "extra-missing"),
        (PermanentError("why"), "description-invalid"),
        (PermanentError("why", status=401), "credentials-refused"),
        (PermanentError("why", status=404), "classifier-refused"),
        (PermanentError("why", status=404, code="model-unsupported"), "model-unsupported"),
        (Unscored("a.png", Cause.BUDGET, "why").error(), "budget-spent"),
        (Unscored("a.png", Cause.UNREADABLE, "why", "image-too-large").error(), "image-too-large"),
    ],
)
def test_an_error_keeps_what_it_holds_in_another_process(error: LookTwiceError, code: str) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code, vars(again)) == (type(error), str(error), code, vars(error))


def test_the_status_of_a_reply_is_no_code_of_the_root() -> None:
    assert ClassifierError("why", status=401).code == "classifier-failed"


def test_what_needs_posix_is_refused_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert transport  # which reads the platform when it is loaded
    monkeypatch.setattr(sys, "platform", "win32")
    refused = coded("platform-unsupported")
    with pytest.raises(LookTwiceError, check=refused):
        open_ledger(str(tmp_path / "ledger.db"))
    with pytest.raises(LookTwiceError, check=refused):
        connect("command:./classify {image}")
    with pytest.raises(LookTwiceError, check=refused):
        FileLock(tmp_path / "out.csv")
    done = call("ledger", "stats")
    assert (done.returncode, code_in(done.stderr)) == (1, "platform-unsupported")
