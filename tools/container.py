"""Runs the commands of the Dockerfile without a container engine: python3.13 tools/container.py

In an empty folder and environment it copies what COPY names, runs the pip command of the first stage, then starts
the service as ENTRYPOINT and CMD say, with a profile of the demo, until the command of HEALTHCHECK is content.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")


def told(instruction: str) -> list[str]:
    """The arguments of each instruction of this kind, in order."""
    return re.findall(rf"^\s*{instruction} +(.*)$", DOCKERFILE, re.MULTILINE)


def build(folder: Path) -> dict[str, str]:
    """The environment of the second stage, after the steps of the first stage were run in `folder`."""
    source, prefix = folder / "source", folder / "install"
    for line in told("COPY"):
        *names, _ = line.split()
        for name in names if "--from" not in line else ():
            place = source / name
            shutil.copytree(ROOT / name, place) if (ROOT / name).is_dir() else copy(ROOT / name, place)
    venv.create(folder / "python", with_pip=True)
    path = f"{prefix}/bin:{folder}/python/bin:/usr/bin:/bin"
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", DOCKERFILE, re.MULTILINE)
    (install,) = (line for line in told("RUN") if "pip install" in line)
    command = install.replace("/install", str(prefix))
    subprocess.run(["sh", "-euc", command], cwd=source, env={"PATH": path, "EXTRAS": extras}, check=True)
    (packages,) = prefix.glob("lib/python*/site-packages")
    return {"PATH": path, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}


def copy(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place)


def serve(folder: Path, environment: dict[str, str]) -> None:
    """Start the service as the image does, and wait until the health check succeeds."""
    data = folder / "data"
    subprocess.run(["looktwice", "demo", "-o", data], env={**environment, "HOME": str(folder)}, check=True)
    port = str(free_port())
    entry, words = json.loads(told("ENTRYPOINT")[0]), json.loads(told("CMD")[0])
    command = [*entry, *(word.replace("/data", str(data)) for word in words), "--port", port]
    settings = {"XDG_DATA_HOME": str(data), "LOOKTWICE_TOKENS": hashlib.sha256(b"token").hexdigest()}
    service = subprocess.Popen(command, cwd=data, env={**environment, **settings})
    check = [word.replace(":8000", f":{port}") for word in json.loads(told("HEALTHCHECK .* CMD")[0])]
    try:
        wait(check, environment, service)
    finally:
        service.terminate()
        service.wait(60)


def wait(check: list[str], environment: dict[str, str], service: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while subprocess.run(check, env=environment, capture_output=True, check=False).returncode:
        if service.poll() is not None or time.monotonic() > end:
            raise SystemExit("the service is not healthy")
        time.sleep(0.5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    os.environ.clear()
    with tempfile.TemporaryDirectory() as name:
        made = build(Path(name))
        serve(Path(name), made)
    print(f"The commands of the Dockerfile work on Python {sys.version_info.major}.{sys.version_info.minor}.")
