"""A recipe: every setting of a training run, read from a file of `training/recipes/`."""

import difflib
import math
import tomllib
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

FOLDER = Path(__file__).parent / "recipes"
LARGEST_SEED = 2**31 - 1
MOST_EPOCHS = 10_000
# (minimum, maximum) of a setting. Others are at least 0; dropouts are at most BELOW_ONE[1].
BOUNDS: dict[str, tuple[float, float]] = {
    "min_count": (1, 1_000_000),
    "max_tokens": (1, 1_000_000),
    "d": (1, 4096),
    "heads": (1, 4096),
    "blocks": (1, 100),
    "feed_forward": (1, 65_536),
    "epochs": (1, MOST_EPOCHS),
    "batch_size": (1, 1_000_000),
    "learning_rate": (1e-9, 10),
    "seed": (0, LARGEST_SEED),
    "bigrams": (0, 2**24),
    "wide": (0, 65_536),
    "window": (0, 1_000_000),
    "whole": (0, 1_000_000),
    "counts": (0, 2**24),
    "pieces": (0, 1_000_000),
    "label_smoothing": (0, 0.99),
    "ema_decay": (0, 0.999999),
    "soft_labels": (0, 1),
}
BELOW_ONE = (0, 0.99)
RENAMED = {  # old names of settings, for recipe files written for an earlier version
    "average": "ema_decay",
    "matching": "vector_loss",
    "most_taught": "max_teacher_tokens",
    "most_tokens": "max_train_tokens",
    "prose": "outlier_exposure",
    "word_dropout": "token_dropout",
}


class RecipeError(ValueError):
    """The recipe does not exist or has an invalid setting."""


@dataclass(frozen=True)
class Recipe:
    """The settings of one training run; the comments in the recipe files explain each."""

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
    # Optional: off unless the recipe file sets them.
    positions: Literal["learned", "relative"] = "learned"
    bigrams: int = 0
    wide: int = 0
    embedding_dropout: float = 0.0
    bigram_dropout: float = 0.0
    head_dropout: float = 0.0
    token_dropout: float = 0.0
    window: int = 0
    whole: int = 0
    pieces: int = 0
    counts: int = 0
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    ema_decay: float = 0.0
    teacher: Literal["none", "words", "encoder"] = "none"
    soft_labels: float = 0.0
    vector_loss: float = 0.0
    max_teacher_tokens: int = 0
    outlier_exposure: float = 0.0
    max_train_tokens: int = 0

    def to_json(self) -> dict:
        return asdict(self)


def recipe_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_recipe(name: str, **changes: int | float) -> Recipe:
    """The recipe with this name (or from this TOML file), with `changes` to single settings.

    Raises RecipeError for an unknown recipe, and with a list of all settings that are missing, unknown or out
    of range.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    names = recipe_names()
    if not path.is_file() or (not name.endswith(".toml") and name not in names):
        near = difflib.get_close_matches(name, names, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise RecipeError(f"no recipe {name!r}{meant}; use one of {', '.join(names)}, or a .toml file")
    try:
        settings = {**tomllib.loads(path.read_text(encoding="utf-8")), **changes}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path.name}: not a TOML file: {error}") from None
    faults = _faults(settings)
    if faults:
        raise RecipeError("\n".join([f"{path.name} is not a recipe:", *(f"  - {fault}" for fault in faults)]))
    return Recipe(name=path.stem, **settings)


def _faults(settings: dict[str, Any]) -> list[str]:
    """One message for each setting that is missing, unknown, renamed or out of range."""
    kinds = {name: kind for name, kind in get_type_hints(Recipe).items() if name != "name"}
    needed = [one.name for one in fields(Recipe) if one.default is MISSING and one.name != "name"]
    faults = [f"the setting {name!r} is missing" for name in needed if name not in settings]
    for name, value in settings.items():
        if name in RENAMED:
            faults.append(f"the setting {name!r} is now called {RENAMED[name]!r}")
        elif name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            faults.append(f"there is no setting {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
        elif expected := _expected(name, kinds[name], value):
            faults.append(f"{name} = {value!r}: expected {expected}")
    if not faults and settings["d"] % settings["heads"]:
        faults.append(f"heads = {settings['heads']}: d = {settings['d']} must be a multiple of it")
    return faults


def _expected(name: str, kind: Any, value: Any) -> str:
    """What the setting must be, or "" if the value is valid."""
    choices = get_args(kind)
    if choices:
        return "" if value in choices else f"one of {', '.join(map(repr, choices))}"
    least, most = BOUNDS.get(name, BELOW_ONE if name.endswith("dropout") else (0, math.inf))
    numeric = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if numeric and math.isfinite(value) and least <= value <= most:
        return ""
    upper = f" to {most:,}" if most < math.inf else " up"
    return f"a {'whole number' if kind is int else 'number'} from {least:,}{upper}"
