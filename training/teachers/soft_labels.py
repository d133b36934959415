"""Knowledge distillation: soft labels, sentence vectors and augmented texts, for training only.

Two teachers score every training ticket out of fold: TF-IDF with a linear support vector machine and, if it
is installed, a sentence encoder with logistic regression. Each ticket is scored by models that were trained
neither on it nor on another ticket of its template, so that a wrong label is not reproduced. The soft label
is the softmax of the teachers' weighted sum; weight and temperature are those that fit the labels best
(Hinton et al. 2015, "Distilling the Knowledge in a Neural Network").

With the encoder there are two more signals: augmented copies of tickets, in which some words are replaced by
similar words and some are dropped, with the teachers' soft labels for them (after Jiao et al. 2020,
"TinyBERT"); and the encoder's vector of every text, which the network learns to predict.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_union
from sklearn.svm import LinearSVC
from torch.nn import functional

from models.decision import calibrated
from models.tokenizer import words
from training.data.splits import stratified_folds
from training.data.templates import group_numbers, template_key
from training.teachers.encoder import Teacher

FOLDS = 4
# Candidate weights of the encoder's scores; word counts have weight 1, and both have standard deviation 1.
ENCODER_SHARES = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0)
REPLACED, DROPPED = 0.15, 0.08  # shares of the words of an augmented text
NEIGHBOURS = 12
MIN_LETTERS_REPLACED = 4


@dataclass(frozen=True)
class SoftLabels:
    """`soft` (tickets, teams); with the encoder also `vectors` (tickets, 384) and augmented texts."""

    soft: np.ndarray
    vectors: np.ndarray | None = None
    augmented_texts: Sequence[str] = ()
    augmented_soft: np.ndarray | None = None
    augmented_vectors: np.ndarray | None = None


def soft_labels_for(
    texts: Sequence[str],
    targets: np.ndarray,
    teams: int,
    teacher: Teacher | None,
    *,
    augmented: int,
    seed: int,
) -> SoftLabels:
    """Soft labels for training `texts`; `targets` (tickets,) are ints below `teams`.

    The first `augmented` texts get one augmented copy each, if there is a `teacher`.
    """
    if teacher is None:
        return SoftLabels(_out_of_fold(texts, targets, teams, seed)[0])
    vectors = teacher.vectors(texts)
    augmented_texts = augment(texts[:augmented], teacher, seed)
    augmented_vectors = teacher.vectors(augmented_texts)
    soft, augmented_soft = _out_of_fold(
        texts,
        targets,
        teams,
        seed,
        vectors=vectors,
        augmented_texts=augmented_texts,
        augmented_vectors=augmented_vectors,
    )
    return SoftLabels(soft, vectors, augmented_texts, augmented_soft, augmented_vectors)


def _out_of_fold(
    texts: Sequence[str],
    targets: np.ndarray,
    teams: int,
    seed: int,
    *,
    vectors: np.ndarray | None = None,
    augmented_texts: Sequence[str] = (),
    augmented_vectors: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Soft labels of `texts` and of their augmented copies, by models that saw neither in training."""
    counts, counts_other = _empty(texts, teams), _empty(augmented_texts, teams)
    regression, regression_other = _empty(texts, teams), _empty(augmented_texts, teams)
    fold = stratified_folds(targets, group_numbers(map(template_key, texts)), FOLDS, seed)
    for number in np.unique(fold):
        seen, held_out = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        judge = _word_counts([texts[row] for row in seen.tolist()], targets[seen], teams)
        counts[held_out] = judge([texts[row] for row in held_out.tolist()])
        others = held_out[held_out < len(augmented_texts)]
        if len(others):
            counts_other[others] = judge([augmented_texts[row] for row in others.tolist()])
        if vectors is not None and augmented_vectors is not None:
            weight, bias = _regression(vectors[seen], targets[seen], teams)
            regression[held_out] = vectors[held_out] @ weight + bias
            regression_other[others] = augmented_vectors[others] @ weight + bias
    scale = max(float(counts.std()), 1e-6)
    if vectors is None:
        fits = [(*fit_temperature(counts / scale, targets), 0.0)]
    else:
        encoder_scale = max(float(regression.std()), 1e-6)
        regression, regression_other = regression / encoder_scale, regression_other / encoder_scale
        fits = [
            (*fit_temperature(counts / scale + share * regression, targets), share)
            for share in ENCODER_SHARES
        ]
    _, temperature, share = min(fits)
    return (
        _soften(counts / scale + share * regression, temperature),
        _soften(counts_other / scale + share * regression_other, temperature),
    )


