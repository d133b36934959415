"""The review desk, today and upload in a real browser, and the prompt for a key."""

import json
import re
import urllib.request
from pathlib import Path

import pytest

from service.tools import processes

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

STRANGE = "Would you like to write a guest article about rooftop beekeeping for our city magazine? Number"
CLEAR = "My card was charged twice for one order. Please refund the second charge."


def send(url: str, path: str, body: dict) -> dict:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.fixture
def waiting(service_url: str) -> list[str]:
    """Three tickets that wait for a person; whatever waited before has been answered."""
    with urllib.request.urlopen(service_url + "/review/tickets", timeout=60) as response:
        for ticket in json.load(response)["tickets"]:
            send(service_url, "/feedback", {"request_id": ticket["request_id"], "outcome": "not_a_ticket"})
    names = [f"W-{number}" for number in range(3)]
    for name in names:
        answer = send(service_url, "/route", {"ticket_id": name, "source": "rt", "text": f"{STRANGE} {name}"})
        assert answer["decision"] == "review"
    send(service_url, "/feedback/remove", {"ticket_id": "W-0", "source": "rt"})  # writes what is queued
    for name in names:
        send(service_url, "/feedback/remove", {"ticket_id": name, "source": "rt"})
    return names


def test_a_ticket_is_decided_by_mouse_and_taken_back(visit, service_url, waiting):
    page = visit("/review")
    expect(page.locator(".ticket")).to_have_count(3)
    expect(page.locator("#status")).to_have_text("3 tickets wait.")
    first = page.locator(".ticket").first
    expect(first.locator("h2")).to_have_text("Ticket rt:W-2")
    expect(first.locator(".ticket-text")).to_contain_text("beekeeping")
    expect(first).to_contain_text("Suggested:")
    first.locator("button", has_text=re.compile("returns")).click()
    expect(page.locator(".ticket")).to_have_count(2)
    expect(page.locator("#status")).to_have_text("Ticket rt:W-2: returns. 2 tickets wait.")
    stored = send(service_url, "/feedback", {"ticket_id": "W-2", "source": "rt", "team": "returns"})
    assert stored["status"] == "unchanged"
    page.click("#undo-last")
    expect(page.locator(".ticket")).to_have_count(3)
    expect(page.locator(".ticket h2").first).to_have_text("Ticket rt:W-2")
    expect(page.locator("#undo-last")).to_have_count(0)


def test_a_link_in_a_note_leads_to_its_ticket(visit, waiting):
    page = visit("/review?source=rt&ticket=W-1")
    expect(page.locator(".ticket").nth(1)).to_be_focused()


def test_the_keyboard_is_enough(visit, waiting):
    page = visit("/review")
    expect(page.locator(".ticket")).to_have_count(3)
    page.keyboard.press("j")
    expect(page.locator(".ticket").first).to_be_focused()
    page.keyboard.press("j")
    expect(page.locator(".ticket").nth(1)).to_be_focused()
    with page.expect_response("**/feedback") as response:
        page.keyboard.press("x")
    assert json.loads(response.value.request.post_data)["outcome"] == "not_a_ticket"
    expect(page.locator(".ticket h2")).to_have_text(["Ticket rt:W-2", "Ticket rt:W-0"])
    expect(page.locator(".ticket").nth(1)).to_be_focused()
    page.keyboard.press("k")
    with page.expect_response("**/feedback") as response:
        page.keyboard.press("2")
    team = page.evaluate("document.querySelectorAll('.ticket .chip')[1].dataset.team")
    assert json.loads(response.value.request.post_data)["team"] == team
    expect(page.locator(".ticket")).to_have_count(1)
    page.keyboard.press("z")
    page.keyboard.press("z")
    expect(page.locator(".ticket")).to_have_count(3)


def test_the_words_that_count_and_the_filters(visit, service_url, waiting):
    page = visit("/review")
    page.locator(".ticket").first.focus()
    expect(page.locator(".ticket").first.locator(".words-that-count")).to_contain_text("Words that count: “")
    page.select_option("#order", "unsure")
    expect(page.locator(".ticket")).to_have_count(3)
    page.locator("#reason").focus()
    page.select_option("#reason", "unknown_language")
    expect(page.locator("#status")).to_have_text("No ticket waits.")
    expect(page.locator("#reason")).to_be_focused()


