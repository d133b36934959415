"""The training loop: batches of similar length, Adam, a checkpoint after each epoch.

A recipe may add a cosine schedule with warm-up, weight decay, token dropout, soft labels and sentence vectors
(`training.teachers.soft_labels`), and an exponential moving average (EMA) of the weights. With an EMA, the
averaged weights are validated and exported.

All random numbers of an epoch depend only on the seed and the epoch's number, so that a run that was killed
and continues from its last checkpoint ends with the same weights as an uninterrupted run.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from models.files import atomic_write
from models.network import Network
from models.tokenizer import UNKNOWN_ID
from training.data.batches import TokenIds, batches_by_length
from training.fit import distributed
from training.fit.device import CPU, Device
from training.recipe import Recipe

EVALUATION_BATCH = 128
WARM_UP = 0.1  # share of the steps, with a cosine schedule
LAST_RATE = 0.02  # learning rate at the end of a cosine schedule, relative to the recipe's
EMA_EVERY = 4  # steps
MAX_GRADIENT_NORM = 1.0  # only with a cosine schedule
MIN_TOKENS_FOR_DROPOUT = 4  # shorter tickets keep all their tokens
REPLACED_BY_UNKNOWN = 0.5  # share of the dropped tokens that become the unknown token


class CheckpointError(ValueError):
    """The checkpoint file cannot be read."""


@dataclass(frozen=True)
class Examples:
    """Tokens and targets of one split; `targets` (tickets,) int64 are indices of teams.

    For distillation: `soft` labels (tickets, teams); `trust` (tickets,), the weight of the hard label, 1 -
    that of the soft label; and the `vectors` (tickets, size) to predict, 0 for tickets without one.
    `importance` (tickets,) weights the loss, 1 on average; None means equal weights.
    """

    tokens: TokenIds
    targets: torch.Tensor
    soft: torch.Tensor | None = None
    trust: torch.Tensor | None = None
    vectors: torch.Tensor | None = None
    importance: torch.Tensor | None = None

    def to(self, device: torch.device) -> "Examples":
        """The same examples with their targets on `device`; tokens are moved batch by batch."""
        targets, *rest = (
            None if values is None else values.to(device)
            for values in (self.targets, self.soft, self.trust, self.vectors, self.importance)
        )
        assert targets is not None
        return Examples(self.tokens, targets, *rest)


@dataclass(frozen=True)
class Epoch:
    """The figures of one epoch."""

    number: int
    loss: float
    accuracy: float
    valid_loss: float
    valid_accuracy: float
    seconds: float


@dataclass(frozen=True)
class Step:
    """Progress after one batch."""

    epoch: int
    done: int  # training tickets seen, over all epochs
    total: int
    loss: float  # running, of this epoch
    accuracy: float


class Learner:
    """A network in training: its optimizer, schedule, EMA, and the head that predicts sentence vectors."""

    def __init__(self, network: Network, recipe: Recipe, vector_size: int, steps: int) -> None:
        self.network, self.recipe, self.steps = network, recipe, steps
        self.step_number = 0
        self.vector_head = None
        if vector_size:
            device = network.head.weight.device
            self.vector_head = nn.Linear(network.head.in_features, vector_size).to(device)
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for module in (network, *([self.vector_head] if self.vector_head else [])):
            for parameter in module.parameters():
                (matrices if parameter.dim() > 1 else others).append(parameter)
        self.parameters = matrices + others
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": others},
        ]
        if recipe.schedule == "constant":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
                network.parameters(), lr=recipe.learning_rate
            )
        else:
            self.optimizer = torch.optim.AdamW(
                groups, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
            )
        self.ema = copy.deepcopy(network).eval() if recipe.ema_decay else None

    @property
    def best(self) -> Network:
        """The network to validate and to export: the EMA, if there is one."""
        return self.ema or self.network

    def step(self, loss: torch.Tensor | None) -> None:
        """Step on the loss summed over ranks, then update the EMA; None means this rank has no examples."""
        self.optimizer.zero_grad()
        if loss is not None:
            loss.backward()
        distributed.all_reduce_gradients(self.parameters)
        if self.recipe.schedule == "cosine":
            nn.utils.clip_grad_norm_(self.parameters, MAX_GRADIENT_NORM)
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.learning_rate * cosine(self.step_number, self.steps)
        self.optimizer.step()
        self.step_number += 1
        if self.ema and self.step_number % EMA_EVERY == 0:
            self._update_ema(self.ema)

    @torch.no_grad()
    def _update_ema(self, ema: Network) -> None:
        done = self.step_number / EMA_EVERY
        decay = min(
            self.recipe.ema_decay**EMA_EVERY, (done + 1) / (done + 10)
        )  # bias correction: forget the first steps
        torch._foreach_lerp_(list(ema.parameters()), list(self.network.parameters()), 1 - decay)

    def state(self) -> dict[str, Any]:
        parts = {"network": self.network, "vector_head": self.vector_head, "ema": self.ema}
        states = {name: part.state_dict() for name, part in parts.items() if part is not None}
        return {**states, "optimizer": self.optimizer.state_dict(), "step": self.step_number}

    def load(self, state: dict[str, Any]) -> None:
        parts = {"network": self.network, "vector_head": self.vector_head, "ema": self.ema}
        for name, part in parts.items():
            if part is not None:
                part.load_state_dict(state[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step_number = state["step"]


def cosine(step: int, steps: int) -> float:
    """Factor of the learning rate at a step: linear warm-up to 1, then half a cosine."""
    warm = max(1.0, WARM_UP * steps)
    if step < warm:
        return (step + 1) / (warm + 1)
    progress = min(1.0, (step - warm) / max(1.0, steps - warm))
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def fit(
    network: Network,
    train: Examples,
    valid: Examples,
    recipe: Recipe,
    checkpoint: Path,
    identity: str,
    on_step: Callable[[Step], None] = lambda step: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    device: Device = CPU,
) -> list[Epoch]:
    """Train `network` in place on `device`, move it to the CPU, and return its history.

    Continues from `checkpoint` if it has the same `identity` (data, recipe, versions), also if it was written
    on another device.
    """
    network.to(device.torch_device)
    train, valid = train.to(device.torch_device), valid.to(device.torch_device)
    steps = recipe.epochs * sum(1 for _ in _batches(train, recipe, 1))
    vector_size = 0 if train.vectors is None else train.vectors.shape[1]
    learner = Learner(network, recipe, vector_size, steps)
    history = _resume(checkpoint, identity, learner)
    if history and distributed.rank() == 0:
        print(f"continuing after epoch {len(history)}")
    for number in range(len(history) + 1, recipe.epochs + 1):
        started = time.perf_counter()
        with device.attention():
            loss, accuracy = _one_epoch(learner, train, number, on_step)
            valid_loss, valid_accuracy = measure(learner.best, valid)
        seconds = time.perf_counter() - started
        history.append(Epoch(number, loss, accuracy, valid_loss, valid_accuracy, seconds))
        if distributed.rank() == 0:
            _save(checkpoint, identity, learner, history)
        on_epoch(history[-1])
    network.load_state_dict(learner.best.state_dict())
    network.cpu().eval()
    return history


def _one_epoch(
    learner: Learner, train: Examples, number: int, on_step: Callable[[Step], None]
) -> tuple[float, float]:
    """One pass over the training tickets; returns mean loss and training accuracy."""
    recipe, network = learner.recipe, learner.network
    network.train()
    torch.manual_seed(recipe.seed * 100_003 + number + 10_000_019 * distributed.rank())  # dropout
    dropout = np.random.default_rng((recipe.seed, number, 1))
    count = len(train.tokens)
    seen, loss_sum, right = 0, 0.0, 0
    for rows in _batches(train, recipe, number):
        ids = token_dropout(train.tokens.padded(rows), recipe.token_dropout, dropout)
        local = distributed.local_rows(rows)
        if not len(local):
            learner.step(None)
            continue
        pooled = network.pooled(ids[local].to(train.targets.device))
        logits = network.head(F.dropout(pooled, recipe.head_dropout))
        loss = _loss(learner, train, rows[local], pooled, logits) * (len(local) / len(rows))
        learner.step(loss)
        seen += len(local)
        loss_sum += loss.item() * len(rows)
        right += int((logits.argmax(dim=1) == train.targets[rows[local]]).sum())
        done = (number - 1) * count + seen * distributed.world_size()
        on_step(Step(number, min(done, number * count), recipe.epochs * count, loss_sum / seen, right / seen))
    loss_sum, right, seen = distributed.all_reduce(
        torch.tensor([loss_sum, right, seen], dtype=torch.float64)
    ).tolist()
    return loss_sum / seen, right / seen


def _batches(train: Examples, recipe: Recipe, epoch: int) -> Iterator[np.ndarray]:
    order = np.random.default_rng((recipe.seed, epoch))
    return batches_by_length(train.tokens.lengths, recipe.batch_size, order)


def _loss(
    learner: Learner, train: Examples, rows: np.ndarray, pooled: torch.Tensor, logits: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy with label and soft label, plus the cosine distance of predicted and teacher vectors."""
    recipe, targets = learner.recipe, train.targets[rows]
    losses = F.cross_entropy(logits, targets, label_smoothing=recipe.label_smoothing, reduction="none")
    if train.soft is not None and train.trust is not None:
        soft = F.cross_entropy(logits, train.soft[rows], reduction="none")
        trust = train.trust[rows]
        losses = trust * losses + (1 - trust) * soft
    loss = (losses if train.importance is None else losses * train.importance[rows]).mean()
    if learner.vector_head is not None and train.vectors is not None:
        vectors = train.vectors[rows]
        there = vectors.abs().sum(dim=1) > 0
        likeness = F.cosine_similarity(learner.vector_head(F.dropout(pooled, 0.1)), vectors)
        loss = loss + recipe.vector_loss * ((1 - likeness) * there).mean()
    return loss


