"""A recipe: every setting of a training run, read from a file of `training/recipes/`."""

import tomllib
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent / "recipes"


class RecipeError(ValueError):
    """A recipe that does not exist or cannot be used."""


@dataclass(frozen=True)
class Recipe:
    """The settings of one training run; what each means stands beside it in the recipe files."""

    name: str
    min_count: int
    max_tokens: int
    d: int
    heads: int
    blocks: int
    feed_forward: int
    dropout: float
    attention_dropout: float
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    # What the course has not: left out of a recipe file, it is not used.
    positions: Literal["learned", "relative"] = "learned"
    bigrams: int = 0
    wide: int = 0
    embedding_dropout: float = 0.0
    bigram_dropout: float = 0.0
    head_dropout: float = 0.0
    word_dropout: float = 0.0
    window: int = 0
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    average: float = 0.0
    teacher: Literal["none", "words", "encoder"] = "none"
    soft_labels: float = 0.0
    matching: float = 0.0
    most_taught: int = 0
    prose: float = 0.0
    most_tokens: int = 0

    def to_json(self) -> dict:
        return asdict(self)


def recipe_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_recipe(name: str, **changes: int | float) -> Recipe:
    """The recipe of that name (or of that TOML file), with `changes` to single settings.

    Raises RecipeError that names what exists, what is missing or what is unknown.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        raise RecipeError(f"no recipe {name!r}; there are: {', '.join(recipe_names())}, or a .toml file")
    settings = {**tomllib.loads(path.read_text(encoding="utf-8")), **changes}
    known = {field.name: field.default for field in fields(Recipe) if field.name != "name"}
    needed = {name for name, default in known.items() if default is MISSING}
    unknown, missing = sorted(set(settings) - known.keys()), sorted(needed - set(settings))
    if unknown or missing:
        raise RecipeError(f"{path.name}: unknown settings {unknown}, missing settings {missing}")
    return Recipe(name=path.stem, **settings)
