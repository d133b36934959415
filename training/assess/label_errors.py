"""Finds tickets that are probably labelled with the wrong team, with a label-noise model.

Five-fold cross-validation of TF-IDF with a linear support vector machine gives each ticket scores from a
model that was not trained on it. Each label is modelled as a mixture: with probability 1 - rate it is drawn
from the softmax of the scores (with one temperature, and a bias for each team), and with probability `rate`
it is an error, uniform over the teams. Rate, temperature and biases are estimated by maximum likelihood, and
the probability that a label is an error follows from Bayes' rule. (Noise models: Raykar et al., 2010;
Goldberger and Ben-Reuven, 2017; here with one rate.)

A ticket that fits two teams is therefore not a suspect, nor is every ticket that word counts get wrong.
Tickets with a probability of at least 0.5 are listed, so at least half of the list is expected to be wrong.

A person checks the CSV, fills in `corrected_team` where the label is wrong, and trains again with
`--corrections`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from training.data.corrections import Line, key_of, to_csv, write_csv
from training.data.dataset import Dataset, Tickets

FOLDS = 5
# More tickets are checked in pieces of this size, each with models of its own.
MOST_TICKETS = 20_000
LISTED_FROM = 0.5  # probability that the label is wrong
# Initial error rates of the optimisation, as log-odds: 0.7 % and 8 %.
_FIRST_RATES = (-5.0, -2.5)


@dataclass(frozen=True)
class Suspect:
    """A ticket whose label is probably wrong; `index` is its position in the tickets."""

    index: int
    ticket_id: str
    row: int
    team: str
    suggested_team: str
    probability: float  # that the label is wrong


def find_suspects(tickets: Tickets, seed: int = 0) -> list[Suspect]:
    """Suspected label errors, most probable first. Teams with fewer than FOLDS tickets are not checked."""
    order = np.random.default_rng(seed).permutation(len(tickets))
    pieces = np.array_split(order, -(-len(tickets) // MOST_TICKETS))
    suspects = [suspect for piece in pieces for suspect in _in_piece(tickets, np.sort(piece), seed)]
    return sorted(suspects, key=lambda suspect: -suspect.probability)


def expected_errors(suspects: Sequence[Suspect]) -> float:
    """The expected number of wrong labels among the suspects."""
    return sum(suspect.probability for suspect in suspects)


def _in_piece(tickets: Tickets, rows: np.ndarray, seed: int) -> list[Suspect]:
    names, counts = np.unique([tickets.teams[row] for row in rows], return_counts=True)
    checked = names[counts >= FOLDS]
    rows = np.array([row for row in rows if tickets.teams[row] in set(checked)])
    if len(checked) < 2:
        return []
    labels = np.searchsorted(checked, [tickets.teams[row] for row in rows])
    scores = out_of_fold([tickets.texts[row] for row in rows], labels, seed)
    wrong, suggested = error_probabilities(scores, labels)
    return [
        Suspect(
            index=int(rows[at]),
            ticket_id=tickets.ids[rows[at]],
            row=tickets.rows[rows[at]],
            team=tickets.teams[rows[at]],
            suggested_team=str(checked[suggested[at]]),
            probability=float(wrong[at]),
        )
        for at in np.flatnonzero((wrong >= LISTED_FROM) & (suggested != labels))
    ]


def out_of_fold(texts: list[str], labels: np.ndarray, seed: int) -> np.ndarray:
    """(tickets, teams) scores of each ticket by a model trained on the other folds."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LinearSVC())
    scores: np.ndarray = cross_val_predict(model, texts, labels, cv=folds, method="decision_function")
    return scores if scores.ndim == 2 else np.stack([-scores, scores], axis=1)  # two teams


def error_probabilities(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The probability that each label (tickets,) is an error, and the most probable team (tickets,).

    `scores` (tickets, teams) are out of fold.
    """
    tickets, teams = scores.shape
    rows = np.arange(tickets)

    def parts(parameters: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
        """Probabilities without errors (tickets, teams), error rate, probability of each label (tickets,)."""
        clean = np.exp(log_softmax(scores * np.exp(parameters[0]) + parameters[2:], axis=1))
        rate = float(expit(parameters[1]))
        return clean, rate, (1 - rate) * clean[rows, labels] + rate / teams

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative log-likelihood with an L2 penalty on the biases, and its gradient."""
        clean, rate, likely = parts(parameters)
        no_error = (1 - rate) * clean[rows, labels] / likely
        residual = clean * no_error[:, None]
        residual[rows, labels] -= no_error
        gradient = np.empty_like(parameters)
        gradient[0] = (residual * scores).sum() * np.exp(parameters[0])
        gradient[1] = ((clean[rows, labels] - 1 / teams) / likely).sum() * rate * (1 - rate)
        gradient[2:] = residual.sum(axis=0) + parameters[2:]
        return float(-np.log(likely).sum() + (parameters[2:] ** 2).sum() / 2), gradient

    starts = (np.concatenate([[1.0, rate], np.zeros(teams)]) for rate in _FIRST_RATES)
    bounds = [(-3.0, 6.0), (-20.0, 3.0), *[(-20.0, 20.0)] * teams]
    found = [minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds) for start in starts]
    clean, rate, likely = parts(min(found, key=lambda one: float(one.fun)).x)
    return rate / teams / likely, clean.argmax(axis=1)


def as_lines(suspects: Sequence[Suspect], tickets: Tickets, trained_on: int) -> list[dict[str, str]]:
    """The suspects as lines of the table for a person to correct (`training.data.corrections`).

    `tickets` are the checked ones: first `trained_on` training tickets, then the validation tickets.
    """
    return [
        {
            "ticket_id": one.ticket_id,
            "row": str(one.row),
            "part": "training" if one.index < trained_on else "validation",
            "team": one.team,
            "suggested_team": one.suggested_team,
            "probability_wrong": f"{one.probability:.4f}",
            "corrected_team": "",
            "text_key": key_of(tickets.texts[one.index]),
            "text": tickets.texts[one.index],
        }
        for one in suspects
    ]


def write_suspects(
    path: Path, suspects: Sequence[Suspect], dataset: Dataset, texts: bool, done: Sequence[Line] = ()
) -> None:
    """Write the table for a person to correct, if there is anything to correct.

    `done` are earlier corrections, which stay in the table.
    """
    lines = as_lines(suspects, dataset.checked, len(dataset.train))
    if lines or done:
        write_csv(path, to_csv(lines, done, texts))