def token_dropout(ids: torch.Tensor, share: float, generator: np.random.Generator) -> torch.Tensor:
    """Drop a share of each ticket's tokens; REPLACED_BY_UNKNOWN of them become the unknown token instead.

    `ids` and the result are (batch, n), padded with 0 at the end.
    """
    if not share:
        return ids
    batch = ids.numpy()
    draw = generator.random(batch.shape)
    long = (batch != 0).sum(axis=1, keepdims=True) >= MIN_TOKENS_FOR_DROPOUT
    out = (draw < share) & (batch != 0) & long
    out &= (~out & (batch != 0)).any(axis=1, keepdims=True)  # never all tokens of a ticket
    unknown = out & (draw < share * REPLACED_BY_UNKNOWN)
    kept = np.where(unknown, UNKNOWN_ID, np.where(out, 0, batch))
    order = np.argsort(kept == 0, axis=1, kind="stable")
    kept = np.take_along_axis(kept, order, axis=1)
    return torch.from_numpy(kept[:, : max(1, int((kept != 0).sum(axis=1).max()))])


@torch.no_grad()
def measure(network: nn.Module, examples: Examples) -> tuple[float, float]:
    """Mean loss and accuracy without dropout."""
    logits = predict(network, examples.tokens)
    loss = F.cross_entropy(logits, examples.targets).item()
    return loss, (logits.argmax(dim=1) == examples.targets).double().mean().item()


