"""The router's page in a real browser: every flow, by mouse and by keys, in both languages and lights."""

import json
import re
import time
from pathlib import Path

import pytest

from tests.browser.writing import settled, write

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
TICKET = "The parcel with my garden bench has not arrived. The courier says it was delivered on Monday."
PAGES = ("/", "/review", "/today", "/upload", "/learn")
LONG = " ".join(f"word{i} came late to the garden and the bench broke," for i in range(12))


def test_a_ticket_gets_its_team_its_bars_and_its_reasons(visit):
    page = visit()
    answer, _ = write(page, TICKET)
    shares = page.locator(".shares li")
    assert shares.count() == len(answer["probabilities"])
    ranked = sorted(answer["probabilities"], key=answer["probabilities"].get, reverse=True)
    assert shares.locator(".name").all_inner_texts() == ranked
    assert shares.first.locator(".value").inner_text() == f"{answer['confidence']:.1%}"
    badge = {"route": "Routed", "review": "A person should look first"}[answer["decision"]]
    title = {"route": "It goes to", "review": "Suggested:"}[answer["decision"]]
    expect(page.locator("#answer-title")).to_have_text(title)
    expect(page.locator(".badge")).to_have_text(badge)
    assert page.locator(".reasons li").count() == max(1, len(answer["reasons"]))
    expect(page.locator("#status")).to_contain_text(answer["team"])
    assert f"{answer['tokens']['count']} tokens read" in page.locator(".counts").inner_text()


