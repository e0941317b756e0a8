"""Secrets: read from environment variables, rejected in descriptions, and masked in all replies.

    secrets = Secrets()
    header = secrets.fill("Bearer ${API_KEY}")
    secrets.line(reply)                       # one short line for an error, without the key
    secrets.answer(label, score, status, body)  # an Answer, or a PermanentError if the label repeats the key

A server that repeats a key often encodes it: JSON escapes slashes, URLs use percent-encoding, headers use base64, and
long lines are wrapped. Texts are therefore decoded in all of these ways, including nested encodings, before they are
searched. A text with a key in an uncommon encoding is masked as a whole.
"""

from __future__ import annotations

import html
import json
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import quote, quote_plus, unquote

from looktwice.classifiers.base import Answer, Option
from looktwice.errors import PermanentError, TransientError

MASK = "***"
WORDS = 300
"""The maximum length of a server message in an error, in characters."""
SEARCHED = 1 << 20
"""The maximum number of characters of a text that are examined."""
MASKED = 1 << 14
"""The maximum number of characters that are searched for secrets, after whitespace is collapsed."""
KEPT = 1 << 16
"""The maximum size of a stored reply, in bytes."""
WORK = 1 << 22
"""The maximum number of characters decoded in total; longer texts are masked as a whole."""
LONGEST_LABEL = 10_000
"""The longest label; longer texts are not accepted as labels."""
LEAST = 8
"""The minimum length of values that are searched for in labels and encodings; shorter values may be words in labels."""
PASSES = 4
"""The maximum nesting depth of encodings."""
DEPTH = 2
"""The maximum nesting depth of base64 or hex."""

PLACE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
SPACE = re.compile(r"[ \t\n\r\f\v\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff]+")
ESCAPE = re.compile(
    r"[\\%]u(?P<four>[0-9a-f]{4})|\\u\{(?P<braced>[0-9a-f]{1,6})\}|\\x(?P<two>[0-9a-f]{2})|\\(?P<octal>[0-3][0-7]{2})"
    r"|\\(?P<plain>.)",
    re.IGNORECASE,
)
BASE64 = re.compile(r"[A-Za-z0-9+/_-]{10,}")
URL_SAFE = str.maketrans("-_", "+/")
HEX = re.compile(r"[0-9A-Fa-fxX:,-]{16,}")
HEX_SIGNS = re.compile(r"0[xX]|[xX:,-]")

SECRET_NAME = re.compile(
    r"(key|token|secret|passw(or)?d|pwd|passphrase|auth|authorization|cookie|credentials?|signature|appid)$"
    r"|(^|[^a-z])(sig|sas|jwt|pat|bearer)$",
)
SCHEME = re.compile(r"(bearer|basic)\s+\S{8,}", re.IGNORECASE)
KEY_SHAPE = re.compile(
    r"\b(sk-[\w-]{16,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|gh[pousr]_\w{20,}|hf_\w{20,}|xox[abp]-[\w-]{10,}"
    r"|eyJ[\w-]{10,}\.[\w-]+\.[\w-]+)"
)


NEEDED: ContextVar[bool] = ContextVar("NEEDED", default=True)
"""Whether a variable that is not set is an error."""


@contextmanager
def no_keys_needed() -> Iterator[None]:
    """Context manager: allow missing variables, to describe a classifier without its keys."""
    token = NEEDED.set(False)
    try:
        yield
    finally:
        NEEDED.reset(token)


