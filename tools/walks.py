"""Counts the project's files through which one picture passes, from the interface to the verdict or to a profile.

    python tools/walks.py            the walks beside what they may have at most; exits with 1 if one is longer
    python tools/walks.py --files    with the files

A walk includes every file of src/looktwice in which a function is called while the picture is processed; importing a
file is not included. The walks of commands begin with the command line and the opening of profile, classifier and
ledger; the files that a picture passes through once a model is open are counted separately.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, redirect_stdout
from importlib.resources import files
from pathlib import Path
from types import FrameType

import looktwice as lt
from looktwice.cli.app import app
from looktwice.model import AskOptions, AsyncModel, DecisionOptions, encode_png, labelled
from looktwice.service import ServiceLimits
from looktwice.service.app import ServiceSettings, build
from looktwice.service.guards import Tokens

SOURCE = Path(lt.__file__).parent
DEMO = Path(str(files("looktwice") / "demo"))
AT_MOST = {
    "look": 45,
    "look, with a SQLite ledger": 48,
    "POST /v1/look": 42,
    "fit": 51,
    "a look with an open model": 35,
}
"""The maximum that `make check` allows, two more than the last measurement; the goal is 24."""


@contextmanager
def watching() -> Iterator[set[str]]:
    """The project's files whose functions are called meanwhile, in this thread and in threads started from it."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name not in seen and name.startswith(f"{SOURCE}/") and not _importing(frame):
            seen.add(name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _importing(frame: FrameType | None) -> bool:
    """Whether the call is part of importing a module, such as a class body."""
    while frame and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") != "__main__"


def ours(seen: set[str]) -> list[str]:
    """The names of the files in the package."""
    return sorted(name.removeprefix(f"{SOURCE}/") for name in seen)


def command(*words: object) -> list[str]:
    """The walk of a command."""
    with watching() as seen, redirect_stdout(io.StringIO()):
        app([*map(str, words), "--json"], standalone_mode=False)
    return ours(seen)


@asynccontextmanager
async def running(app: Callable[..., Awaitable[None]]) -> AsyncIterator[None]:
    """The application between startup and shutdown."""
    messages, replies = asyncio.Queue[dict[str, str]](), asyncio.Queue[object]()
    life = asyncio.ensure_future(app({"type": "lifespan", "asgi": {"version": "3.0"}}, messages.get, replies.put))
    await messages.put({"type": "lifespan.startup"})
    await replies.get()
    yield
    await messages.put({"type": "lifespan.shutdown"})
    await life


async def post(app: Callable[..., Awaitable[None]], body: bytes) -> None:
    """Send one request directly to the application, as a server would."""
    headers = [(b"content-type", b"image/png"), (b"content-length", str(len(body)).encode()), (b"host", b"localhost")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/v1/look",
        "raw_path": b"/v1/look", "query_string": b"", "headers": headers, "scheme": "http",
        "client": ("127.0.0.1", 1), "server": ("localhost", 80), "root_path": "",
    }  # fmt: skip
    sent: list[dict[str, object]] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, object]:
        if not parts:
            await asyncio.Event().wait()
        return parts.pop()

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert sent[0]["status"] == 200, sent


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clothes = labelled(DEMO / "pictures.npz")
        with lt.Model(DEMO / "fashion.toml") as model:
            model.fit(clothes[:300])
            model.save(folder / "profile.json")
        png = encode_png(clothes[400].image().pixels)
        other = encode_png(clothes[401].image().pixels)
        (folder / "a.png").write_bytes(png)

        async def served() -> list[str]:
            model = AsyncModel.load(folder / "profile.json", options=AskOptions())
            decide = DecisionOptions(max_error=0.1)
            async with model:
                service = build(ServiceSettings(model, decide, decide.level, ServiceLimits(), Tokens.read(None), ()))
                async with running(service):
                    with watching() as seen:
                        await post(service, png)
                    return ours(seen)

        async def alone() -> list[str]:
            with watching() as seen:  # before the threads start, which are watched from then on
                async with AsyncModel.load(folder / "profile.json", options=AskOptions()) as model:
                    await model.look(png)
                    seen.clear()
                    await model.look(other)
                    return ours(seen)

        walks = {
            "look": command("look", folder / "a.png", "-p", folder / "profile.json"),
            "look, with a SQLite ledger": command(
                "look", folder / "a.png", "-p", folder / "profile.json", "--ledger", folder / "ledger.db"
            ),
            "POST /v1/look": asyncio.run(served()),
            "fit": command(
                *("fit", DEMO / "pictures.npz", "--take", ":60", "-c", DEMO / "fashion.toml"),
                *("-o", folder / "new.json"),
            ),
        }
        walks["a look with an open model"] = asyncio.run(alone())
    for title, found in walks.items():
        print(f"{title}: {len(found)} files (at most {AT_MOST[title]})")
        if "--files" in sys.argv:
            print(*(f"    {file}" for file in found), sep="\n")
    sys.exit(any(len(found) > AT_MOST[title] for title, found in walks.items()))


if __name__ == "__main__":
    main()