def test_words_are_coloured_by_their_effect(visit):
    page = visit()
    answer, _ = write(page, TICKET, subject="Bench")
    words = answer["explanation"]["words"]
    buttons = page.locator("button.word")
    assert buttons.count() == len(words)
    for number in (0, 1, len(words) // 2, len(words) - 1):
        sent = {"subject": "Bench", "text": TICKET}[words[number]["field"]]
        button = buttons.nth(number)
        assert button.inner_text() == sent[words[number]["start"] : words[number]["end"]]
        effect = words[number]["effect"]
        share = abs(effect) / sum(abs(word["effect"]) for word in words)
        kind = "neither" if share < 0.005 else "towards" if effect > 0 else "away"
        assert kind in button.get_attribute("class")
    strongest = max(range(len(words)), key=lambda number: words[number]["effect"])
    strengths = buttons.evaluate_all("all => all.map(b => Number(b.style.getPropertyValue('--strength')))")
    assert strengths[strongest] == max(
        strength for strength, word in zip(strengths, words, strict=True) if word["effect"] > 0
    )


def test_pointing_at_a_word_shows_what_each_head_reads_from_it(visit):
    page = visit()
    write(page, TICKET)
    page.locator("button.word", has_text=re.compile("^courier$")).hover()
    panel = page.locator("#word-panel")
    expect(panel.locator("h3")).to_contain_text("courier")
    expect(panel.locator("tbody tr")).to_have_count(8)
    assert re.search(r"\d\.\d\d", panel.locator("tbody tr").first.inner_text())


def test_editing_routes_again_at_once(visit):
    page = visit()
    write(page, TICKET)
    with page.expect_response("**/route") as response:
        page.locator("#text").press_sequentially(" Where?")
    assert response.value.status == 200
    expect(page.locator("#words")).to_contain_text("Where")
    page.fill("#text", "")
    expect(page.locator("#verdict")).to_contain_text("Nothing to route yet.")
    expect(page.locator("#why")).to_be_hidden()
    expect(page.locator("#heads")).to_be_hidden()


def test_an_answer_to_older_text_is_never_shown(visit):
    """The first request is held back until the second has been answered."""
    page = visit()
    held = []

    def hold(route):
        if "slowpoke" in route.request.post_data:
            held.append(route)
        else:
            route.continue_()

    page.route("**/route", hold)
    page.fill("#text", "slowpoke " + TICKET)
    deadline = time.monotonic() + 60
    while not held and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert held
    page.fill("#text", TICKET)
    expect(page.locator("#words")).to_contain_text("courier")
    page.wait_for_timeout(200)
    assert "slowpoke" not in page.locator("#words").inner_text()


def test_the_smallest_change_can_be_tried(visit):
    page = visit()
    for example in range(page.locator("#examples button").count()):
        with page.expect_response("**/route"):
            page.locator("#examples button").nth(example).click()
        settled(page)
        found = re.search("without .*, (.*) would have won", page.locator("#change").inner_text())
        if found:
            break
    else:
        pytest.skip("no example of this bundle has a small change")
    page.click("#try-change")
    settled(page)
    expect(page.locator(".team")).to_have_text(found[1])


def test_there_is_one_map_for_each_block_and_head_and_each_opens(visit):
    page = visit()
    answer, _ = write(page, TICKET)
    heads = page.locator(".head")
    expect(heads).to_have_count(8)
    assert page.locator("#heads .honest").inner_text().startswith("Attention shows where")
    for number in range(8):
        assert heads.nth(number).locator(".head-summary").inner_text().strip()
    assert "repeat(4" in page.evaluate(
        "getComputedStyle(grid).gridTemplateColumns.split(' ').length + ' repeat(4'"
    )
    assert (
        page.evaluate(
            "getComputedStyle(document.querySelector('#grid')).gridTemplateColumns.split(' ').length"
        )
        == 4
    )
    heads.nth(5).click()
    expect(page.locator("#larger-title")).to_have_text("Block 2, head 2")
    expect(page.locator(".row-bars li")).to_have_count(answer["tokens"]["count"])
    page.select_option("#row-picker", "2")
    values = [float(v) for v in page.locator(".row-bars .value").all_inner_texts()]
    assert sum(values) == pytest.approx(1, abs=0.001 * len(values))
    expect(page.locator("#row-title")).to_contain_text("with")
    page.click("#close-head")
    expect(page.locator(".larger")).to_have_count(0)


def test_the_larger_map_follows_pointer_and_arrows(visit):
    page = visit()
    write(page, TICKET)
    page.locator(".head").nth(0).click()
    page.locator("#large-map").focus()
    for _ in range(40):
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#cell-text")).to_contain_text("“The” (row 1) gives “The” (column 1)")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#cell-text")).to_contain_text("“parcel” (row 2) gives “with” (column 3)")
    before = page.locator("#cell-text").inner_text()
    size = page.locator("#large-map").bounding_box()
    corner = {"x": size["width"] - 5, "y": size["height"] - 5}
    page.locator("#large-map").hover(position=corner)
    expect(page.locator("#cell-text")).not_to_have_text(before)
    expect(page.locator("#cell-text")).to_contain_text("gives “.”")
    page.locator("#large-map").focus()
    page.keyboard.press("Escape")
    expect(page.locator(".larger")).to_have_count(0)
    assert page.evaluate("document.activeElement.dataset.head") == "0"


def test_a_picture_shows_the_weights(visit):
    """The darkest pixel of each small map is where its strongest pair is."""
    page = visit()
    _, full = write(page, TICKET)
    heads = full["explanation"]["heads"]
    for number in (0, 3, 7):
        strongest = heads[number]["strongest"][0]
        at = page.evaluate(
            """n => { const c = document.querySelectorAll('.head canvas')[n];
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            let best = 0; for (let i = 0; i < d.length; i += 4)
              if (d[i] + d[i+1] + d[i+2] < d[best] + d[best+1] + d[best+2]) best = i;
            return [Math.floor(best / 4 / c.width), (best / 4) % c.width]; }""",
            number,
        )
        assert at == [strongest["reader"], strongest["read"]]


def test_keyboard_alone_is_enough(visit):
    page = visit()
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("(e => e.id || e.className || e.tagName)(document.activeElement)"))
        if seen[-1] == "head":
            break
    assert seen[0] == "skip"
    for stop in ("language", "theme", "chip", "subject", "text"):
        assert stop in seen
    words = [stop for stop in seen if stop.startswith("word")]
    assert len(words) == 1, "a ticket of many words is one tab stop"
    page.keyboard.press("Enter")
    expect(page.locator("#larger-title")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#close-head")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".larger")).to_have_count(0)

    page.locator("button.word").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    third = page.locator("button.word").nth(2)
    expect(third).to_be_focused()
    expect(page.locator("#word-panel h3")).to_contain_text(third.inner_text())
    page.keyboard.press("End")
    expect(page.locator("button.word").last).to_be_focused()

    page.locator(".wrong summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#right-team")).to_be_visible()


