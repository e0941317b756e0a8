"""KServe with the embedded classifier: `python kserve_fashion.py MODEL PORT`, in KServe's environment.

The model is called `fashion`. By the first protocol it takes {"instances": [{"data": base64}]} and replies with labels,
as in the `kserve-v1` preset; by the Open Inference Protocol it takes numbers and replies with logits.
"""

from __future__ import annotations

import base64
import sys
from typing import Any

import uvicorn
from fashion import Fashion
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class Service(Model):
    """Both protocols."""

    def __init__(self, path: str) -> None:
        super().__init__("fashion")
        self._model = Fashion(path)
        self.ready = True

    async def get_input_types(self) -> list[dict[str, object]]:
        return [{"name": "input", "datatype": "FP32", "shape": [-1, 1, 28, 28]}]

    async def get_output_types(self) -> list[dict[str, object]]:
        return [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}]

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        if isinstance(payload, InferRequest):
            return self._infer(payload)
        return {"predictions": [self._model.label(base64.b64decode(one["data"])) for one in payload["instances"]]}

    def _infer(self, request: InferRequest) -> InferResponse:
        logits = self._model.logits(request.inputs[0].as_numpy())
        output = InferOutput("logits", list(logits.shape), "FP32")
        output.set_data_from_numpy(
            logits, binary_data=bool(request.request_outputs and request.request_outputs[0].binary_data)
        )
        return InferResponse(request.id or "1", "fashion", [output])


class Loopback(uvicorn.Config):
    """KServe would listen on every address of the machine."""

    def __init__(self, app: Any, **settings: Any) -> None:
        super().__init__(app, **{**settings, "host": "127.0.0.1"})


if __name__ == "__main__":
    uvicorn.Config = Loopback  # type: ignore[misc]
    ModelServer(http_port=int(sys.argv[2]), enable_grpc=False, workers=1).start([Service(sys.argv[1])])
