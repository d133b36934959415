"""Adds synthetic tickets to a training run."""

from dataclasses import replace

from training.data.dataset import DataError, Dataset, Tickets, clean_columns
from training.synthetic.tickets import generate


def add_synthetic(dataset: Dataset, count: int, seed: int) -> Dataset:
    """The data set with `count` synthetic training tickets; DataError unless it has Larkfield's teams."""
    written = generate(count, seed)
    unknown = sorted({ticket.team for ticket in written} - set(dataset.teams))
    if unknown:
        raise DataError(
            f"--synthetic writes tickets for Larkfield's teams; this data has no team {unknown[0]!r}"
        )
    train = dataset.train
    tickets = Tickets(
        f"{train.file} and {count:,} synthetic tickets",
        train.ids + [ticket.ticket_id for ticket in written],
        train.texts + [clean_columns([ticket.text]) for ticket in written],
        train.teams + [ticket.team for ticket in written],
        train.styles + [ticket.style for ticket in written] if train.styles else [],
        train.rows + list(range(1, count + 1)),
    )
    return replace(dataset, train=tickets)
