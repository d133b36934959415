"""Labelled tickets, checked and split before anything is trained.

All faults are collected before anything is reported. Faults that would make the training or its figures
wrong stop the run. Rows that cannot be used are dropped, and counted with their numbers. Other faults are
only reported. A share of dropped rows above `max_dropped` also stops the run, because the file is then
probably not the expected one.
"""

import difflib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from models.tickets.columns import Columns
from models.tickets.faults import DataError, Fault, Faults, printable
from models.tickets.rows import SUFFIXES
from training.data.corrections import apply_corrections
from training.data.leaks import warn_leaks
from training.data.splits import split_by_text, split_by_time
from training.data.templates import first_of_each, text_key
from training.data.tickets import Tickets, clean_columns, read_tickets

__all__ = [
    "Columns",
    "DataError",
    "Dataset",
    "Fault",
    "Faults",
    "Tickets",
    "clean_columns",
    "fingerprint",
    "load_dataset",
    "read_tickets",
    "text_key",
]

VALID_NAMES = ("valid", "validation", "val", "dev")
# (for fewer tickets than this, share to validate on); few steps, so that a growing file seldom crosses one.
VALID_SHARES = ((3_000, 0.2), (5_000, 0.15))
LEAST_VALID_SHARE = 0.1


@dataclass(frozen=True)
class Dataset:
    """A checked data set; `teams` are in the order of the network's outputs."""

    train: Tickets
    valid: Tickets
    teams: tuple[str, ...]
    faults: Faults
    valid_share: float | None = None  # share of the file to validate on; None if there is a validation file

    def with_distinct_valid(self) -> "Dataset":
        """The same with each validation text once, because copies of a ticket are not independent."""
        first = first_of_each(self.valid.text_groups)
        return replace(self, valid=self.valid.select(first.tolist()))

    @property
    def checked(self) -> Tickets:
        """The tickets whose labels are checked: the training tickets, then the validation tickets."""
        return self.train.followed_by(self.valid)


def load_dataset(
    data: Path,
    valid: Path | None = None,
    *,
    columns: Columns | None = None,
    min_tickets: int = 5,
    valid_share: float | None = None,
    max_dropped: float = 0.05,
    encoding: str | None = None,
    skip_rows: int = 0,
    corrections: Path | None = None,
) -> Dataset:
    """Read, check and split labelled tickets.

    `data` is a file, or a folder with train and valid files (or with one file). Without a validation file,
    about `valid_share` of the tickets (None: see `default_valid_share`) are validated on: chosen by a hash of
    their texts, or the newest if `columns` names a time. Tickets of one template stay on one side.
    Teams with fewer than `min_tickets` training tickets are dropped. `corrections` is a table of
    `training.data.corrections`, for tickets of both sides. Raises DataError with a list of all faults.
    """
    columns = columns or Columns()
    faults = Faults()
    train_path, valid_path = find_files(Path(data), Path(valid) if valid else None)
    if valid_path and columns.time:
        raise DataError(
            f"there is a validation file, {valid_path}: omit --time-column, or move that file away"
        )
    train = read_tickets(train_path, columns, faults, encoding, skip_rows)
    known = read_tickets(valid_path, columns, faults, encoding, skip_rows) if valid_path else None
    for path, tickets in ((train_path, train), (valid_path, known)):
        if path and tickets:
            _check_dropped(path.name, len(tickets), max_dropped, faults)
    if corrections:
        before = set(train.teams)
        parts = [train] if known is None else [train, known]
        train, *rest = apply_corrections(parts, Path(corrections), faults)
        known = rest[0] if rest else None
        _warn_new_teams(set(train.teams) - before, before, Path(corrections).name, faults)
    train, rare = _drop_rare_teams(train, min_tickets, faults)
    _check_teams(train, rare, min_tickets, faults)
    if known is not None:
        known = _check_valid_teams(train, known, rare, faults)
        train = _drop_leaks(train, known, faults)
        _warn_shared_ids(train, known, faults)
    _warn_conflicts(train, faults)
    warn_leaks(train, faults)
    faults.stop_if_fatal()
    teams = tuple(sorted(set(train.teams)))
    share = None
    if known is None:
        share = default_valid_share(len(train)) if valid_share is None else valid_share
        train, known = (split_by_time if columns.time else split_by_text)(train, share)
    if not len(known):
        detail = "no ticket is left to validate on: each team needs two different texts, or use --valid"
        faults.add("empty_validation", train.file, "stops", detail)
        faults.stop_if_fatal()
    return Dataset(train, known, teams, faults, share)


