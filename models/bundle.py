"""The bundle: the folder that training writes and serving reads.

    model.onnx       the network
    tokenizer.json   text to ids
    config.json      teams, thresholds and other settings for serving; the sha256 of every other file
    MODEL_CARD.md    what the model was trained on, how good it is and where it fails
    dictionaries.json          optional: words of other languages (models.dictionaries)
    report.html, report.json   optional

A bundle is written into a temporary folder, flushed to disk and renamed into place. A reader opens the folder
once, checks every file against its sha256 in config.json (which contains a digest of itself), and runs the
graph once. An invalid bundle raises `BundleError` with the file and the reason. Nothing is pickled.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import onnxruntime
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.dictionaries import NAMES, Dictionaries
from models.scope import Scope
from models.tokenizer import Tokenizer
from models.tradeoff import PrecisionError, Thresholds, Tradeoff

SCHEMA_VERSION = 2  # 1: without the trade-off
READABLE_VERSIONS = (1, 2)
MODEL, TOKENIZER, CONFIG, CARD = "model.onnx", "tokenizer.json", "config.json", "MODEL_CARD.md"
REQUIRED = (MODEL, TOKENIZER, CARD)
DICTIONARIES = "dictionaries.json"
OPTIONAL = (DICTIONARIES, "report.html", "report.json")
UNSEALED = "0" * 64


class BundleError(ValueError):
    """The folder is not a valid bundle; `file` and `reason` say why."""

    def __init__(self, file: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{os.fspath(file)}: {reason}")
        self.file = os.fspath(file)
        self.reason = reason


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class BundleConfig(_Strict):
    """The content of config.json. `digest` and `sha256` are filled in by `write_bundle`."""

    schema_version: int = SCHEMA_VERSION
    name: Annotated[str, Field(min_length=1, max_length=200)]
    version: Annotated[str, Field(min_length=1, max_length=200)]
    teams: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=2)]
    max_tokens: Annotated[int, Field(ge=1)]
    window: Annotated[int, Field(ge=0)] = 0  # tokens per window (models.windows); 0: no windows
    whole: Annotated[int, Field(ge=0)] = 0  # tickets of up to this many tokens are read whole
    # how `whole` was chosen: long tickets right, read whole and in windows
    reading: list[dict[str, float]] = []
    vocab_size: Annotated[int, Field(ge=2)]
    temperature: Annotated[float, Field(gt=0)]
    exponent: Annotated[float, Field(gt=0)] = 1.0  # of the gaps between logits (models.decision)
    thresholds: Thresholds
    tradeoff: Tradeoff | None = None  # what other precisions would route
    out_of_scope: Scope = Scope()
    # codes of the transferred languages (models.dictionaries) that are routed, not only suggested
    route_languages: list[str] = []
    reference: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    fingerprint: str = ""
    libraries: dict[str, str] = {}
    metrics: dict[str, Any] = {}
    sha256: dict[str, str] = {}
    digest: str = UNSEALED

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.teams)) != len(self.teams):
            raise ValueError("teams must differ from each other")
        if 0 < self.window < 4:
            raise ValueError("a window of fewer than 4 tokens cannot be halved twice")
        if self.thresholds.teams and len(self.thresholds.teams) != len(self.teams):
            raise ValueError("thresholds.teams must have one threshold for each team")
        if self.tradeoff is not None and len(self.tradeoff.team_tickets) != len(self.teams):
            raise ValueError("tradeoff must have figures for each team")
        if unknown := [code for code in self.route_languages if code not in NAMES]:
            raise ValueError(f"route_languages has {unknown[0]!r}; known are: {', '.join(NAMES)}")
        return self


# A bundle's files are a few megabytes; a much larger one is a mistake and would fill the memory.
MOST_FILE_BYTES = 128 << 20


@dataclass(frozen=True)
class Bundle:
    """A verified bundle, ready to run: `session` takes `input_ids` and gives `logits`."""

    folder: Path
    config: BundleConfig
    tokenizer: Tokenizer
    session: onnxruntime.InferenceSession

    def with_config(self, **changes: Any) -> Bundle:
        """The same bundle with changes to its config, which are validated."""
        return replace(self, config=BundleConfig.model_validate({**dict(self.config), **changes}))


# ---------------------------------------------------------------------------------------------- write


def write_bundle(
    folder: str | os.PathLike[str],
    *,
    model: bytes | Path,
    tokenizer_json: str,
    config: BundleConfig,
    model_card: str,
    reports: Mapping[str, str] | None = None,
) -> BundleConfig:
    """Write a bundle atomically: at all times `folder` is the complete old or the complete new bundle.

    `reports` maps the names of optional files to their content. An existing folder is replaced only if it
    is empty or a bundle. Returns the config as written. Raises BundleError, without changing anything, if the
    bundle is invalid or the folder may not be replaced.
    """
    target = Path(folder)
    files: dict[str, bytes] = {
        MODEL: model if isinstance(model, bytes) else Path(model).read_bytes(),
        TOKENIZER: tokenizer_json.encode(),
        CARD: model_card.encode(),
        **{name: content.encode() for name, content in (reports or {}).items()},
    }
    for name in files.keys() - {*REQUIRED, *OPTIONAL}:
        raise BundleError(name, "is not part of a bundle")
    check_replaceable(target)
    sealed = config.model_copy(update={"sha256": {name: _sha256(data) for name, data in files.items()}})
    files[CONFIG], sealed = seal(sealed)

    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        temporary.chmod(0o755)
        for name, data in files.items():
            _write_through(temporary / name, data)
        verify_bundle(temporary)
        _flush(temporary)
        _put_in_place(temporary, target)
        _flush(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sealed


def seal(config: BundleConfig) -> tuple[bytes, BundleConfig]:
    """The bytes of config.json and the config with its digest.

    The digest is the sha256 of the file with 64 zeros in place of the digest.
    """
    blank = config.model_copy(update={"digest": UNSEALED})
    data = json.dumps(blank.model_dump(), indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    digest = _sha256(data)
    head, _, tail = data.rpartition(UNSEALED.encode())
    return head + digest.encode() + tail, config.model_copy(update={"digest": digest})


def check_replaceable(target: Path) -> None:
    """BundleError unless `target` is an empty folder, a bundle or a new name."""
    if target.is_symlink():
        raise BundleError(target, "is a symbolic link; name the folder that the bundle should be written to")
    if not target.exists():
        return
    if not target.is_dir():
        raise BundleError(target, "is a file; a bundle is a folder")
    others = sorted({path.name for path in target.iterdir()} - {CONFIG, *REQUIRED, *OPTIONAL})
    if others:
        raise BundleError(
            target,
            f"contains {others[0]!r}, which is not part of a bundle; choose another folder",
        )


def _write_through(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Flush the directory entries to disk, on platforms that can open a folder."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _put_in_place(temporary: Path, target: Path) -> None:
    """Rename, or exchange two folders in one step where the system can (Linux's RENAME_EXCHANGE)."""
    if not target.exists():
        temporary.rename(target)
    elif not _exchange(temporary, target):
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            target.rename(aside / "old")
            temporary.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    current_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of <linux/fs.h>
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(rename(current_folder, os.fsencode(one), current_folder, os.fsencode(other), exchange) == 0)


# ----------------------------------------------------------------------------------------------- read


def verify_bundle(folder: str | os.PathLike[str]) -> BundleConfig:
    """Check a bundle and return its config; BundleError names the first invalid file."""
    return load_bundle(folder).config


def load_bundle(
    folder: str | os.PathLike[str],
    *,
    session_options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
) -> Bundle:
    """Read, verify and open a bundle. Each file is read once: the verified bytes are those that run."""
    files = _read_files(Path(folder))
    if CONFIG not in files:
        raise BundleError(CONFIG, f"is missing from {os.fspath(folder)}")
    config = _parse_config(files.pop(CONFIG))
    for name in sorted({*REQUIRED, *config.sha256} - files.keys()):
        raise BundleError(name, f"is missing from {os.fspath(folder)}")
    for name in sorted(files.keys() - config.sha256.keys()):
        raise BundleError(name, f"is not listed in {CONFIG}")
    for name, expected in config.sha256.items():
        if _sha256(files[name]) != expected:
            raise BundleError(name, f"has another sha256 than {CONFIG} lists: it was changed or damaged")
    tokenizer = _open_tokenizer(files[TOKENIZER], config)
    if DICTIONARIES in files:
        tokenizer.dictionaries = _open_dictionaries(files[DICTIONARIES], tokenizer)
    session = _open_session(files[MODEL], config, session_options, providers)
    return Bundle(Path(folder), config, tokenizer, session)


def _read_files(folder: Path) -> dict[str, bytes]:
    """The content of every file that is not hidden, from one version of the folder.

    If the folder is replaced during reading, the new one is read instead.
    """
    for _ in range(10):
        descriptor = _open_folder(folder)
        try:
            files = _read_listed(descriptor)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return files
        except FileNotFoundError:
            pass  # the folder was replaced during reading
        finally:
            os.close(descriptor)
    raise BundleError(folder, "changed during each of 10 attempts to read it; try again")


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise BundleError(folder, "does not exist") from None
    except NotADirectoryError:
        raise BundleError(folder, "is a file; a bundle is a folder") from None
    except OSError as error:
        raise BundleError(folder, f"cannot be opened: {error.strerror}") from None


def _read_listed(folder: int) -> dict[str, bytes]:
    names = sorted(name for name in os.listdir(folder) if name[0] != ".")
    if CONFIG not in names:  # not a bundle: do not read its files
        return {}
    return {name: _read_file(name, folder) for name in names}


def _read_file(name: str, folder: int) -> bytes:
    """A regular file's content; a link might lead out of the bundle, and a pipe might block forever."""
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise BundleError(name, "is not a regular file")
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except PermissionError as error:
        raise BundleError(name, f"cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(MOST_FILE_BYTES + 1)
    if len(content) > MOST_FILE_BYTES:
        raise BundleError(
            name, f"is larger than {MOST_FILE_BYTES >> 20} MB, more than a bundle's file may be"
        )
    return content


def _parse_config(data: bytes) -> BundleConfig:
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BundleError(CONFIG, f"is not JSON: {error}") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if type(version) is not int or version not in READABLE_VERSIONS:
        raise BundleError(CONFIG, f"has schema version {version!r}; this program reads 1 to {SCHEMA_VERSION}")
    try:
        config = BundleConfig.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "config"
        raise BundleError(CONFIG, f"{place}: {first['msg']}") from None
    if _sha256(data.replace(config.digest.encode(), UNSEALED.encode())) != config.digest:
        raise BundleError(CONFIG, "does not match its own digest: it was changed or damaged")
    return config


def _open_tokenizer(data: bytes, config: BundleConfig) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_json(data.decode("utf-8"), config.max_tokens)
    except ValueError as error:
        raise BundleError(TOKENIZER, str(error)) from None
    if tokenizer.vocab_size != config.vocab_size:
        expected = f"{CONFIG} says {config.vocab_size}"
        raise BundleError(TOKENIZER, f"has {tokenizer.vocab_size} vocabulary entries, {expected}")
    return tokenizer


def _open_dictionaries(data: bytes, tokenizer: Tokenizer) -> Dictionaries:
    try:
        return Dictionaries.from_json(data.decode("utf-8"), tokenizer.vocabulary)
    except ValueError as error:
        raise BundleError(DICTIONARIES, str(error)) from None


def with_precision(bundle: Bundle, precision: float | None) -> Bundle:
    """The bundle with the thresholds of another precision; unchanged if that is None.

    BundleError if the bundle has no trade-off, or if its validation tickets cannot show the precision.
    """
    if precision is None:
        return bundle
    tradeoff = bundle.config.tradeoff
    if tradeoff is None:
        kept = bundle.config.thresholds.precision
        raise BundleError(
            CONFIG, f"has only one threshold, for a precision of {kept:g}; train again to choose another"
        )
    try:
        thresholds = tradeoff.thresholds(precision)
    except PrecisionError as error:
        raise BundleError(CONFIG, str(error)) from None
    if thresholds.confidence is None:
        raise BundleError(CONFIG, tradeoff.caution(precision))
    return bundle.with_config(thresholds=thresholds)


def with_route_languages(bundle: Bundle, codes: str) -> Bundle:
    """The bundle that routes tickets in these languages ("fr,de"); unchanged if there are none.

    BundleError if the bundle has no dictionary of one of them.
    """
    chosen = [code.strip() for code in codes.split(",") if code.strip()]
    held = bundle.tokenizer.dictionaries
    listed = sorted(held.foreign) if held else []
    if missing := [code for code in chosen if code not in listed]:
        offered = ", ".join(listed) or "none"
        raise BundleError(DICTIONARIES, f"has no dictionary of {missing[0]!r}; there are: {offered}")
    return bundle.with_config(route_languages=chosen) if chosen else bundle


def quiet_options() -> onnxruntime.SessionOptions:
    """Default options without the warning about the default value of `with_attention`, which is intended."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


def _open_session(
    data: bytes,
    config: BundleConfig,
    options: onnxruntime.SessionOptions | None,
    providers: Sequence[Any],
) -> onnxruntime.InferenceSession:
    options = quiet_options() if options is None else options
    try:
        session = onnxruntime.InferenceSession(data, options, providers=list(providers))
    except Exception as error:  # the runtime's exceptions share no base class
        raise BundleError(MODEL, f"is not a graph that ONNX Runtime can open: {error}") from None
    inputs = [(node.name, node.type, len(node.shape)) for node in session.get_inputs()]
    if inputs != [("input_ids", "tensor(int64)", 2)]:
        raise BundleError(MODEL, f"must take input_ids int64 (batch, tokens), takes {inputs}")
    outputs = {node.name: node.type for node in session.get_outputs()}
    if outputs.get("logits") != "tensor(float)" or outputs.keys() - {"logits", "attention", "effects"}:
        expected = "logits and, optionally, attention and effects in float32"
        raise BundleError(MODEL, f"must give {expected}; gives {outputs}")
    _try_session(session, config)
    return session


def _try_session(session: onnxruntime.InferenceSession, config: BundleConfig) -> None:
    """Run two short tickets, one of them padded, and the longest ticket the bundle allows."""
    pair = np.array([[config.vocab_size - 1, 1, 1], [1, 0, 0]], np.int64)
    at_a_time = max(config.window, config.whole) or config.max_tokens
    longest = np.ones((1, min(config.max_tokens, at_a_time)), np.int64)
    for ids in (pair, longest):
        (logits,) = _run(session, ["logits"], {"input_ids": ids})
        if logits.shape != (len(ids), len(config.teams)):
            expected = f"{CONFIG} names {len(config.teams)} teams"
            raise BundleError(
                MODEL, f"gives logits of shape {logits.shape} for {len(ids)} tickets, {expected}"
            )
        if not np.isfinite(logits).all():
            raise BundleError(MODEL, "gives logits that are not finite numbers")
    if "attention" in {node.name for node in session.get_outputs()}:
        feed = {"input_ids": pair, "with_attention": np.array(True)}
        (weights,) = _run(session, ["attention"], feed)
        if weights.ndim != 5 or weights.shape[0] != 2 or weights.shape[3:] != (3, 3):
            raise BundleError(MODEL, f"gives attention of shape {weights.shape} for two tickets of 3 tokens")
    if "effects" in {node.name for node in session.get_outputs()}:
        contrast = np.ones((1, len(config.teams)), np.float32)
        (effects,) = _run(session, ["effects"], {"input_ids": pair, "contrast": contrast})
        if effects.shape != (2, 3):
            raise BundleError(MODEL, f"gives effects of shape {effects.shape} for two tickets of 3 tokens")


def _run(
    session: onnxruntime.InferenceSession, outputs: list[str], feed: dict[str, np.ndarray]
) -> list[np.ndarray]:
    try:
        return session.run(outputs, feed)
    except Exception as error:
        sizes = " x ".join(str(size) for size in feed["input_ids"].shape)
        raise BundleError(MODEL, f"cannot give {outputs[0]} for {sizes} ids: {error}") from None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