def test_a_correction_is_sent(visit):
    page = visit()
    answer, _ = write(page, TICKET)
    other = next(team for team in answer["probabilities"] if team != answer["team"])
    page.click(".wrong summary")
    assert answer["team"] not in page.locator("#right-team").inner_text().split()
    assert page.locator("#right-team").input_value() == "", "no team is preselected"
    expect(page.locator("#send-correction")).to_be_disabled()
    page.select_option("#right-team", f"team:{other}")
    with page.expect_response("**/feedback") as response:
        page.click("#send-correction")
    assert response.value.status == 200
    assert response.value.json()["team"] == other
    expect(page.locator("#thanks")).to_contain_text(other)
    with page.expect_response("**/feedback/remove") as response:
        page.keyboard.press("Enter")  # the focus is on undo
    assert response.value.json() == {"status": "removed"}
    expect(page.locator("#thanks")).to_have_text("Taken back.")
    with page.expect_response("**/feedback") as response:
        page.click("#send-right")
    assert response.value.json()["correct"] is True
    page.click("#undo-correction")
    page.click(".wrong summary")
    page.select_option("#right-team", "outcome:not_a_ticket")
    with page.expect_response("**/feedback") as response:
        page.click("#send-correction")
    assert response.value.json()["team"] is None
    expect(page.locator("#thanks")).to_have_text("Noted: Not a ticket.")


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(404, "does not store feedback"), (503, "could not be stored")],
)
def test_a_correction_that_was_not_stored_is_not_called_stored(visit, status, sentence):
    page = visit()
    write(page, TICKET)
    page.route("**/feedback", lambda route: route.fulfill(status=status, json={"detail": "no"}))
    page.click("#send-right")
    expect(page.locator("#thanks")).to_contain_text(sentence)
    expect(page.locator("#undo-correction")).to_have_count(0)
    visit.errors.clear()  # the browser itself reports the status


@pytest.mark.parametrize(
    ("status", "detail"), [(503, "Too many tickets are waiting."), (413, "The body is too large.")]
)
def test_a_refused_ticket_says_why_in_the_services_words(visit, status, detail):
    page = visit()
    write(page, TICKET)
    page.route("**/route", lambda route: route.fulfill(status=status, json={"detail": detail}))
    page.fill("#text", TICKET + " again")
    expect(page.locator("#status")).to_contain_text(detail)
    page.unroute("**/route")
    page.fill("#text", TICKET + " once more")
    expect(page.locator("#words")).to_contain_text("more")
    visit.errors.clear()


def test_a_router_that_is_away_is_said_to_be(visit):
    page = visit()
    write(page, TICKET)
    page.route("**/route", lambda route: route.abort())
    page.fill("#text", TICKET + " again")
    expect(page.locator("#status")).to_contain_text("cannot be reached")
    visit.errors.clear()


def test_french_by_the_browsers_language_and_by_the_switch(visit):
    page = visit(locale="fr-CA")
    assert page.evaluate("document.documentElement.lang") == "fr"
    expect(page.locator("#ticket-title")).to_have_text("Un billet")
    page.fill("#text", TICKET)
    expect(page.locator("#words")).to_contain_text("courier")
    expect(page.locator("#heads .honest")).to_contain_text("ne montre pas pourquoi")
    expect(page.locator(".head-name").first).to_have_text("Bloc 1, tête 1")
    shown = page.evaluate("document.body.innerText")
    assert re.search(r"\d,\d\s%", shown), "numbers are written the French way"
    assert not re.search(r"\b(team|confidence|heads?|word|undefined|NaN)\b", shown.replace(TICKET, ""))
    page.select_option("#language", "en")
    expect(page.locator("#ticket-title")).to_have_text("A ticket")
    expect(page.locator("#text")).to_have_value(TICKET)
    page.reload()
    expect(page.locator("#ticket-title")).to_have_text("A ticket")


