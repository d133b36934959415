"""Word-count baselines on the same split as the transformer.

TF-IDF of words and word pairs with logistic regression, and TF-IDF of words and character n-grams with a
linear support vector machine.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.svm import LinearSVC

from training.data.dataset import Tickets

# Bounds memory; more tickets hardly improve these models.
MOST_TICKETS = 20_000


@dataclass(frozen=True)
class Baseline:
    """A fitted baseline and its figures on the validation tickets."""

    name: str
    pipeline: Any
    accuracy: float
    macro_f1: float
    correct: int
    train_tickets: int
    seconds: float
    predicted: list[str]  # of the validation tickets

    def predict(self, texts: Sequence[str]) -> list[str]:
        return list(self.pipeline.predict(texts))


def tfidf_logistic_regression() -> Pipeline:
    """TF-IDF of words and word pairs, then logistic regression."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    return make_pipeline(words, LogisticRegression(C=20, max_iter=300))


def tfidf_svm() -> Pipeline:
    """TF-IDF of words, word pairs and 2 to 5 characters, then a linear support vector machine."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    return make_pipeline(make_union(words, characters), LinearSVC())


BASELINES = {
    "TF-IDF + logistic regression": tfidf_logistic_regression,
    "TF-IDF + SVM": tfidf_svm,
}


def fit_baselines(train: Tickets, valid: Tickets, seed: int = 0) -> list[Baseline]:
    """Both baselines, trained on `train` (at most MOST_TICKETS of it, drawn with `seed`)."""
    if len(train) > MOST_TICKETS:
        rows = np.random.default_rng(seed).choice(len(train), MOST_TICKETS, replace=False)
        train = train.select(np.sort(rows).tolist())
    return [_fit(name, make(), train, valid) for name, make in BASELINES.items()]


def _fit(name: str, pipeline: Pipeline, train: Tickets, valid: Tickets) -> Baseline:
    started = time.perf_counter()
    pipeline.fit(train.texts, train.teams)
    seconds = time.perf_counter() - started
    predicted, actual = pipeline.predict(valid.texts), np.array(valid.teams)
    correct = int((predicted == actual).sum())
    macro_f1 = float(f1_score(actual, predicted, average="macro", labels=sorted(set(valid.teams))))
    return Baseline(
        name, pipeline, correct / len(valid), macro_f1, correct, len(train), seconds, predicted.tolist()
    )
