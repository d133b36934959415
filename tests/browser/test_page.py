"""The router's page in a real browser: every flow, by mouse and by keys, in both languages and lights."""

import re
import time
from pathlib import Path

import pytest

from tests.browser.writing import settled, write

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
TICKET = "The parcel with my garden bench has not arrived. The courier says it was delivered on Monday."
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
    page.select_option("#right-team", other)
    with page.expect_response("**/feedback") as response:
        page.click("#send-correction")
    assert response.value.status in (200, 201)
    expect(page.locator("#thanks")).to_contain_text(other)
    assert answer["team"] not in page.locator("#right-team").inner_text().split()


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(404, "does not store corrections"), (401, "with a key"), (503, "could not be stored")],
)
def test_a_correction_that_was_not_stored_is_not_called_stored(visit, status, sentence):
    page = visit()
    write(page, TICKET)
    page.route("**/feedback", lambda route: route.fulfill(status=status, json={"detail": "no"}))
    page.click(".wrong summary")
    page.click("#send-correction")
    expect(page.locator("#thanks")).to_contain_text(sentence)
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
    page.click("#language")
    expect(page.locator("#ticket-title")).to_have_text("A ticket")
    expect(page.locator("#text")).to_have_value(TICKET)
    page.reload()
    expect(page.locator("#ticket-title")).to_have_text("A ticket")


@pytest.mark.parametrize("locale", ["en-GB", "fr-FR"])
def test_no_string_is_missing(visit, locale):
    page = visit(locale=locale)
    missing = page.evaluate(
        """async () => { const text = await (await fetch('/web/strings.js')).text();
        const part = name => text.split(`const ${name} = {`)[1].split('\\n};')[0];
        const keys = name => [...part(name).matchAll(/^  (\\w+):/gm)].map(m => m[1]);
        const holes = name => Object.fromEntries([...part(name).matchAll(/^  (\\w+): "(.*)",$/gm)]
          .map(m => [m[1], [...m[2].matchAll(/\\{(\\w+)\\}/g)].map(h => h[1]).sort().join()]));
        const [en, fr] = [keys('ENGLISH'), keys('FRENCH')];
        const [a, b] = [holes('ENGLISH'), holes('FRENCH')];
        return [en.filter(k => !fr.includes(k)), fr.filter(k => !en.includes(k)),
                en.filter(k => a[k] !== b[k])]; }"""
    )
    assert missing == [[], [], []]
    for path in ("/", "/learn"):
        page.goto(page.url.split("/learn")[0].rstrip("/") + path)
        for attribute in ("data-text", "data-label"):
            for node in page.locator(f"[{attribute}]").all():
                key = node.get_attribute(attribute)
                shown = node.text_content() if attribute == "data-text" else node.get_attribute("aria-label")
                assert shown.strip()
                assert shown != key or key in ("router",)


@pytest.mark.parametrize("path", ["/", "/learn"])
def test_a_narrow_screen_needs_no_sideways_scrolling(visit, path):
    page = visit(path, viewport={"width": 360, "height": 740}, has_touch=True)
    if path == "/":
        write(page, TICKET + " " + "x" * 400)
        page.locator(".head").nth(1).click()
        expect(page.locator(".row-bars li").first).to_be_visible()
    else:
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