HOLES = """async () => {
  const read = async (name) => (await import(`/web/${name}.js`)).default;
  const texts = {};
  for (const name of ['english', 'french', 'german']) texts[name] = await read(name);
  const holes = (text) => [...new Set(Object.values(typeof text === 'string' ? [text] : text)
    .flatMap(form => [...form.matchAll(/\\{(\\w+)\\}/g)].map(hole => hole[1])))].sort().join();
  const found = [];
  for (const [name, other] of Object.entries(texts)) {
    for (const key of new Set([...Object.keys(texts.english), ...Object.keys(other)])) {
      if (!(key in other) || !(key in texts.english)) found.push(`${name}: ${key}`);
      else if (holes(other[key]) !== holes(texts.english[key])) found.push(`${name}: holes of ${key}`);
      else if (typeof other[key] === 'object' && !other[key].other) found.push(`${name}: form of ${key}`);
    }
  }
  return found; }"""


def test_no_string_is_missing(visit):
    assert visit().evaluate(HOLES) == []


@pytest.mark.parametrize("locale", ["en-GB", "fr-FR", "de-DE"])
def test_every_text_of_the_markup_is_translated(visit, locale):
    page = visit(locale=locale)
    for path in PAGES:
        page.goto(page.url[: page.url.index("/", 8)] + path)
        for attribute in ("data-text", "data-label"):
            for node in page.locator(f"[{attribute}]").all():
                key = node.get_attribute(attribute)
                shown = node.text_content() if attribute == "data-text" else node.get_attribute("aria-label")
                assert shown.strip()
                assert shown != key or key in ("router",)


def test_under_review_the_team_is_a_suggestion(visit):
    page = visit(locale="fr-FR")
    page.fill("#text", "Would you like to write a guest article about rooftop beekeeping?")
    settled(page)
    expect(page.locator(".badge.review")).to_be_visible()
    expect(page.locator("#answer-title")).to_have_text("Suggestion\u00a0:")
    expect(page.locator("#status")).to_contain_text("Suggestion\u00a0: ")
    assert "Destination" not in page.locator("#answer").inner_text()


def test_an_urgent_ticket_is_marked_with_the_words_that_say_so(visit):
    page = visit("/")
    write(page, "The parcel is lost.")
    expect(page.locator(".urgent")).to_have_count(0)
    write(page, "The lamp is smoking and gave me an electric shock.")
    expect(page.locator(".urgent")).to_have_text("Urgent: the ticket says “smoking” and “electric shock”.")


def test_the_confidence_stands_beside_its_threshold(visit):
    """The service may say which confidence the team had to reach; the page shows both."""
    page = visit()
    page.route("**/route", with_threshold(0.875))
    write(page, TICKET)
    expect(page.locator(".threshold")).to_contain_text("it had to reach 87.5%.")
    page.unroute("**/route")
    page.route("**/route", with_threshold(None))
    write(page, TICKET + " Please help.")
    expect(page.locator(".threshold")).to_contain_text("no confidence is enough")


def with_threshold(value):
    def answer(route):
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"threshold": value})

    return answer


def test_a_subject_alone_is_routed(visit):
    page = visit()
    page.fill("#text", "")
    with page.expect_response("**/route") as response:
        page.fill("#subject", "My card was charged twice, please refund one payment")
    assert json.loads(response.value.request.post_data)["text"] is None
    assert response.value.status == 200
    settled(page)
    expect(page.locator("#words .field-subject")).to_contain_text("charged")


def test_a_reload_keeps_the_ticket(visit):
    page = visit()
    write(page, TICKET, subject="Bench")
    page.reload()
    settled(page)
    expect(page.locator("#text")).to_have_value(TICKET)
    expect(page.locator("#subject")).to_have_value("Bench")
    expect(page.locator("#words")).to_contain_text("courier")


def test_on_a_phone_the_answer_is_on_the_first_screen(visit):
    page = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    write(page, TICKET)
    page.evaluate("scrollTo(0, 0)")
    box = page.locator(".badge").bounding_box()
    assert box["y"] + box["height"] < 844


