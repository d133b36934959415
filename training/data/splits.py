"""Splits tickets into training and validation, by a hash of their templates or by time, and into folds.

A ticket's side depends on its own text (or time) only, so that correcting, adding or dropping other tickets
does not move it. Tickets of one template (`templates.template_key`) stay together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from sklearn.model_selection import StratifiedKFold

from training.data.templates import first_of_each, group_numbers, positions, template_key
from training.data.tickets import Tickets


def split_by_text(tickets: Tickets, share: float) -> tuple[Tickets, Tickets]:
    """(training, validation): about `share` of the templates, chosen by their hash, go to validation."""
    keys = [template_key(text) for text in tickets.texts]
    return _split(tickets, group_numbers(keys), positions(keys), share, f"{share:.0%} set apart")


def split_by_time(tickets: Tickets, share: float) -> tuple[Tickets, Tickets]:
    """(training, validation): the newest `share` goes to validation; a template has its first ticket's time.

    Tickets without a time go to training.
    """
    groups = tickets.template_groups
    times = np.array(tickets.times)
    first = np.full(groups.max() + 1, np.inf)
    np.minimum.at(first, groups[~np.isnan(times)], times[~np.isnan(times)])
    first[np.bincount(groups, np.isnan(times)) > 0] = -np.inf  # of unknown age
    newest = np.argsort(-first[groups], kind="stable")
    # The place of a ticket among the newest, from 0 to 1; that of a template is its first ticket's.
    place = np.empty(len(tickets))
    place[newest] = np.arange(len(tickets)) / max(1, len(tickets))
    start = np.full(len(first), 1.0)
    np.minimum.at(start, groups, place)
    start[np.isinf(first)] = 1.0
    return _split(tickets, groups, start[groups], share, f"the newest {share:.0%}")


def stratified_folds(targets: np.ndarray, groups: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """The fold (tickets,) of each ticket, below `folds`; every group of equal `groups` (tickets,) is in one.

    Teams, `targets` (tickets,), are spread evenly. There are fewer folds if no team has that many groups. If
    no team has two, each ticket is a group.
    """
    first = first_of_each(groups)
    if np.bincount(targets[first]).max() < 2:
        groups = first = np.arange(len(targets))
    folds = min(folds, max(2, int(np.bincount(targets[first]).max())))
    of_group = np.zeros(int(groups.max()) + 1, dtype=np.int64)
    split = StratifiedKFold(folds, shuffle=True, random_state=seed).split(first, targets[first])
    for number, (_, held_out) in enumerate(split):
        of_group[groups[first[held_out]]] = number
    return of_group[groups]


def _split(
    tickets: Tickets, groups: np.ndarray, position: np.ndarray, share: float, name: str
) -> tuple[Tickets, Tickets]:
    """Hold out the groups below `share`, but leave each team a group to train on, and validation a group."""
    teams = np.array(tickets.teams)
    held_out = position < share
    for team in np.unique(teams):
        own = np.flatnonzero(teams == team)
        if held_out[own].all():
            held_out[groups == groups[own[np.argmax(position[own])]]] = False
    if not held_out.any():
        held_out = _smallest_to_spare(teams, groups, position)
    train = tickets.select(np.flatnonzero(~held_out).tolist())
    valid = tickets.select(np.flatnonzero(held_out).tolist())
    return train, replace(valid, file=f"{tickets.file} ({name})")


def _smallest_to_spare(teams: np.ndarray, groups: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Mask (tickets,) of the first group without which every team keeps a ticket; all False if none."""
    sizes = Counter(teams.tolist())
    for row in np.argsort(position, kind="stable"):
        group = groups == groups[row]
        if all(sizes[team] > count for team, count in Counter(teams[group].tolist()).items()):
            return group
    return np.zeros(len(teams), dtype=bool)