def _empty(texts: Sequence[str], teams: int) -> np.ndarray:
    return np.zeros((len(texts), teams), dtype=np.float32)


def _word_counts(texts: list[str], targets: np.ndarray, teams: int):  # type: ignore[no-untyped-def]
    """A function from texts to scores (texts, teams)."""
    if len(only := np.unique(targets)) == 1:
        return lambda others: np.where(np.arange(teams) == only, 1, np.full((len(others), teams), -1.0))
    vectorizer = make_union(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=2),
    )
    machine = LinearSVC().fit(vectorizer.fit_transform(texts), targets)

    def judge(others: list[str]) -> np.ndarray:
        found = machine.decision_function(vectorizer.transform(others))
        scores = np.full((len(others), teams), -1.0, dtype=np.float32)  # -1 for a team that the fold lacks
        if len(machine.classes_) == 2:
            found = np.stack([-found, found], axis=1)
        scores[:, machine.classes_] = found
        return scores

    return judge


def _regression(vectors: np.ndarray, targets: np.ndarray, teams: int) -> tuple[np.ndarray, np.ndarray]:
    """Multinomial logistic regression, by L-BFGS: weight (384, teams) and bias (teams,)."""
    x, y = torch.from_numpy(vectors) * 10, torch.from_numpy(targets)  # unit vectors are small
    weight = torch.zeros(x.shape[1], teams, requires_grad=True)
    bias = torch.zeros(teams, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=150, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = functional.cross_entropy(x @ weight + bias, y) + 1e-5 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return 10 * (weight - weight.mean(1, keepdim=True)).detach().numpy(), (
        bias - bias.mean()
    ).detach().numpy()


def fit_temperature(scores: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """(cross-entropy with the labels, the temperature that makes it smallest)."""

    def loss(temperature: float) -> float:
        right = calibrated(scores, temperature)[np.arange(len(targets)), targets]
        return -float(np.log(np.maximum(right, 1e-300)).mean())

    found = minimize_scalar(loss, bounds=(0.05, 5.0), method="bounded")
    return float(found.fun), float(found.x)


def _soften(scores: np.ndarray, temperature: float) -> np.ndarray:
    return calibrated(scores, temperature).astype(np.float32)


def augment(texts: Sequence[str], teacher: Teacher, seed: int) -> list[str]:
    """A copy of each text with some words replaced by a near neighbour and some dropped."""
    generator = np.random.default_rng((seed, 1))
    split = [words(text) for text in texts]
    seen = {word for text in split for word in text}
    near = neighbours(sorted(word for word in seen if len(word) >= MIN_LETTERS_REPLACED), teacher)
    return [_augment(text, near, generator) for text in split]


def _augment(text: list[str], near: dict[str, list[str]], generator: np.random.Generator) -> str:
    kept: list[str] = []
    for word, draw in zip(text, generator.random(len(text)), strict=True):
        if draw < REPLACED and word in near:
            kept.append(near[word][generator.integers(len(near[word]))])
        elif draw < 1 - DROPPED or len(text) <= MIN_LETTERS_REPLACED:
            kept.append(word)
    return " ".join(kept or text)


def neighbours(chosen: Sequence[str], teacher: Teacher) -> dict[str, list[str]]:
    """The most similar words by the encoder's vectors, for those chosen words that the encoder lists."""
    table = teacher.word_vectors(teacher.words)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    row = {word: number for number, word in enumerate(teacher.words)}
    known = [word for word in chosen if word in row]
    near: dict[str, list[str]] = {}
    for start in range(0, len(known), 1024):
        piece = known[start : start + 1024]
        likeness = table[[row[word] for word in piece]] @ table.T
        nearest = np.argpartition(-likeness, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        for word, found in zip(piece, nearest, strict=True):
            near[word] = [teacher.words[other] for other in found if teacher.words[other] != word]
    return near
