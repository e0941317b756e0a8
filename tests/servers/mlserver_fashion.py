"""MLServer with the embedded classifier: `python mlserver_fashion.py MODEL PORT`, in MLServer's environment.

It speaks the Open Inference Protocol, in JSON alone; the model is called `fashion`.
"""

from __future__ import annotations

import asyncio
import sys

from fashion import Fashion
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor


class Runtime(MLModel):
    """Numbers in, logits out."""

    async def load(self) -> bool:
        self._model = Fashion(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        logits = self._model.logits(NumpyCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("logits", logits)])


async def serve(model: str, port: int) -> None:
    """Serve on loopback until the process ends."""
    settings = Settings(
        host="127.0.0.1",
        http_port=port,
        grpc_port=0,
        metrics_endpoint=None,
        parallel_workers=0,
        load_models_at_startup=False,
    )
    described = ModelSettings(
        name="fashion",
        implementation=Runtime,
        parameters=ModelParameters(uri=model),
        inputs=[MetadataTensor(name="input", datatype="FP32", shape=[-1, 1, 28, 28])],
        outputs=[MetadataTensor(name="logits", datatype="FP32", shape=[-1, 10])],
    )
    await MLServer(settings).start([described])


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
