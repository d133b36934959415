"""LitServe, batches up to 16, 2 ms wait. Run as `python lit.py PORT BUNDLE`."""

import json
import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

FOLDER = Path(sys.argv[2])


class Router(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.config = json.loads((FOLDER / "config.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(FOLDER / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def decode_request(self, request: dict[str, Any], **_: Any) -> list[int]:
        return self.tokenizer.encode(request["text"]).ids[: self.config["max_tokens"]] or [0]

    def predict(self, batch: list[list[int]], **_: Any) -> np.ndarray:
        ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
        for row, one in zip(ids, batch, strict=True):
            row[: len(one)] = one
        logits = self.session.run(["logits"], {"input_ids": ids})[0]
        p = np.exp(logits - logits.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)

    def encode_response(self, p: np.ndarray, **_: Any) -> dict[str, Any]:
        best = int(p.argmax())
        return {"team": self.config["teams"][best], "confidence": float(p[best]), "probabilities": p.tolist()}


if __name__ == "__main__":
    api = Router(max_batch_size=16, batch_timeout=0.002, api_path="/route")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(port=int(sys.argv[1]), host="127.0.0.1", log_level="critical", generate_client_file=False)