class Secrets:
    """The secret values in use; texts and labels are searched for them."""

    def __init__(self) -> None:
        self._hidden: dict[str, str] = {}
        """The secret values with their descriptions."""
        self._forms: list[str] = []
        self._needles: list[tuple[str, str]] = []
        self._least = 0
        """The length of the shortest value; no encoding is shorter than its value."""
        self.names: tuple[str, ...] = ()

    def fill(self, text: str, escape: Callable[[str], str] = str) -> str:
        """Substitute the value of the variable for each `${NAME}`; `escape` encodes it for the text."""
        return PLACE.sub(lambda match: escape(self.read(match[1])), text)

    def read(self, name: str) -> str:
        """The value of an environment variable, which is masked from then on."""
        value = os.environ.get(name, "").strip()
        if value:
            self.add(name, value)
            return value
        if not VARIABLE.fullmatch(name):
            # The name is not shown: it may be the key itself, written in place of the variable name.
            raise PermanentError(
                "the description names a variable that is not set; write its NAME there, not the key",
                code="credentials-missing",
            )
        if not NEEDED.get():
            return ""
        raise PermanentError(
            f"environment variable {name} is not set; it must hold the key for this classifier",
            code="credentials-missing",
        )

    def add(self, name: str, value: str) -> None:
        """Mask the value of an environment variable."""
        self.names = tuple(dict.fromkeys((*self.names, name)))
        self.hide(value, f"the key in environment variable {name}")

    def hide(self, value: str, what: str) -> None:
        """Mask a value from another source, such as a proxy password."""
        if value in self._hidden:
            return
        self._hidden[value] = what
        self._forms = sorted({form for hidden in self._hidden for form in _forms(hidden)}, key=len, reverse=True)
        self._needles += [(needle, what) for needle in _needles(value)]
        self._least = min((len(hidden) for hidden in self._hidden if len(hidden.encode()) >= LEAST), default=0)

    def mask(self, text: str) -> str:
        """Replace every secret with ***; a text with a secret in an uncommon encoding is replaced as a whole."""
        for form in self._forms:
            text = text.replace(form, MASK)
        try:
            return MASK if self._found(text) else text
        except _Exhausted:
            return MASK

    def kept(self, body: bytes) -> bytes | None:
        """Prepare a reply for storing by masking secrets; returns None if the reply is too large."""
        return self.mask(body.decode("latin-1")).encode("latin-1") if len(body) <= KEPT else None

    def line(self, text: str) -> str:
        """Convert external text to one short line without secrets and control characters."""
        whole = " ".join(text[:SEARCHED].split())
        # Masked before it is truncated, since truncation could leave part of a key.
        line = self.mask(whole[:MASKED])
        if (len(text) > SEARCHED or len(whole) > MASKED) and len(line) <= WORDS:
            line = MASK
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        return line if len(line) <= WORDS else f"{line[:WORDS]}…"

    def answer(
        self,
        label: str,
        score: float | None = None,
        status: int | None = None,
        body: bytes | None = None,
        options: tuple[Option, ...] = (),
    ) -> Answer:
        """Create an answer; a label that repeats a key, or is too long, is rejected."""
        words = [label, *(option for option, _ in options)]
        if (longest := max(len(word) for word in words)) > LONGEST_LABEL:
            raise TransientError(
                f"the classifier's answer has {longest:,} characters where a label should be; check the label path",
                status=status,
                garbled=True,
                code="reply-malformed",
            )
        for word in words:
            self.refuse(word)
        return Answer(label, score, status, None if body is None else self.kept(body), options)

    def whose(self) -> str:
        """A description of the key for error messages: the name of its environment variable."""
        if not self.names:
            return "no key was sent; specify its environment variable in the description"
        return f"check the key in environment variable {' or '.join(self.names)}"

    def refuse(self, label: str) -> None:
        """Raise a PermanentError if a text to be stored or shown repeats a key."""
        try:
            what = self._found(label)
        except _Exhausted:
            raise PermanentError(
                f"the classifier's answer has {len(label)} characters, too many to be searched; check the label path",
                code="reply-malformed",
            ) from None
        if what:
            raise PermanentError(
                f"the classifier's answer repeats {what} and was not stored; check the label path, and whether this "
                "server should have a key",
                code="reply-malformed",
            )

    def _found(self, text: str) -> str | None:
        """The secrets that the text contains, in any encoding."""
        if not self._needles or len(text) < self._least:
            return None
        for reading in _readings(text, self._least, _Work(WORK)):
            for needle, what in self._needles:
                if needle in reading:
                    return what
        return None


@dataclass
class _Work:
    """The remaining number of characters to decode."""

    left: int


class _Exhausted(Exception):
    """Raised if a text takes too long to search."""


