"""NVIDIA's Triton with the embedded classifier: `python triton_fashion.py MODEL PORT`, in its environment.

The server is the one inside the `nvidia-pytriton` wheel. The model is called `fashion`, takes up to 4 pictures a call
and names its classes in a label file, so that the classification extension can be asked.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytriton

CONFIG = """
backend: "python"
max_batch_size: 4
input [ {{ name: "input" data_type: TYPE_FP32 dims: [ 1, 28, 28 ] }} ]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" }} ]
parameters [ {{ key: "onnx" value: {{ string_value: "{model}" }} }} ]
"""

MODEL = """
import json
import sys

sys.path.insert(0, {site!r})  # the stub starts Python without it
import onnxruntime
import triton_python_backend_utils as triton

class TritonPythonModel:
    def initialize(self, args):
        path = json.loads(args["model_config"])["parameters"]["onnx"]["string_value"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        pictures = triton.get_input_tensor_by_name(request, "input").as_numpy()
        logits = self._session.run(None, {"input": pictures})[0]
        return triton.InferenceResponse([triton.Tensor("logits", logits)])
"""


def repository(folder: Path, model: Path) -> Path:
    """A model repository with the one model."""
    home = folder / "models" / "fashion"
    (home / "1").mkdir(parents=True)
    (home / "config.pbtxt").write_text(CONFIG.format(model=model))
    (home / "1" / "model.py").write_text(MODEL.replace("{site!r}", repr(sysconfig.get_path("purelib"))))
    labels = model.with_suffix(".labels.txt")
    shutil.copy(labels, home / "labels.txt")
    return folder / "models"


def backends(folder: Path, server: Path) -> Path:
    """The Python backend with the stub for this Python."""
    shutil.copytree(server / "backends", folder / "backends")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(
        server / "python_backend_stubs" / version / "triton_python_backend_stub", folder / "backends" / "python"
    )
    return folder / "backends"


def main() -> None:
    """Become the server, so that a signal to this process reaches it."""
    server = Path(pytriton.__file__).parent / "tritonserver"
    folder = Path(tempfile.mkdtemp(dir=Path(sys.argv[1]).parent))
    libraries = [sysconfig.get_config_var("LIBDIR"), str(server.parents[1] / "nvidia_pytriton.libs")]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(libraries),
        "ORT_DISABLE_TELEMETRY": "1",
    }
    arguments = [
        f"--model-repository={repository(folder, Path(sys.argv[1]).resolve())}",
        f"--backend-directory={backends(folder, server)}",
        "--http-address=127.0.0.1",
        f"--http-port={sys.argv[2]}",
        "--allow-grpc=false",
        "--allow-metrics=false",
    ]
    os.execve(server / "bin" / "tritonserver", ["tritonserver", *arguments], environment)


if __name__ == "__main__":
    main()
