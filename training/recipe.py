"""A recipe: every setting of a training run, read from a file of `training/recipes/`."""

import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path

FOLDER = Path(__file__).parent / "recipes"


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

    def to_json(self) -> dict:
        return asdict(self)


def recipe_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_recipe(name: str, **changes: int | float) -> Recipe:
    """The recipe of that name (or of that TOML file), with `changes` to single settings.

    Raises ValueError that names what exists, what is missing or what is unknown.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        raise ValueError(f"no recipe {name!r}; there are: {', '.join(recipe_names())}, or a .toml file")
    settings = {**tomllib.loads(path.read_text(encoding="utf-8")), **changes}
    known = {field.name for field in fields(Recipe)} - {"name"}
    unknown, missing = sorted(set(settings) - known), sorted(known - set(settings))
    if unknown or missing:
        raise ValueError(f"{path.name}: unknown settings {unknown}, missing settings {missing}")
    return Recipe(name=path.stem, **settings)