def find_files(data: Path, valid: Path | None) -> tuple[Path, Path | None]:
    """The training file and the validation file, if there is one."""
    for path in (data, valid):
        if path and not path.exists():
            raise DataError(f"{path}: no such file or folder")
    if valid and valid.is_dir():
        raise DataError(f"{valid}: is a folder; --valid needs a file ({', '.join(SUFFIXES)})")
    if data.is_file():
        if valid and valid.samefile(data):
            raise DataError(f"{valid}: is also the training file; omit --valid to validate on a share of it")
        return data, valid
    if not data.is_dir():
        raise DataError(f"{data}: is neither a file nor a folder")
    files = sorted(path for path in data.iterdir() if path.suffix.lower() in SUFFIXES)
    train = [path for path in files if path.stem.lower() == "train"] or (files if len(files) == 1 else [])
    if len(train) != 1:
        found = ", ".join(path.name for path in files[:10]) or "none of these"
        raise DataError(
            f"{data}: expected one file of tickets, or several, one of them named train "
            f"({', '.join(SUFFIXES)}); found: {found}{', …' if len(files) > 10 else ''}"
        )
    beside = [path for path in files if path.stem.lower() in VALID_NAMES]
    return train[0], valid or (beside[0] if beside else None)


def _check_dropped(file: str, kept: int, max_dropped: float, faults: Faults) -> None:
    dropped = faults.dropped(file)
    if dropped > max_dropped * (kept + dropped):
        share = dropped / (kept + dropped)
        detail = f"{share:.0%} of its rows would be dropped (--max-dropped allows {max_dropped:.0%})"
        faults.add("too_many_dropped", file, "stops", detail)


def _warn_new_teams(new: set[str], before: set[str], file: str, faults: Faults) -> None:
    if new:
        detail = f"a corrected team that no ticket had before: {team_names(new)}{_suggestion(new, before)}"
        faults.add("new_team", file, "keeps", detail)


def _drop_rare_teams(train: Tickets, min_tickets: int, faults: Faults) -> tuple[Tickets, set[str]]:
    counts = Counter(train.teams)
    rare = {team for team, count in counts.items() if count < min_tickets}
    detail = f"a team with fewer than {min_tickets} tickets: {team_names(rare)}"
    for row, team in zip(train.rows, train.teams, strict=True):
        if team in rare:
            faults.add("rare_team", train.file, "drops", detail, row)
    _warn_look_alikes(counts, train.file, faults)
    return train.select(i for i, team in enumerate(train.teams) if team not in rare), rare


def _check_teams(train: Tickets, rare: set[str], min_tickets: int, faults: Faults) -> None:
    """Add a fatal fault, with the reason, unless there are at least two teams."""
    teams = set(train.teams)
    if len(teams) > 1 or faults.fatal:
        return
    if rare:
        left = f"only {team_names(teams)} has" if teams else "no team has"
        detail = f"{left} at least {min_tickets} tickets (--min-tickets), and at least 2 teams are needed"
    else:
        detail = (
            f"all tickets have the same team, {team_names(teams)}, and at least 2 teams are needed "
            "(is --team-column the right one?)"
        )
    faults.add("too_few_teams", train.file, "stops", detail)


