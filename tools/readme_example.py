"""Runs the README's Python example in a folder with the files that it expects: python tools/readme_example.py

The README's description of an API is used unchanged except for the address, at which the embedded classifier answers.
labelled/, others/, photos/ and cat.jpg hold embedded pictures. It needs only the packages that the README's install
line installs.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
import textwrap
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Thread

from looktwice.classifiers.base import names_of
from looktwice.classifiers.registry import connect
from looktwice.images.collection import labelled
from looktwice.images.decode import decode
from looktwice.images.image import encode_png

DEMO = Path(str(files("looktwice") / "demo"))
DESCRIPTION = re.compile(r"^    connector = .*?(?=^\S)", re.DOTALL | re.MULTILINE)
EXAMPLE = re.compile(r"^In Python:\n\n```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
MODEL = connect(DEMO / "fashion.toml")


class Api(BaseHTTPRequestHandler):
    """Receives a PNG and a key, and replies with a label."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        picture = decode(self.rfile.read(int(self.headers["content-length"])), "upload")
        (answer,) = asyncio.run(MODEL.label([MODEL.prepare(picture.pixels)]))
        if self.headers["authorization"] != f"Bearer {os.environ['MY_KEY']}":
            raise PermissionError("the key of the description was not sent")
        prediction = {"name": names_of(MODEL).label(answer.label), "score": 0.9}
        reply = json.dumps({"predictions": [prediction]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *_: object) -> None:
        pass


def furnish(description: str, port: int) -> None:
    """Create the files that the example uses in the current folder."""
    pictures = labelled(DEMO / "pictures.npz")
    for folder, some in {"labelled": pictures[:60], "others": pictures[60:100], "photos": pictures[100:110]}.items():
        Path(folder).mkdir()
        rows = ["file,label", *(f"{n}.png,{picture.truth}" for n, picture in enumerate(some))]
        for n, picture in enumerate(some):
            (Path(folder) / f"{n}.png").write_bytes(encode_png(picture.image().pixels))
        if folder != "photos":
            (Path(folder) / "labels.csv").write_text("\n".join(rows) + "\n")
    Path("cat.jpg").write_bytes(encode_png(pictures[200].image().pixels))
    address = f'url = "http://127.0.0.1:{port}/"'
    Path("my-api.toml").write_text(re.sub(r'url = "[^"]*"', address, textwrap.dedent(description)), "utf-8")
    os.environ["MY_KEY"] = "a key of the README"


def main(readme: Path) -> None:
    text = readme.read_text("utf-8")
    (code,), (description,) = EXAMPLE.findall(text), DESCRIPTION.findall(text)
    with tempfile.TemporaryDirectory() as folder, ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        os.chdir(folder)
        os.environ["XDG_DATA_HOME"] = folder
        furnish(description, server.server_address[1])
        names: dict[str, object] = {"__name__": "example"}
        exec(compile(code, "README.md", "exec"), names)
        names["model"].close()  # type: ignore[attr-defined]
        assert Path("profile.json").stat().st_size
        print(f"The README's example runs: {names['evaluation'].results[-1].figures['accuracy']}")  # type: ignore[attr-defined]
        server.shutdown()
        os.chdir("/")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).parent.parent / "README.md")