def _forms(value: str) -> set[str]:
    """The common encodings of a value of any length; other encodings are found by decoding the text."""
    bytewise, base64 = value.encode().decode("latin-1"), b64encode(value.encode()).decode().rstrip("=")
    escaped, percent = json.dumps(value)[1:-1], {quote(value), quote(value, safe=""), quote_plus(value)}
    return {value, bytewise, base64, *percent, escaped, escaped.replace("/", "\\/")}


def _needles(value: str) -> set[str]:
    """The forms of a value to search for: the plain and the unescaped value, as text and as bytes."""
    forms = {reading for form in (value, value.encode().decode("latin-1")) for reading in _unescaped(form)}
    # A space becomes a plus sign in a URL, and decoded texts are searched without spaces.
    spelled = {SPACE.sub(space, form).lower() for form in forms for space in ("", "+")}
    return {needle for needle in spelled if len(needle.encode()) >= LEAST}


def _readings(text: str, least: int, work: _Work, depth: int = DEPTH) -> Iterator[str]:
    """The text without whitespace, repeatedly unescaped, and its decoded base64 and hex runs.

    All texts are in lower case.
    """
    for reading in map(_squeezed, _unescaped(text)):
        work.left -= len(reading)
        if work.left < 0:
            raise _Exhausted
        yield reading.lower()
        for decoded in _decoded(reading, least) if depth else ():
            yield from _readings(decoded, least, work, depth - 1)


def _unescaped(text: str) -> Iterator[str]:
    """The text at each level of unescaping."""
    yield text
    for take_off in (html.unescape, _unquoted, _unslashed) * PASSES:
        plain = take_off(text)
        if plain != text:
            # There may also be whitespace inside an escape.
            text = _squeezed(plain)
            yield text


def _squeezed(text: str) -> str:
    # `split` is fast, but treats some bytes of other characters as whitespace.
    return "".join(text.split()) if text.isascii() else SPACE.sub("", text)


def _unquoted(text: str) -> str:
    # As single bytes: the needles include the value in this form.
    return unquote(text, "latin-1") if "%" in text else text


def _unslashed(text: str) -> str:
    """Remove the escapes of JSON, JavaScript, Python and C."""
    if "\\" not in text and "%u" not in text:
        return text
    plain = ESCAPE.sub(_character, text)
    # Two surrogates are combined into one character.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(escape: re.Match[str]) -> str:
    if plain := escape["plain"]:
        return "" if plain in "nrtbf" else plain
    code = int(escape["octal"], 8) if escape["octal"] else int(escape["four"] or escape["braced"] or escape["two"], 16)
    return chr(code) if code <= 0x10FFFF else ""


def _decoded(text: str, least: int) -> Iterator[str]:
    """Decode the base64 and hex runs that are long enough for `least` bytes, from every possible offset."""
    for run in BASE64.findall(text):
        digits = run.translate(URL_SAFE)
        for start in range(4 if len(digits) * 3 >= least * 4 else 0):
            whole = len(digits) - (len(digits) - start) % 4
            rest = digits[whole:] if len(digits) - whole > 1 else ""
            yield b64decode(digits[start:whole] + rest + "=" * (-len(rest) % 4)).decode("latin-1")
    for run in HEX.findall(text):
        digits = HEX_SIGNS.sub("", run)
        for start in range(2 if len(digits) >= least * 2 else 0):
            yield bytes.fromhex(digits[start : len(digits) - (len(digits) - start) % 2]).decode("latin-1")


def refuse_literals(named: Iterable[tuple[str, str]], public: Iterable[str] = ()) -> None:
    """Raise a ValueError if a name and its value, such as a header, look like a literal key."""
    for name, value in named:
        literal = value and "${" not in value and name not in public
        if literal and (is_secret(name) or SCHEME.fullmatch(value) or KEY_SHAPE.search(value)):
            raise ValueError(
                f"{name!r} looks like a secret; put it into an environment variable and write ${{NAME}}, or list it in "
                f"public = [{name!r}] if it is not confidential"
            )


def is_secret(name: str) -> bool:
    """Whether a value with this name is usually a key: `api_key`, `X-Auth-Token`, `accessKey`, `appid`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    return bool(SECRET_NAME.search(words) or SECRET_NAME.search(re.sub(r"[\W_]", "", words)))