def _warn_look_alikes(counts: Counter, file: str, faults: Faults) -> None:
    spellings: dict[str, list[str]] = defaultdict(list)
    for team in counts:
        spellings[team.casefold()].append(team)
    alike = [team for group in spellings.values() if len(group) > 1 for team in group]
    if alike:
        faults.add("look_alike_teams", file, "keeps", f"teams that differ only in case: {team_names(alike)}")


def _check_valid_teams(train: Tickets, valid: Tickets, rare: set[str], faults: Faults) -> Tickets:
    """Add a fatal fault for teams without training tickets; drop tickets of teams that were too rare."""
    known = set(train.teams)
    unknown = set(valid.teams) - known - rare
    detail = f"a team without training tickets: {team_names(unknown)}{_suggestion(unknown, known)}"
    for row, team in zip(valid.rows, valid.teams, strict=True):
        if team in rare:
            faults.add("rare_team", valid.file, "drops", "a team dropped from training", row)
        elif team in unknown and known:
            faults.add("unknown_team", valid.file, "stops", detail, row)
    return valid.select(i for i, team in enumerate(valid.teams) if team in known)


def _suggestion(unknown: Iterable[str], known: Iterable[str]) -> str:
    for team in sorted(unknown):
        near = difflib.get_close_matches(team, sorted(known), n=1)
        if near:
            return f"; did you mean {near[0]!r}?"
    return ""


def _drop_leaks(train: Tickets, valid: Tickets, faults: Faults) -> Tickets:
    """Drop training tickets whose text is also in the validation file; they would inflate its figures."""
    held_out = {text_key(text) for text in valid.texts}
    leaks = {i for i, text in enumerate(train.texts) if text_key(text) in held_out}
    for index in sorted(leaks):
        detail = f"a text that is also in {valid.file}"
        faults.add("leaked_text", train.file, "drops", detail, train.rows[index])
    if leaks and set(train.teams) != {team for i, team in enumerate(train.teams) if i not in leaks}:
        detail = f"without the texts that are also in {valid.file}, a team has no training ticket left"
        faults.add("nothing_left", train.file, "stops", detail)
    return train.select(i for i in range(len(train)) if i not in leaks) if leaks else train


def _warn_shared_ids(train: Tickets, valid: Tickets, faults: Faults) -> None:
    named = {given for given in valid.ids if not given.startswith("row ")}
    for row, given in zip(train.rows, train.ids, strict=True):
        if given in named:
            faults.add("shared_id", train.file, "keeps", f"an id that is also in {valid.file}", row)


def _warn_conflicts(train: Tickets, faults: Faults) -> None:
    first: dict[bytes, str] = {}
    for row, text, team in zip(train.rows, train.texts, train.teams, strict=True):
        if first.setdefault(text_key(text), team) != team:
            detail = "the text of an earlier row, but another team"
            faults.add("conflicting_teams", train.file, "keeps", detail, row)


def team_names(teams: Iterable[str]) -> str:
    """The first ten of the teams, for a message."""
    shown = sorted(set(teams))
    return ", ".join(f"'{printable(team, 60)}'" for team in shown[:10]) + (", …" if len(shown) > 10 else "")


def default_valid_share(tickets: int) -> float:
    """A fifth of a small file and a tenth of a large one: at least about 500 tickets if there are enough.

    Confidence and thresholds are estimated from the validation tickets alone.
    """
    return next((share for fewer_than, share in VALID_SHARES if tickets < fewer_than), LEAST_VALID_SHARE)


def fingerprint(tickets: Tickets) -> str:
    """sha256 over ids, texts and teams in order; equal for two runs on the same tickets."""
    digest = hashlib.sha256()
    for values in zip(tickets.ids, tickets.texts, tickets.teams, strict=True):
        digest.update("\x1f".join(values).encode("utf-8", "surrogatepass") + b"\x1e")
    return digest.hexdigest()
