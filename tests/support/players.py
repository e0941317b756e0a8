"""Processes that a test starts, and the pipe on which they tell what they did."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

Player = Callable[..., None]


def start(player: Player, *arguments: object) -> tuple[BaseProcess, Connection]:
    """A process that runs the player, and the end of the pipe on which it tells what it did."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["looktwice.model.options", "looktwice.model", "cv2", "support.batch_players", "pytest"]
    )
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=player, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours
