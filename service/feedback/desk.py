"""The data of the pages `/review` (tickets waiting for review) and `/today`."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, Query

from models.text import join
from service.api.problems import Problem, unavailable
from service.api.schema import RouteRequest
from service.feedback.rows import StoreUnavailable
from service.inference.runtime import pad

if TYPE_CHECKING:
    from service.feedback.store import Store
    from service.inference.runtime import Runtime
    from service.inference.service import Service

SHOWN_TICKETS = 100
SHOWN_WORDS = 8
NEW_WORDS = 30
MOST_TEXTS = 20_000  # earlier texts that new words are compared with
HOUR, DAY = 3600.0, 86_400.0
_WORD = re.compile(r"[^\W\d_]{3,}")


def install(app: FastAPI, service: Service) -> None:
    """Add the endpoints; without a database they answer 404, which the pages explain."""
    opened: Callable[[], Store] | None = app.state.store

    def store() -> Store:
        if opened is None:
            raise Problem(404, "This router stores no decisions: LARKFIELD_FEEDBACK_URL is off.")
        return opened()

    def read(query: Callable[[Store], Any]) -> Any:
        try:
            return query(store())
        except StoreUnavailable as error:
            retry = service.settings.retry_after_seconds
            raise unavailable(f"The database cannot be read: {error}.", retry) from None

    @app.get("/review/tickets", include_in_schema=False)
    def tickets(
        team: Annotated[str | None, Query(max_length=200)] = None,
        reason: Annotated[str | None, Query(max_length=50, pattern=r"^[a-z_]*$")] = None,
        order: Literal["newest", "unsure"] = "newest",
    ) -> dict[str, Any]:
        """The tickets waiting for review, with the predicted team."""
        waiting, rows = read(lambda store: store.waiting(team, reason, order, SHOWN_TICKETS))
        return {
            "waiting": waiting,
            "teams": service.loaded().config.teams,
            "stores_text": service.settings.feedback_store_text,
            "tickets": [as_ticket(row) for row in rows],
        }

    @app.get("/review/words", include_in_schema=False)
    def words(row: Annotated[int, Query(ge=1)]) -> dict[str, Any]:
        """The words of a stored text with the largest effect for the predicted team."""
        text = read(lambda store: store.text_of(row))
        return {"words": strongest_words(service, text) if text else []}

    @app.get("/today/numbers", include_in_schema=False)
    def today() -> dict[str, Any]:
        """Figures of the last 24 hours and of the same 24 hours a week earlier."""
        now = time.time()
        times = {"today": (now - DAY, now), "last_week": (now - 8 * DAY, now - 7 * DAY)}
        rows = read(lambda store: {name: store.decided_between(*each) for name, each in times.items()})
        numbers = {name: summary(each) for name, each in rows.items()}
        earlier = read(lambda store: store.texts_between(now - 8 * DAY, now - DAY, MOST_TEXTS))
        return {
            **numbers,
            "since": now - DAY,
            "hours": by_hour(rows["today"], now - DAY),
            "stores_text": service.settings.feedback_store_text,
            "new_words": new_words((row.text for row in rows["today"] if row.text), earlier),
        }


def as_ticket(row: Any) -> dict[str, Any]:
    """A row of `Store.waiting` as the page shows it."""
    return {
        "row": row.row,
        "request_id": row.request_id,
        "ticket_id": row.ticket_id,
        "source": row.source,
        "team": row.predicted,
        "confidence": row.confidence,
        "reasons": (row.reasons or "").split(),
        "decided_at": row.decided_at,
        "text": row.text,
    }


def strongest_words(service: Service, text: str) -> list[str]:
    """The words of a text with the largest effect for the predicted team, each once."""
    from models.decision import decide
    from service.inference.service import Answer

    explain = service.explainers.get("tokens")
    if explain is None:
        return []
    runtime: Runtime = service.loaded()
    joined = join(None, text)
    encoding = runtime.tokenizer.encode(joined.text)
    if not encoding.ids:
        return []
    logits = runtime.run(pad([encoding.ids]))[0]
    decision = decide(logits, encoding, runtime.config)
    answer = Answer("", RouteRequest(text=text), runtime, joined, encoding, logits, decision, {}, [])
    words = sorted(explain(answer)["words"], key=lambda word: -word["effect"])
    named = [text[word["start"] : word["end"]] for word in words if word["effect"] > 0]
    return list(dict.fromkeys(named))[:SHOWN_WORDS]


def summary(rows: Sequence[Any]) -> dict[str, Any]:
    """Counts of tickets: all, routed, with feedback, corrected."""
    return {
        "tickets": len(rows),
        "routed": sum(row.decision == "route" for row in rows),
        "feedback": sum(row.actual is not None for row in rows),
        "corrected": sum(row.actual is not None and row.actual != row.predicted for row in rows),
    }


def by_hour(rows: Iterable[Any], start: float) -> list[dict[str, Any]]:
    """Tickets by team for each of 24 hours from `start` on."""
    hours: list[Counter[str]] = [Counter() for _ in range(24)]
    for row in rows:
        hours[min(23, int((row.decided_at - start) / HOUR))][row.predicted] += 1
    return [{"at": start + HOUR * hour, "teams": dict(teams)} for hour, teams in enumerate(hours)]


def new_words(texts: Iterable[str], earlier: Iterable[str]) -> list[dict[str, Any]]:
    """Words of two or more texts and of no earlier one, the commonest first; [] without earlier texts."""
    known = {word for text in earlier for word in _words(text)}
    if not known:
        return []
    counts = Counter(word for text in texts for word in _words(text) - known)
    return [{"word": word, "tickets": n} for word, n in counts.most_common(NEW_WORDS) if n > 1]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
