"""A process that notes in a file what Python reports of processes, connections, names of hosts and imports.

`main` runs a command line, or a program after -c, as `python -m looktwice.cli.app` and `python -c` would in its folder.
"""

from __future__ import annotations

import os
import sys
from types import FrameType

WATCHED = (
    *("socket.connect", "socket.getaddrinfo", "socket.gethostby", "subprocess."),
    *("os.exec", "os.posix_spawn", "os.fork", "os.system"),
)


def watch() -> None:
    """Note from now on what must not happen, in the file that WATCHED_BY names."""

    def hear(event: str, details: tuple[object, ...]) -> None:
        if event.startswith(WATCHED) or (event == "import" and "evilmod" in str(details[0])):
            note(f"{event} {details}")

    def note(line: str) -> None:
        with open(os.environ["WATCHED_BY"], "a") as file:
            file.write(line + "\n")

    class Watched(type(os.environ)):  # type: ignore[misc]
        def __getitem__(self, name: str) -> str:
            callers = (sys._getframe(1), sys._getframe(1).f_back)
            if name == "EVIL_SECRET" and any(map(is_ours, callers)):
                note("the secret was read")
            return str(super().__getitem__(name))

    def is_ours(frame: FrameType | None) -> bool:
        return frame is not None and "looktwice" in frame.f_code.co_filename

    os.environ.__class__ = Watched
    sys.addaudithook(hear)


def main() -> None:
    watch()
    sys.path.insert(0, os.getcwd())
    words = sys.argv[1:]
    if words[0] == "-c":
        exec(words[1], {"__name__": "__main__"})
    else:
        from looktwice.cli.app import main as command_line  # later than the watch where the process starts with it

        sys.argv = ["looktwice", *words]
        command_line()
