"""Cells that a spreadsheet would run as formulas: quoted in what people open, unquoted when read."""

from __future__ import annotations

_BEGINS_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def quoted(cell: str) -> str:
    """The cell with an apostrophe before it where a spreadsheet would take it for a formula."""
    return f"'{cell}" if cell.lstrip("'").startswith(_BEGINS_FORMULA) else cell


def unquoted(cell: str) -> str:
    """The cell that `quoted` was given."""
    begins = cell.startswith("'") and cell.lstrip("'").startswith(_BEGINS_FORMULA)
    return cell[1:] if begins else cell
