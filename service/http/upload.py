"""`POST /upload/read`: reads the tickets of a file for the page `/upload`, which then routes them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request

from models.tickets.columns import ID_COLUMNS
from models.tickets.columns import ticket_id as id_in
from models.tickets.faults import DataError, Faults
from models.tickets.rows import SUFFIXES, read_rows
from service.api.problems import Problem
from service.inference.service import Service

MOST_ROWS = 5_000
Column = Annotated[str | None, Query(max_length=200)]


def install(app: FastAPI, _: Service) -> None:
    """Add the endpoint."""

    @app.post("/upload/read", include_in_schema=False)
    async def read(
        request: Request,
        name: Annotated[str, Query(min_length=1, max_length=255)],
        text: Annotated[str, Query(min_length=1, max_length=200)] = "text",
        subject: Column = None,
        id: Column = None,
    ) -> dict[str, Any]:
        """The rows of a file as tickets, and its faults; Problem 422 if the file cannot be read."""
        body = await request.body()
        return await asyncio.to_thread(_read, body, name, text, subject, id)


def _read(body: bytes, name: str, text: str, subject: str | None, id_column: str | None) -> dict[str, Any]:
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise Problem(422, f"The name of the file must end with {', '.join(SUFFIXES)}.")
    with tempfile.TemporaryDirectory(prefix="larkfield-upload-") as folder:
        path = Path(folder) / f"file{suffix}"
        path.write_bytes(body)
        faults = Faults()
        try:
            tickets = _tickets(path, text, subject, id_column, faults)
            faults.stop_if_fatal()
        except DataError as error:
            raise Problem(422, str(error).replace(f"{folder}/", "").replace(path.name, name)) from None
    found = [str(fault).replace(path.name, name) for fault in faults]
    return {"tickets": tickets, "faults": found, "complete": len(tickets) < MOST_ROWS}


def _tickets(
    path: Path, text: str, subject: str | None, id_column: str | None, faults: Faults
) -> list[dict[str, Any]]:
    required = [name for name in (text, subject, id_column) if name]
    optional = [name for name in ID_COLUMNS if name not in required]
    tickets: list[dict[str, Any]] = []
    for number, values in read_rows(path, required, optional, faults):
        if len(tickets) == MOST_ROWS:
            break
        tickets.append(
            {
                "ticket_id": (id_in(values, id_column) or f"row {number}")[:200],
                "subject": (values[subject] if subject else "")[:2_000],
                "text": values[text],
            }
        )
    return tickets
