"""Which tickets are probably labelled with the wrong team, most suspicious first.

Word counts with a linear support vector machine, trained five times, give every ticket scores from a model
that never saw it, and one temperature makes them probabilities; confident learning (Northcutt et al., 2021,
the cleanlab library) finds the labels that these contradict. A person looks through the CSV, fills in
`corrected_team` where the label was wrong, and trains again with `--corrections`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from models.decision import calibrated
from training.assess.calibration import fit_temperature
from training.data.corrections import key_of
from training.data.dataset import Tickets

FOLDS = 5
# More tickets than this are checked piece by piece: each piece is checked by a model of its own.
MOST_TICKETS = 20_000


@dataclass(frozen=True)
class Suspect:
    """One ticket whose label is probably wrong; `index` is its place among the tickets."""

    index: int
    ticket_id: str
    row: int
    team: str
    suggested_team: str
    quality: float  # 0 = surely wrong, 1 = surely right


def find_suspects(tickets: Tickets, seed: int = 0) -> list[Suspect]:
    """Suspected label errors, most suspicious first. Teams with fewer than FOLDS tickets are not checked."""
    order = np.random.default_rng(seed).permutation(len(tickets))
    pieces = np.array_split(order, -(-len(tickets) // MOST_TICKETS))
    suspects = [suspect for piece in pieces for suspect in _in_piece(tickets, np.sort(piece), seed)]
    return sorted(suspects, key=lambda suspect: suspect.quality)


def _in_piece(tickets: Tickets, rows: np.ndarray, seed: int) -> list[Suspect]:
    names, counts = np.unique([tickets.teams[row] for row in rows], return_counts=True)
    checked = names[counts >= FOLDS]
    rows = np.array([row for row in rows if tickets.teams[row] in set(checked)])
    if len(checked) < 2:
        return []
    labels = np.searchsorted(checked, [tickets.teams[row] for row in rows])
    probabilities = out_of_fold([tickets.texts[row] for row in rows], labels, seed)
    found = find_label_issues(
        labels,
        probabilities,
        filter_by="prune_by_noise_rate",
        return_indices_ranked_by="self_confidence",
        n_jobs=1,
    )
    quality = get_label_quality_scores(labels, probabilities, method="self_confidence")
    return [
        Suspect(
            index=int(rows[at]),
            ticket_id=tickets.ids[rows[at]],
            row=tickets.rows[rows[at]],
            team=tickets.teams[rows[at]],
            suggested_team=str(checked[probabilities[at].argmax()]),
            quality=float(quality[at]),
        )
        for at in found
        if probabilities[at].argmax() != labels[at]
    ]


def out_of_fold(texts: list[str], labels: np.ndarray, seed: int) -> np.ndarray:
    """(tickets, teams) probabilities of each ticket by a model trained on the other folds."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LinearSVC())
    scores = cross_val_predict(model, texts, labels, cv=folds, method="decision_function")
    if scores.ndim == 1:  # two teams
        scores = np.stack([-scores, scores], axis=1)
    return calibrated(scores, fit_temperature(scores, labels))


def as_lines(suspects: Sequence[Suspect], tickets: Tickets, trained_on: int) -> list[dict[str, str]]:
    """The suspects as lines of the table to correct (`training.data.corrections`).

    `tickets` are those that were checked: first the `trained_on` training tickets, then those of validation.
    """
    return [
        {
            "ticket_id": one.ticket_id,
            "row": str(one.row),
            "part": "training" if one.index < trained_on else "validation",
            "team": one.team,
            "suggested_team": one.suggested_team,
            "label_quality": f"{one.quality:.4f}",
            "corrected_team": "",
            "text_key": key_of(tickets.texts[one.index]),
            "text": tickets.texts[one.index],
        }
        for one in suspects
    ]
