"""Prevents formula injection: quotes cells that a spreadsheet would run as formulas, and unquotes them."""

from __future__ import annotations

_BEGINS_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def quoted(cell: str) -> str:
    """The cell, with an apostrophe before it if a spreadsheet would take it for a formula."""
    return f"'{cell}" if cell.lstrip("'").startswith(_BEGINS_FORMULA) else cell


def unquoted(cell: str) -> str:
    """The inverse of `quoted`."""
    begins = cell.startswith("'") and cell.lstrip("'").startswith(_BEGINS_FORMULA)
    return cell[1:] if begins else cell