@torch.no_grad()
def predict(network: nn.Module, tokens: TokenIds) -> torch.Tensor:
    """Logits (tickets, teams) in the order of the tickets, on the device of the network."""
    network.eval()
    device = next(network.parameters()).device
    pieces, order = [], []
    for rows in batches_by_length(tokens.lengths, EVALUATION_BATCH):
        pieces.append(network(tokens.padded(rows).to(device)))
        order.append(rows)
    logits = torch.cat(pieces)
    return logits[torch.from_numpy(np.argsort(np.concatenate(order))).to(device)]


def _save(path: Path, identity: str, learner: Learner, history: list[Epoch]) -> None:
    """Write a checkpoint atomically: a kill at any time leaves the old or the new one."""
    state = {
        "identity": identity,
        "learner": learner.state(),
        "history": [asdict(epoch) for epoch in history],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        torch.save(state, file)


def _resume(path: Path, identity: str, learner: Learner) -> list[Epoch]:
    """Load the checkpoint if it has this identity, and return the history of its epochs."""
    if not path.exists():
        return []
    try:
        # weights_only: no pickled code runs. `load` copies the tensors to the device of this run.
        state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # the loader's exceptions share no base class
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint; delete it: {str(error).splitlines()[0]}"
        ) from None
    if state["identity"] != identity:
        return []
    learner.load(state["learner"])
    return [Epoch(**epoch) for epoch in state["history"]]
