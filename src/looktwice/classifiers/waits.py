"""How long a server asks to wait, from Retry-After or the usual rate-limit headers."""

import re
import time
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

RESETS = (
    "ratelimit-reset",
    "x-ratelimit-reset",
    "x-rate-limit-reset",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-reset",
    "anthropic-ratelimit-tokens-reset",
)
YEAR = 366 * 86_400.0
"""The longest accepted Retry-After, in seconds."""
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The wait in seconds that a server asks for, at most a year, from Retry-After or common rate-limit headers."""
    now = _moment(headers.get("date", "")) or now or time.time()
    if milliseconds := _number(headers.get("retry-after-ms", "")):
        return min(milliseconds / 1000, YEAR)
    if (asked := _wait(headers.get("retry-after", ""), now)) is not None:
        return min(asked, YEAR)
    # The soonest reset: the engine's own backoff lengthens a wait that turns out too short.
    resets = [wait for name in RESETS if (wait := _wait(headers.get(name, ""), now)) is not None]
    return min([*resets, YEAR]) if resets else None


def _wait(text: str, now: float) -> float | None:
    """Seconds from `7`, `1m2.5s`, a date, or a moment in seconds or milliseconds since 1970."""
    if (number := _number(text)) is not None:
        moment = number / 1000 if number > 1e11 else number
        return max(0.0, moment - now) if moment > 1e9 else moment
    parts = re.findall(r"([\d.]+)(ms|s|m|h|d)", text)
    if parts and "".join(map("".join, parts)) == text.strip():
        return sum((_number(count) or 0.0) * UNITS[unit] for count, unit in parts)
    moment_of_date = _moment(text)
    return None if moment_of_date is None else max(0.0, moment_of_date - now)


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[ \t]*[0-9]{1,15}(\.[0-9]{1,9})?[ \t]*", text) else None


def _moment(text: str) -> float | None:
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            return read(text).timestamp()
        except (ValueError, OverflowError, OSError):
            continue
    return None
