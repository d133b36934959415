"""The internal note: the team, how sure the router is, why a person should look, and where to decide."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from service.connect.desk import NOTE_BEGINS

# The router's reasons (models.scope.Reason) as its page says them.
REASONS = {
    "low_confidence": "The confidence is too low to go without a look.",
    "out_of_scope": "It does not read like anything these teams answer.",
    "mostly_unknown_words": "The router does not know most of its words.",
    "too_short": "It is too short to tell.",
    "unknown_language": "It is in a language the router was not trained on.",
    "transferred_language": "It is in a language the router did not learn; its words were read in English.",
    "automatic_reply": "It is an automatic reply.",
}


def note(answer: dict[str, Any], queue: str | None, page: str, desk: str, ticket: str) -> str:
    """The text of the note on an answer of POST /route; `queue` is that of the team, None if it has none."""
    team, sure = answer["team"], f"{answer['confidence']:.0%} sure"
    certain = answer["decision"] == "route" and queue is not None
    if certain:
        lines = [f"{NOTE_BEGINS} this ticket belongs to {queue} (team {team}, {sure})."]
    else:
        where = f"{queue} (team {team}, {sure})" if queue else f"team {team} ({sure})"
        lines = [f"{NOTE_BEGINS} please look at this ticket. Suggestion: {where}."]
    if answer.get("urgent"):
        lines.append("It may be urgent: it names a danger or a legal threat.")
    if queue is None:
        lines.append(f"The table of the connector names no queue for the team {team}.")
    if not certain:
        lines += [REASONS.get(reason, reason.replace("_", " ")) for reason in answer["reasons"]]
        lines.append(f"{page}/review?{urlencode({'source': desk, 'ticket': ticket})}")
    return "\n".join(lines)
