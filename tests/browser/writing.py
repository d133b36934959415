"""Enters a ticket into the page and waits for the answer and the heads."""

from __future__ import annotations

import json
from typing import Any


def settled(page: Any) -> None:
    """Wait until the page shows the answer, and the heads, for what stands in its fields."""
    page.wait_for_selector("#answer[aria-busy=false]")
    page.wait_for_selector("#heads[aria-busy=false]", state="attached")


def write(page: Any, text: str, subject: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Type a ticket in; the answers with the levels `tokens` and `full`, once the page shows both.

    The text must be one that a text area keeps as it is.
    """

    def asks(level: str) -> Any:
        def is_it(response: Any) -> bool:
            if not response.url.endswith("/route"):
                return False
            sent = json.loads(response.request.post_data)
            return (sent["explain"], sent["text"], sent.get("subject", "")) == (level, text, subject)

        return is_it

    with page.expect_response(asks("tokens")) as tokens, page.expect_response(asks("full")) as full:
        page.fill("#subject", subject)
        page.fill("#text", text)
    answers = tokens.value.json(), full.value.json()
    settled(page)
    return answers
