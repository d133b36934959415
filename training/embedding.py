"""Embeddings of words that start from what an encoder knows of them.

A word's embedding is its encoder vector, brought down to the network's size by one learned matrix for all
words, plus a difference of its own that is learned only for words of the training tickets and is sometimes
left out, so that the network can read a word it was never taught next to one it was. After training the sum
becomes an ordinary table (`settle`), rounded to the float16 in which the bundle stores it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.network import Network
from models.tokenizer import Tokenizer, build_word_tokenizer
from training.recipe import Recipe
from training.teacher import Teacher

START, WIDE_START = 0.5, 0.3  # an entry of a brought-down vector, times sqrt(384 / size)
DIFFERENCE_START = 0.02
FORGOTTEN = 0.1  # share of the differences left out in each step


class Informed(nn.Module):
    """Ids (batch, n) -> embeddings (batch, n, size); `vectors` (vocabulary, 384), `trained` lowest ids."""

    def __init__(self, vectors: Tensor, trained: int, size: int, start: float = START) -> None:
        super().__init__()
        self.trained = trained
        self.vectors: Tensor
        self.register_buffer("vectors", vectors, persistent=False)
        entry = start * (size / vectors.shape[1]) ** 0.5
        self.lift = nn.Parameter(torch.randn(vectors.shape[1], size) * entry)
        self.difference = nn.Parameter(torch.randn(trained, size) * DIFFERENCE_START)

    def forward(self, ids: Tensor) -> Tensor:
        own = self.difference[ids.clamp(max=self.trained - 1)]
        kept = ids < self.trained
        if self.training:
            kept = kept & (torch.rand(ids.shape) >= FORGOTTEN)
        embedded: Tensor = self.vectors[ids] @ self.lift + own * kept[:, :, None]
        return embedded

    @torch.no_grad()
    def table(self) -> Tensor:
        """(vocabulary, size): what the sum is without anything left out."""
        whole = self.vectors @ self.lift
        whole[: self.trained] += self.difference
        return whole


def inform(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], recipe: Recipe, teacher: Teacher
) -> None:
    """Let the network's word embeddings start from the teacher's; words of the training texts learn more."""
    vocabulary = sorted(tokenizer.library.get_vocab().items(), key=lambda entry: entry[1])
    vectors = torch.from_numpy(teacher.word_vectors([word for word, _ in vocabulary]))
    trained = build_word_tokenizer(texts, recipe.min_count).get_vocab_size()
    network.token = Informed(vectors, trained, network.config.d)
    if network.config.wide:
        network.wide.token = Informed(vectors, trained, network.config.wide, WIDE_START)


@torch.no_grad()
def settle(network: Network) -> None:
    """Turn informed embeddings into tables, and round all tables to float16."""
    for owner in (network, *([network.wide] if network.config.wide else [])):
        if isinstance(owner.token, Informed):
            owner.token = nn.Embedding.from_pretrained(owner.token.table(), freeze=False)
        for name in ("token.weight", "bigram.weight")[: 2 if network.config.bigrams else 1]:
            weight = owner.get_parameter(name)
            weight.copy_(weight.half().float())
