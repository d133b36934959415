"""mosec, batches up to 16, 2 ms wait. Run as `BENCH_BUNDLE=… python mosec_server.py --port PORT`."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from mosec import Server, Worker
from tokenizers import Tokenizer

FOLDER = Path(os.environ["BENCH_BUNDLE"])  # its workers are started with other arguments


class Router(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.config = json.loads((FOLDER / "config.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(FOLDER / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        most = self.config["max_tokens"]
        batch = [self.tokenizer.encode(ticket["text"]).ids[:most] or [0] for ticket in data]
        ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
        for row, one in zip(ids, batch, strict=True):
            row[: len(one)] = one
        logits = self.session.run(["logits"], {"input_ids": ids})[0]
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        best = p.argmax(-1)
        return [
            {"team": self.config["teams"][b], "confidence": float(row[b]), "probabilities": row.tolist()}
            for row, b in zip(p, best, strict=True)
        ]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Router, num=1, max_batch_size=16, max_wait_time=2, route="/route")
    server.run()
