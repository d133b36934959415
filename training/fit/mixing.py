"""Combines the network and the word counts; their weights are chosen on the validation tickets."""

from dataclasses import replace

import numpy as np
import torch
from sklearn.metrics import f1_score

from models.network import Network, WordCounts
from training.fit.loop import Examples, predict
from training.teachers.soft_labels import fit_temperature

SHARES = np.linspace(0, 1, 11)  # of the word counts in the logits
PRIOR_SHARE = 0.6  # the best share, or nearly, on most data sets (docs/decisions.md)
PRIOR_STRENGTH = 1.0  # penalty for a share 0.5 away from PRIOR_SHARE, times the root of the number of tickets


def mix(network: Network, counts: WordCounts, valid: Examples) -> Network:
    """One network whose logits are the weighted sum of both logits, each divided by its own temperature."""
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
    """The share of `wide`, the rest being `deep` (both (tickets, teams) logits), with the best quality.

    The quality is the mean of accuracy and macro-F1, smoothed over neighbouring shares. A penalty for the
    distance from PRIOR_SHARE shrinks with the root of the number of tickets, as the sampling error does.
    """
    found = np.array([_quality((1 - share) * deep + share * wide, targets) for share in SHARES])
    around = np.convolve(np.pad(found, 1, mode="edge"), [0.25, 0.5, 0.25], mode="valid")
    penalty = PRIOR_STRENGTH * (2 * (SHARES - PRIOR_SHARE)) ** 2 / np.sqrt(len(targets))
    return float(SHARES[np.argmax(around - penalty)])


def _quality(logits: np.ndarray, targets: np.ndarray) -> float:
    found = logits.argmax(axis=1)
    f1 = f1_score(targets, found, average="macro", labels=np.unique(targets), zero_division=0)
    return float(((found == targets).mean() + f1) / 2)
