"""Text cleaning, tokenizer, network, decision and bundle. Only `network` and `multihead` need torch."""

from models.telemetry import switch_off

switch_off()  # before any module here imports onnxruntime
