"""What tests assert of an error: its class and its code, so that its sentence may change."""

from __future__ import annotations

import re
from collections.abc import Callable

from looktwice.errors import LookTwiceError


def coded(code: str) -> Callable[[BaseException], bool]:
    """Whether an error has this code; for `pytest.raises(DataError, check=coded("file-missing"))`."""

    def has_code(error: BaseException) -> bool:
        assert isinstance(error, LookTwiceError)
        assert error.code == code, f"{error.code!r}, not {code!r}: {error}"
        return True

    return has_code


def code_in(stderr: str) -> str:
    """The code of the error with which a command ended, from what it printed."""
    codes = re.findall(r"^error\[([a-z-]+)\]: ", stderr, re.MULTILINE)
    assert len(codes) == 1, stderr
    return str(codes[0])
