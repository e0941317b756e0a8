"""A server in a process of its own that answers after a while, refuses what it is told to, and counts both.

    python benchmarks/pressed.py DELAY SHARE LIMIT

It refuses a share of the calls at random, however few there are, or all that exceed the limit of calls a second, with a
status of 429 and Retry-After: 1. It prints its port.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from looktwice.model.runs import fastest_loop

WAIT = 1.0


class Pressed:
    """A server that counts what it refuses."""

    def __init__(self, delay: float, share: float, limit: float) -> None:
        self.delay, self.share, self.limit = delay, share, limit
        self.dice = random.Random(0)
        self.tokens, self.filled = limit, time.monotonic()
        self.seen: Counter[str] = Counter()

    def refuses(self) -> bool:
        if not self.limit:
            return self.dice.random() < self.share
        now = time.monotonic()
        self.tokens = min(self.limit, self.tokens + (now - self.filled) * self.limit)
        self.filled = now
        if self.tokens < 1:
            return True
        self.tokens -= 1
        return False

    async def classify(self, request: web.Request) -> web.Response:
        refused = self.refuses()
        self.seen["refused" if refused else "answered"] += 1
        await request.read()
        if self.delay:
            await asyncio.sleep(self.delay)
        if refused:
            return web.Response(status=429, headers={"Retry-After": f"{WAIT:g}"})
        return web.Response(body=b'{"label": "ant", "score": 0.5}', content_type="application/json")

    async def counts(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self.seen))


async def serve(delay: float, share: float, limit: float) -> None:
    pressed = Pressed(delay, share, limit)
    app = web.Application()
    app.add_routes([web.post("/classify", pressed.classify), web.get("/counts", pressed.counts)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@contextmanager
def server(delay: float, share: float = 0.0, limit: float = 0.0) -> Iterator[str]:
    """The address at which such a server classifies, for as long as the block runs."""
    command = [sys.executable, __file__, str(delay), str(share), str(limit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/classify"
        finally:
            process.kill()


def count(url: str, what: str) -> int:
    """How many calls the server at an address has `answered` or `refused`."""
    with urllib.request.urlopen(url.replace("/classify", "/counts"), timeout=10) as reply:
        return int(json.load(reply).get(what, 0))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(serve(*map(float, sys.argv[1:4])))
