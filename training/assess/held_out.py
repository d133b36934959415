"""The figures of a trained bundle, and of simpler routers, on tickets that no choice was made on."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, recall_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.svm import LinearSVC

from models.bundle import Bundle
from models.decision import calibrated
from models.scope import read, typicality
from training.assess.baselines import tfidf_svm
from training.assess.calibration import calibration_error
from training.assess.evaluation import answer
from training.data.dataset import Tickets
from training.teachers.encoder import load_teacher

PRECISIONS = (0.99, 0.95, 0.90)
KEPT_IN_SCOPE = 0.96
WORDS, SVM, ENCODER = ROUTERS = ("words SVM", "words and characters SVM", "encoder + regression")
FEWEST_TRAINED = 20  # training tickets of a team whose recall should not be 0
CHANCE = 0.05  # fewer right tickets than a precision allows have at most this probability

Predict = Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True)
class Routed:
    """What a bundle routes at one precision: the tickets of all, and those that are right."""

    precision: float
    tickets: int
    routed: int
    right: int
    possible: float  # the largest share that the order by confidence could route at this precision

    @property
    def coverage(self) -> float:
        return self.routed / self.tickets

    @property
    def least_right(self) -> int:
        """The fewest right tickets that are within the binomial error of the precision."""
        return int(binom.ppf(CHANCE, self.routed, self.precision))


def words_svm() -> Pipeline:
    """TF-IDF of words and word pairs, then a linear support vector machine."""
    return make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LinearSVC())


def routers(train: Tickets) -> dict[str, Predict]:
    """The simpler routers, trained on `train`; the encoder is left out if it is not installed."""
    made: dict[str, Predict] = {
        WORDS: words_svm().fit(train.texts, train.teams).predict,
        SVM: tfidf_svm().fit(train.texts, train.teams).predict,
    }
    teacher = load_teacher()
    if teacher:
        encoder = teacher
        regression = LogisticRegression(C=100, max_iter=300)
        regression.fit(encoder.vectors(train.texts), train.teams)
        made[ENCODER] = lambda texts: regression.predict(encoder.vectors(texts))
    return made


def accuracy(predicted: np.ndarray, tickets: Tickets) -> float:
    return float((predicted == np.array(tickets.teams)).mean())


def macro_f1(predicted: np.ndarray, tickets: Tickets) -> float:
    """The mean F1 of the teams that have tickets here."""
    actual = np.array(tickets.teams)
    labels = np.unique(actual)
    return float(f1_score(actual, predicted, average="macro", labels=labels, zero_division=0))


def teams_lost(ours: np.ndarray, other: np.ndarray, tickets: Tickets, train: Tickets) -> list[str]:
    """The teams of at least FEWEST_TRAINED training tickets that only the `other` router ever gets right."""
    trained = Counter(train.teams)
    teams = [team for team in sorted(set(tickets.teams)) if trained[team] >= FEWEST_TRAINED]
    if not teams:
        return []
    mine, its = (
        recall_score(tickets.teams, predicted, labels=teams, average=None, zero_division=0)
        for predicted in (ours, other)
    )
    return [team for team, lost in zip(teams, (mine == 0) & (its > 0), strict=True) if lost]


def routed_at(precision: float, bundle: Bundle, tickets: Tickets) -> Routed:
    """What the bundle routes of `tickets` with the threshold that it has for this precision."""
    tradeoff = bundle.config.tradeoff
    if tradeoff is None:
        raise ValueError(f"{bundle.config.name} has no trade-off between precision and coverage")
    answers = answer(bundle.with_config(thresholds=tradeoff.thresholds(precision)), tickets.texts)
    correct, routed = np.array(answers.teams) == np.array(tickets.teams), answers.routed
    right = np.cumsum(correct[np.argsort(-answers.confidence, kind="stable")])
    enough = np.flatnonzero(right >= precision * np.arange(1, len(right) + 1))
    possible = (enough[-1] + 1) / len(tickets) if len(enough) else 0.0
    return Routed(precision, len(tickets), int(routed.sum()), int(correct[routed].sum()), float(possible))


def error_of_confidence(bundle: Bundle, tickets: Tickets) -> float:
    """The calibration error of the bundle's confidences."""
    logits = answer(bundle, tickets.texts).logits
    predicted = np.array(bundle.config.teams)[logits.argmax(axis=1)]
    confidence = calibrated(logits, bundle.config.temperature, bundle.config.exponent).max(axis=1)
    return calibration_error(confidence, predicted == np.array(tickets.teams))


def out_of_scope_recall(bundle: Bundle, known: Sequence[str], foreign: Sequence[str]) -> float:
    """The share of `foreign` texts below the typicality that KEPT_IN_SCOPE of the `known` texts reach."""
    return recall(*(typicality_of_texts(bundle, texts) for texts in (known, foreign)))


def typicality_of_texts(bundle: Bundle, texts: Sequence[str]) -> np.ndarray:
    """The score (texts,) by which the bundle tells what is out of scope."""
    logits = answer(bundle, texts).logits.max(axis=1)
    scope = bundle.config.out_of_scope
    return np.array(
        [
            typicality(read(text, scope), float(logit), scope)
            for text, logit in zip(texts, logits, strict=True)
        ]
    )


def recall(known: np.ndarray, foreign: np.ndarray) -> float:
    """The share of `foreign` scores below the score that KEPT_IN_SCOPE of the `known` scores exceed."""
    return float((foreign < np.quantile(known, 1 - KEPT_IN_SCOPE)).mean())
