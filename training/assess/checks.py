"""Checks of a training run: baselines, robustness and label errors."""

from dataclasses import dataclass, field

from models.bundle import Bundle
from training.assess.baselines import Baseline, fit_baselines
from training.assess.evaluation import answer
from training.assess.label_errors import Suspect, find_suspects
from training.assess.robustness import Predict, Robustness, measure
from training.data.dataset import Dataset

OFTEN_WRONG = 0.1


@dataclass(frozen=True)
class Checks:
    """Baselines, robustness of all routers, suspected label errors; empty when the run skips them."""

    baselines: list[Baseline] = field(default_factory=list)
    robustness: list[Robustness] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)

    @property
    def doubt(self) -> str:
        """A warning if the word-count models that find the suspects are often wrong themselves, else ""."""
        wrong = 1 - max((baseline.accuracy for baseline in self.baselines), default=1.0)
        if wrong < OFTEN_WRONG or not self.suspects:
            return ""
        return f"the word counts that find these tickets are wrong on {wrong:.0%} of the validation tickets"


def check(bundle: Bundle, dataset: Dataset, seed: int) -> Checks:
    """Baselines on the same split, robustness of all routers, and suspected label errors."""
    print("word-count baselines, typing errors, long tickets, label errors …")
    baselines = fit_baselines(dataset.train, dataset.valid, seed)
    routers: list[tuple[str, Predict]] = [("transformer", lambda texts: answer(bundle, texts).teams)]
    routers += [(baseline.name, baseline.predict) for baseline in baselines]
    robustness = [measure(name, predict, dataset.valid, seed) for name, predict in routers]
    return Checks(baselines, robustness, find_suspects(dataset.checked, seed))
