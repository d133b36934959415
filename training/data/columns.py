"""The command-line flags that say what the columns of a ticket file are."""

import argparse
import sys
from collections.abc import Collection
from pathlib import Path

from models.tickets.columns import Columns, team_name
from models.tickets.faults import DataError, Faults
from training.command_line import share, whole
from training.data.corrections import apply_corrections
from training.data.dataset import Tickets, read_tickets, team_names
from training.data.splits import split_by_text, split_by_time


def add_column_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say what the columns of a ticket file are."""
    group = parser.add_argument_group("columns")
    group.add_argument(
        "--text-column",
        action="append",
        metavar="NAME",
        help="what the customer wrote (default: text); give it twice for subject and body, in that order; "
        "in JSON, fields.summary is the field summary of the object fields",
    )
    group.add_argument(
        "--team-column",
        default="team",
        metavar="NAME",
        help="the team that solved the ticket (default: team)",
    )
    group.add_argument(
        "--id-column", metavar="NAME", help="the ticket's id (default: ticket_id or id, if the file has one)"
    )
    group.add_argument(
        "--merge-team",
        action="append",
        type=merged_team,
        metavar="TEAM=OTHER",
        help="count the tickets of TEAM as OTHER's; may be given several times",
    )
    group.add_argument(
        "--encoding", metavar="NAME", help="of CSV and JSON files (default: UTF-8, else detected)"
    )
    group.add_argument(
        "--skip-rows",
        type=whole(0, 10_000),
        default=0,
        metavar="N",
        help="rows above the header of a table, such as a report's title (default: 0)",
    )


def merged_team(text: str) -> tuple[str, str]:
    """ "refunds=payments" as a pair of team names."""
    team, equals, other = text.partition("=")
    team, other = team_name(team), team_name(other)
    if not (equals and team and other and team != other):
        raise argparse.ArgumentTypeError(f"expected two different teams as in refunds=payments, not {text!r}")
    return team, other


def columns_of(arguments: argparse.Namespace) -> Columns:
    return Columns(
        tuple(arguments.text_column or ["text"]),
        arguments.team_column,
        arguments.id_column or None,
        arguments.time_column or None,
        tuple(arguments.merge_team or ()),
    )


def add_held_out_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that select the validation tickets of a file that was trained on."""
    group = parser.add_argument_group("only the tickets that training validated on")
    group.add_argument(
        "--held-out",
        type=share(ends=False),
        metavar="SHARE",
        help="only the tickets that training with --valid-share SHARE validates on",
    )
    group.add_argument(
        "--time-column", metavar="NAME", help="validation tickets are the newest, as in training"
    )
    group.add_argument(
        "--corrections", type=Path, metavar="FILE", help="a label_errors.csv with `corrected_team` filled in"
    )


def tickets_of(options: argparse.Namespace, teams: Collection[str]) -> Tickets:
    """The usable tickets of `--data`; faults are printed to stderr.

    Raises DataError for fatal faults, and if no ticket has one of the `teams` (probably the wrong column).
    """
    faults = Faults()
    tickets = read_tickets(options.data, columns_of(options), faults, options.encoding, options.skip_rows)
    if options.corrections:
        (tickets,) = apply_corrections([tickets], options.corrections, faults)
    faults.stop_if_fatal()
    if options.held_out:
        split = split_by_time if options.time_column else split_by_text
        _, tickets = split(tickets, options.held_out)
    for fault in faults:
        print(fault, file=sys.stderr)
    if not set(tickets.teams) & set(teams):
        raise DataError(
            f"{tickets.file}: no ticket has a team that the bundle knows (is --team-column the right one?); "
            f"it has: {team_names(tickets.teams)}; the bundle: {team_names(teams)}"
        )
    return tickets
