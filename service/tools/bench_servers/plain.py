"""FastAPI with ONNX Runtime, the obvious way. Run as `python plain.py PORT BUNDLE`."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from tokenizers import Tokenizer


class Ticket(BaseModel):
    ticket_id: str | None = None
    text: str


folder = Path(sys.argv[2])
config = json.loads((folder / "config.json").read_text())
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 3
session = onnxruntime.InferenceSession(
    str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
)
app = FastAPI()


@app.post("/route")
async def route(ticket: Ticket) -> dict[str, object]:
    ids = tokenizer.encode(ticket.text).ids[: config["max_tokens"]] or [0]
    logits = session.run(["logits"], {"input_ids": np.array([ids])})[0][0]
    p = np.exp(logits - logits.max())
    p /= p.sum()
    best = int(p.argmax())
    return {"team": config["teams"][best], "confidence": float(p[best]), "probabilities": p.tolist()}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="critical", access_log=False)
