"""The network and the word counts as one: how much each says is chosen on the validation tickets."""

from dataclasses import replace

import numpy as np
import torch
from sklearn.metrics import f1_score

from models.network import Network, WordCounts
from training.fit.loop import Examples, predict
from training.teachers.soft_labels import fit_temperature

SHARES = np.linspace(0, 1, 11)  # of the word counts in the logits
USUAL = 0.6  # the share that was best, or nearly, on most data sets (docs/decisions.md)
FAR = 1.0  # what a share that is one half further must be better by, times the root of the tickets


def mix(network: Network, counts: WordCounts, valid: Examples) -> Network:
    """One network whose logits are a weighted sum of both, each brought to its own temperature before."""
    targets = valid.targets.numpy()
    deep, wide = predict(network, valid.tokens).numpy(), predict(counts, valid.tokens).numpy()
    deep_scale, wide_scale = 1 / fit_temperature(deep, targets)[1], 1 / fit_temperature(wide, targets)[1]
    share = choose_share(deep_scale * deep, wide_scale * wide, targets)
    print(f"the word counts have a share of {share:.1f} in the logits")
    mixed = Network(replace(network.config, counts=len(counts.bigram.weight)))
    mixed.load_state_dict(network.state_dict() | {f"counts.{k}": v for k, v in counts.state_dict().items()})
    with torch.no_grad():
        for parameter in mixed.head.parameters():
            parameter.mul_(deep_scale * (1 - share))
        for table in (mixed.counts.token, mixed.counts.bigram):
            scores = table.weight[:, :-1] * (wide_scale * share)
            table.weight[:, :-1] = scores.half().float()
        mixed.counts.bias.mul_(wide_scale * share)
    return mixed.eval()


def choose_share(deep: np.ndarray, wide: np.ndarray, targets: np.ndarray) -> float:
    """The share of `wide` beside `deep` (tickets, teams) with which most is right.

    By accuracy, with a fifth of macro-F1, smoothed over neighbouring shares. A share far from USUAL must be
    better by more; by how much falls with the root of the tickets, as the luck of the draw does.
    """
    found = np.array([_quality((1 - share) * deep + share * wide, targets) for share in SHARES])
    around = np.convolve(np.pad(found, 1, mode="edge"), [0.25, 0.5, 0.25], mode="valid")
    luck = FAR * (2 * (SHARES - USUAL)) ** 2 / np.sqrt(len(targets))
    return float(SHARES[np.argmax(around - luck)])


def _quality(logits: np.ndarray, targets: np.ndarray) -> float:
    found = logits.argmax(axis=1)
    f1 = f1_score(targets, found, average="macro", labels=np.unique(targets), zero_division=0)
    return float((4 * (found == targets).mean() + f1) / 5)
