"""The training loop: batches of equal length, Adam, a checkpoint after each epoch.

Every random choice of an epoch follows from the seed and the epoch's number, so a run that was killed
continues from its last checkpoint and ends with the very weights of an undisturbed run.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from training.batches import TokenIds, batches_by_length
from training.recipe import Recipe

EVALUATION_BATCH = 128


@dataclass(frozen=True)
class Examples:
    """Tokens and targets of one split; `targets` (tickets,) int64 are positions in the list of teams."""

    tokens: TokenIds
    targets: torch.Tensor


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training tickets came to."""

    number: int
    loss: float
    accuracy: float
    valid_loss: float
    valid_accuracy: float
    seconds: float


@dataclass(frozen=True)
class Step:
    """Told after each batch, for the progress bar."""

    epoch: int
    done: int  # training tickets seen, over all epochs
    total: int
    loss: float  # running, of this epoch
    accuracy: float


def fit(
    network: nn.Module,
    train: Examples,
    valid: Examples,
    recipe: Recipe,
    checkpoint: Path,
    identity: str,
    on_step: Callable[[Step], None] = lambda step: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> list[Epoch]:
    """Train `network` in place and return its history.

    Continues from `checkpoint` when that was written under the same `identity` (data, recipe, versions).
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate)
    history = _resume(checkpoint, identity, network, optimizer)
    if history:
        print(f"continuing after epoch {len(history)}")
    for number in range(len(history) + 1, recipe.epochs + 1):
        started = time.perf_counter()
        loss, accuracy = _one_epoch(network, optimizer, train, recipe, number, on_step)
        valid_loss, valid_accuracy = measure(network, valid)
        seconds = time.perf_counter() - started
        history.append(Epoch(number, loss, accuracy, valid_loss, valid_accuracy, seconds))
        _save(checkpoint, identity, network, optimizer, history)
        on_epoch(history[-1])
    network.eval()
    return history


def _one_epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    train: Examples,
    recipe: Recipe,
    number: int,
    on_step: Callable[[Step], None],
) -> tuple[float, float]:
    """One pass over the training tickets: mean loss, share of right answers while learning."""
    network.train()
    torch.manual_seed(recipe.seed * 100_003 + number)  # dropout
    generator = np.random.default_rng((recipe.seed, number))  # order
    count = len(train.tokens)
    seen, loss_sum, right = 0, 0.0, 0
    for rows in batches_by_length(train.tokens.lengths, recipe.batch_size, generator):
        targets = train.targets[rows]
        logits = network(train.tokens.padded(rows))
        loss = F.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(rows)
        loss_sum += loss.item() * len(rows)
        right += int((logits.argmax(dim=1) == targets).sum())
        done = (number - 1) * count + seen
        on_step(Step(number, done, recipe.epochs * count, loss_sum / seen, right / seen))
    return loss_sum / seen, right / seen


@torch.no_grad()
def measure(network: nn.Module, examples: Examples) -> tuple[float, float]:
    """Mean loss and accuracy without dropout."""
    logits = predict(network, examples.tokens)
    loss = F.cross_entropy(logits, examples.targets).item()
    return loss, (logits.argmax(dim=1) == examples.targets).double().mean().item()


@torch.no_grad()
def predict(network: nn.Module, tokens: TokenIds) -> torch.Tensor:
    """Logits (tickets, teams) in the order of the tickets."""
    network.eval()
    pieces, order = [], []
    for rows in batches_by_length(tokens.lengths, EVALUATION_BATCH):
        pieces.append(network(tokens.padded(rows)))
        order.append(rows)
    logits = torch.cat(pieces)
    return logits[torch.from_numpy(np.argsort(np.concatenate(order)))]


def _save(path: Path, identity: str, network: nn.Module, optimizer: Any, history: list[Epoch]) -> None:
    """Write beside, flush to disk, rename: a kill at any moment leaves the old or the new checkpoint."""
    state = {
        "identity": identity,
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": [asdict(epoch) for epoch in history],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".writing")
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _resume(path: Path, identity: str, network: nn.Module, optimizer: Any) -> list[Epoch]:
    """Load the checkpoint if it is of this very run; the epochs it has done."""
    if not path.exists():
        return []
    try:
        state = torch.load(path, weights_only=True)  # tensors and plain values only: no pickled code runs
    except Exception as error:  # the loader raises whatever the damage makes it raise
        raise ValueError(f"{path} is not a checkpoint, delete it: {str(error).splitlines()[0]}") from None
    if state["identity"] != identity:
        return []
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    return [Epoch(**epoch) for epoch in state["history"]]
