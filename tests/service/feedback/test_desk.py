"""What the review desk and the page of today count, without a server."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.feedback.desk import by_hour, new_words, summary
from service.feedback.rows import Decided
from service.feedback.store import Store


def decided(number: int, **changed: object) -> Decided:
    row = Decided(f"r-{number}", f"T-{number}", "payment", "review", 0.5, "1", 9, 0, time.time(), "text")
    return row._replace(**({"reasons": "low_confidence"} | changed))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'feedback.db'}")


def test_a_ticket_waits_until_there_is_feedback(store: Store) -> None:
    store.add_decisions([decided(1), decided(2, decision="route"), decided(3, ticket_id=None)])
    assert [row.request_id for row in store.waiting(None, None, "newest", 9)[1]] == ["r-3", "r-1"]
    store.add_feedback("returns", request_id="r-3")
    store.add_feedback("#not_a_ticket", ticket_id="T-1")
    assert store.waiting(None, None, "newest", 9) == (0, [])
    store.remove_feedback(request_id="r-3")
    assert store.waiting(None, None, "newest", 9)[0] == 1


def test_the_newest_decision_on_a_ticket_counts(store: Store) -> None:
    store.add_decisions([decided(1), decided(2, ticket_id="T-1", decision="route"), decided(3, source="rt")])
    store.add_decisions([decided(4, ticket_id="T-3", source="zammad")])
    assert {row.request_id for row in store.waiting(None, None, "newest", 9)[1]} == {"r-3", "r-4"}
    store.add_feedback("returns", ticket_id="T-3", source="rt")
    assert [row.request_id for row in store.waiting(None, None, "newest", 9)[1]] == ["r-4"]


def test_filters_and_order(store: Store) -> None:
    store.add_decisions(
        [
            decided(1, confidence=0.6),
            decided(2, predicted="returns", confidence=0.4),
            decided(3, reasons="out_of_scope too_short", confidence=0.2),
        ]
    )

    def found(*arguments: object) -> list[str]:
        return [row.request_id for row in store.waiting(*arguments, 9)[1]]  # type: ignore[arg-type]

    assert found("returns", None, "newest") == ["r-2"]
    assert found(None, "too_short", "newest") == ["r-3"]
    assert found(None, "short", "newest") == []
    assert found(None, None, "unsure") == ["r-3", "r-2", "r-1"]
    assert store.waiting(None, None, "newest", 1)[0] == 3


def test_today_counts() -> None:
    rows = [
        SimpleNamespace(decision="route", predicted="a", actual="a", decided_at=10.0),
        SimpleNamespace(decision="route", predicted="a", actual="b", decided_at=3_700.0),
        SimpleNamespace(decision="review", predicted="b", actual=None, decided_at=86_400.0),
    ]
    assert summary(rows) == {"tickets": 3, "routed": 2, "feedback": 2, "corrected": 1}
    hours = by_hour(rows, 0.0)
    assert [hour["teams"] for hour in (hours[0], hours[1], hours[23])] == [{"a": 1}, {"a": 1}, {"b": 1}]


def test_new_words_stand_in_two_tickets_and_in_no_earlier_one() -> None:
    today = ["The Glühwein kettle leaks", "glühwein everywhere", "a rare thing"]
    assert new_words(today, ["the kettle leaks everywhere"]) == [{"word": "glühwein", "tickets": 2}]
    assert new_words(today, []) == [], "without earlier texts every word would be new"