def test_today_counts_tickets_and_corrections(visit, service_url, waiting):
    def corrected(page):
        return int(page.locator(".tile .big").nth(2).inner_text())

    page = visit("/today")
    expect(page.locator(".tile")).to_have_count(3)
    tickets, before = int(page.locator(".tile .big").first.inner_text().replace(",", "")), corrected(page)
    answer = send(service_url, "/route", {"ticket_id": "today-1", "text": CLEAR})
    other = next(team for team in answer["probabilities"] if team != answer["team"])
    send(service_url, "/feedback", {"ticket_id": "today-1", "team": other})
    page.reload()
    expect(page.locator(".tile .big").first).to_have_text(f"{tickets + 1:,}")
    assert corrected(page) == before + 1
    expect(page.locator(".hours tbody tr")).to_have_count(24)
    expect(page.locator(".tile").first).to_contain_text("Last week: 0")
    expect(page.locator("#words-body")).to_contain_text("No new words.")


def test_a_file_is_routed_in_the_browsers_sight(visit, tmp_path: Path):
    page = visit("/upload")
    page.click("#start")
    expect(page.locator("#status")).to_have_text("Choose a file first.")
    path = tmp_path / "desk.csv"
    rows = "".join(f"{n};{CLEAR} Order {n}\n" for n in range(70)) + '71;"=1+1 refund my card"\n'
    path.write_text("number;body\n" + rows, encoding="utf-8")
    page.set_input_files("#file", path)
    page.click("#start")
    expect(page.locator("#status")).to_contain_text("no column 'text'; its columns are: number, body")
    visit.errors.clear()  # the browser reports the 422
    page.fill("#column-text", "body")
    page.fill("#column-id", "number")
    page.click("#start")
    expect(page.locator("#status")).to_contain_text("71 tickets: ")
    expect(page.locator("#table tbody tr")).to_have_count(71)
    with page.expect_download() as download:
        page.click("#save")
    saved = Path(download.value.path()).read_bytes().decode("utf-8")
    assert saved.startswith("\ufeffticket_id,team,confidence,decision,reasons,subject,text\r\n")
    assert saved.count("\r\n") == 72
    assert '"\'=1+1 refund my card"' in saved


def test_with_keys_the_page_asks_for_one(chromium, tmp_path: Path, shipped_bundle: Path):
    settings = {"api_keys": "sesame", "bundle": shipped_bundle, "feedback_url": "off"}
    with processes.router(tmp_path / "keys", **settings) as server:
        context = chromium.new_context(locale="de-DE")
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.goto(server.url)
        expect(page.locator("#key-title")).to_have_text("Dieser Router verlangt einen Schlüssel")
        page.fill("#api-key", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("dialog [role=alert]")).to_have_text(
            "Der Router hat diesen Schlüssel nicht angenommen."
        )
        page.fill("#api-key", "sesame")
        page.click("#use-key")
        page.wait_for_selector("button.word")
        expect(page.locator("dialog")).to_have_count(0)
        page.reload()
        page.wait_for_selector("button.word")
        expect(page.locator("dialog")).to_have_count(0)
        page.goto(server.url + "/review")
        expect(page.locator("#status")).to_contain_text("LARKFIELD_FEEDBACK_URL")
        another = context.new_page()
        another.goto(server.url)
        another.wait_for_selector("#api-key")
        another.keyboard.press("Escape")
        expect(another.locator("#status")).to_have_text("Ohne Schlüssel antwortet der Router nicht.")
        lesson = context.new_page()  # needs a key for its last part only, and asks for it there
        lesson.goto(server.url + "/learn")
        expect(lesson.locator("#ticket-status")).to_contain_text("Ohne Schlüssel antwortet der Router nicht.")
        expect(lesson.locator("dialog")).to_have_count(0)
        lesson.click("#ticket-status button")
        lesson.fill("#api-key", "sesame")
        lesson.keyboard.press("Enter")
        expect(lesson.locator("#ticket-grid .head")).to_have_count(8)
        context.close()


def test_the_page_says_how_texts_are_stored(chromium, tmp_path: Path, shipped_bundle: Path):
    with processes.router(tmp_path / "no-texts", bundle=shipped_bundle) as server:
        send(server.url, "/route", {"ticket_id": "N-1", "text": STRANGE})
        send(server.url, "/feedback/remove", {"ticket_id": "N-1"})
        page = chromium.new_page(locale="en-GB")
        page.goto(server.url + "/review")
        expect(page.locator("#no-texts")).to_contain_text("LARKFIELD_FEEDBACK_STORE_TEXT=true")
        expect(page.locator(".ticket")).to_contain_text("The text is not stored.")
        page.close()