def test_a_long_ticket_is_folded_around_the_words_that_count(visit):
    page = visit()
    filler = " ".join(
        f"We also talked about item number {n} of the list, then the garden." for n in range(150)
    )
    answer, _ = write(page, f"{TICKET} {filler}")
    words = answer["explanation"]["words"]
    assert len(page.locator("#words").inner_text()) < len(filler) / 3
    strongest = max(range(len(words)), key=lambda number: abs(words[number]["effect"]))
    expect(page.locator(f'#words button.word[data-word="{strongest}"]')).to_be_visible()
    assert "words more" in page.locator("#words .fold").first.inner_text()
    page.locator("#words .fold").first.click()
    expect(page.locator("#words .fold")).to_have_count(0)
    assert len(page.locator("#words").inner_text()) > len(filler)


def test_one_is_not_many(visit):
    page = visit()
    write(page, "parcel")
    assert re.search(r"\b1 token read\b", page.locator(".counts").inner_text())
    assert "up to 0" not in page.inner_text("body")


def test_french_has_its_spaces_and_quotes(visit):
    page = visit(locale="fr-FR")
    page.fill("#text", TICKET)
    settled(page)
    shown = page.locator("main").inner_text()
    assert not re.search(r"[^\s\u00a0\u202f\d][:;!?](?=\s|$)", shown.replace(TICKET, "")), (
        "no space before the mark"
    )
    assert not re.search(r" [:;!?»]|« |“", shown.replace(TICKET, "")), "a plain space or an English quote"


@pytest.mark.parametrize("path", PAGES)
def test_a_narrow_screen_needs_no_sideways_scrolling(visit, path):
    page = visit(path, viewport={"width": 360, "height": 740}, has_touch=True)
    if path == "/":
        write(page, TICKET + " " + "x" * 400)
        page.locator(".head").nth(1).click()
        expect(page.locator(".row-bars li").first).to_be_visible()
    elif path == "/learn":
        for number in range(7):
            page.locator("#walk-steps button").nth(number).click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("path", ["/", "/learn"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_lights(visit, path, scheme):
    """WCAG AA: a contrast of 4.5, or 3 where the text is large, for everything that is shown."""
    page = visit(path, color_scheme=scheme)
    if path == "/":
        write(page, TICKET)
        page.locator("button.word").nth(2).hover()
        page.locator(".head").nth(1).click()
    else:
        expect(page.locator(".matrix").first).to_be_visible()
    faint = page.evaluate(CONTRAST)
    assert not faint
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert (lightness < 80) == (scheme == "dark")


def test_the_switch_overrules_the_system(visit):
    page = visit(color_scheme="light")
    page.select_option("#theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 29)"
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 29)"
    page.select_option("#theme", "light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(245, 242, 234)"


def test_many_tokens_stay_readable_and_smooth(visit):
    page = visit()
    answer, _ = write(page, LONG)
    count = answer["tokens"]["count"]
    assert count >= 120
    page.locator(".head").nth(2).click()
    expect(page.locator("#large-map")).to_be_visible()
    width = page.evaluate("document.querySelector('#large-map').clientWidth")
    assert width / count >= 13, "a cell must be large enough for the token beside it"
    moves = page.evaluate(
        """() => { const map = document.querySelector('#large-map');
        const said = document.querySelector('#cell-text');
        const seen = [said.textContent];
        for (let i = 0; i < 30; i++) {
          map.dispatchEvent(new KeyboardEvent('keydown', { key: i < 15 ? 'ArrowDown' : 'ArrowLeft' }));
          if (said.textContent !== seen.at(-1)) seen.push(said.textContent);
        }
        return seen.length - 1; }"""
    )
    assert moves >= 15, "each key moves the cell, unless it is at the edge"


def test_what_a_screen_reader_hears(visit):
    page = visit()
    write(page, TICKET)
    page.locator(".head").nth(4).click()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('button, a, input, select, textarea, canvas, [role=img]')]
        .filter(e => e.offsetParent !== null && !e.hasAttribute('aria-hidden'))
        .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length))
        .map(e => e.outerHTML)"""
    )
    assert not unnamed
    assert re.search(
        "Heat map of block 2, head 1: .* rows that read", page.get_attribute("#large-map", "aria-label")
    )
    assert page.locator("h1").count() == 1
    assert page.get_attribute("#status", "aria-live") == "polite"
    label = page.locator("button.word").first.get_attribute("aria-label")
    assert re.match(r"The: (\d+% of all the pull, towards \w+|hardly pulls)", label)
