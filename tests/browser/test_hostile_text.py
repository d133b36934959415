"""Ticket text never runs and never loads anything, wherever the page shows it."""

import pytest

from tests.browser.writing import write

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

ATTACKS = {
    "script": "<script>window.ran = 1</script> my card was charged twice",
    "closing": "</textarea></script><script>window.ran = 1</script> charged",
    "image": '<img src=x onerror="window.ran = 1"> refund please',
    "foreign image": "<img src='http://192.0.2.1/pixel.png'> refund please",
    "svg": "<svg onload=window.ran=1><animate onbegin=window.ran=1 attributeName=x dur=1s> parcel",
    "attribute": '" onmouseover="window.ran=1" onfocus="window.ran=1" autofocus x=" password',
    "link": "<a href='javascript:window.ran=1'>click</a> my order javascript:window.ran=1",
    "frame": "<iframe srcdoc='<script>parent.ran=1</script>'></iframe> delivery",
    "style": "<style>body{display:none}</style><link rel=stylesheet href=//192.0.2.1/x.css> label",
    "template": "${window.ran=1} {{constructor.constructor('window.ran=1')()}} {team} {word} invoice",
    "entities": "&lt;script&gt;window.ran=1&lt;/script&gt; &#60;img src=x onerror=window.ran=1&#62; pump",
    "prototype": "__proto__ constructor toString hasOwnProperty charged",
}
ODD = {
    "right to left": "\u202egnp.exe\u202c my parcel \u2066broke\u2069 سلام عليكم",
    "combining": "Z\u0351\u036b\u0343\u036a\u0302a\u0321l\u0334g\u0322o order broke",
    "emoji": "👩‍👩‍👧‍👦 my 🪴 pot 🏴󠁧󠁢󠁥󠁮󠁧󠁿 broke 😀😀",
    "astral": "𝓜𝔂 𝓬𝓪𝓻𝓭 𝔀𝓪𝓼 𝓬𝓱𝓪𝓻𝓰𝓮𝓭 twice",
    "zero width": "cha\u200brged tw\u200dice \ufeff\u2060 card",
    "full width": "ｃｈａｒｇｅｄ ｔｗｉｃｅ ﬁrst … “quotes”",
    "line separators": "one\u2028two\u2029three\u0085four\x0bfive card",
    "long word": "charged" * 200 + " twice",
}


def show_everywhere(page, text):
    """Put the text in both fields and make the page show it in every place that it has."""
    _, full = write(page, text, text.translate(dict.fromkeys(map(ord, "\n\r"), " "))[:900])
    expect(page.locator(".head")).to_have_count(8)
    words = page.locator("button.word")
    for number in {0, words.count() // 2, words.count() - 1}:
        words.nth(number).focus()
        words.nth(number).hover(force=True)
    for head in (0, 7):
        page.locator(".head").nth(head).click()
        for key in ("ArrowDown", "ArrowRight", "ArrowUp"):
            page.locator("#large-map").press(key)
    page.locator("#row-picker").select_option("0")
    page.click("#language")
    page.click("#language")
    return full


def tags(page):
    return set(page.evaluate("[...document.querySelectorAll('*')].map(e => e.tagName)"))


def test_markup_in_a_ticket_stays_text(visit):
    page = visit()
    show_everywhere(page, "My card was charged twice for one order, please remove one charge.")
    plain = tags(page) | {"UL", "OL", "LI", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "OPTION"}
    for name, text in ATTACKS.items():
        show_everywhere(page, text)
        assert page.evaluate("window.ran") is None, name
        assert page.input_value("#text") == text
        assert tags(page) <= plain, name
        assert page.locator("script").count() == 1, name
        handlers = page.evaluate(
            """() => [...document.querySelectorAll('*')].flatMap(e => [...e.attributes])
            .filter(a => a.name.startsWith('on') || (a.name === 'href' && /^\\s*javascript:/i.test(a.value)))
            .map(a => a.name)"""
        )
        assert handlers == [], name


def test_odd_unicode_is_shown_as_it_was_sent(visit):
    page = visit()
    for name, text in ODD.items():
        answer = show_everywhere(page, text)
        shown = page.evaluate("document.querySelector('#words .field-text').textContent")
        assert shown == text == page.input_value("#text"), name
        assert all(0 <= t["start"] <= t["end"] <= len(text) for t in answer["explanation"]["tokens"]), name


def test_a_lone_surrogate_does_not_stop_the_page(visit):
    page = visit()
    with page.expect_response("**/route") as response:
        page.evaluate(
            """() => { const area = document.querySelector('#text');
            area.value = 'charged \\ud83d twice'; area.dispatchEvent(new Event('input')); }"""
        )
    assert response.value.status == 200
    expect(page.locator("#words")).to_contain_text("charged \ufffd twice")


def test_hostile_answers_of_a_service_stay_text_too(visit):
    """Team names come from a bundle, and a proxy may answer anything."""
    page = visit()
    evil = "<img src=x onerror=window.ran=1>"

    def answer(route):
        full = '"full"' in route.request.post_data
        explanation = {
            "level": "tokens",
            "window": {"start": 0, "end": 1, "tokens": 1},
            "method": evil,
            "team": evil,
            "runner_up": "__proto__",
            "log_odds": 1,
            "words": [{"field": "text", "start": 0, "end": 4, "effect": 1}],
            "rest": 0,
            "smallest_change": {"words": [0], "team": evil, "limit": 1, "exhaustive": True},
        }
        heads = {
            "level": "full",
            "window": {"start": 0, "end": 1, "tokens": 1},
            "tokens": [{"field": "text", "start": 0, "end": 4, "word": 0}],
            "heads": [
                {
                    "block": 1,
                    "head": 1,
                    "strongest": [{"reader": 0, "read": 0, "weight": 1}],
                    "mean_read": [1],
                    "pattern": {"kind": evil, "share": 1},
                    "summary": evil,
                }
            ],
            "weights": {"encoding": "sqrt-uint16-le-base64", "shape": [1, 1, 1, 1], "data": "//8="},
        }
        route.fulfill(
            json={
                "ticket_id": None,
                "team": evil,
                "confidence": 0.9,
                "decision": "review",
                "reasons": [evil],
                "probabilities": {evil: 0.9, "__proto__": 0.1},
                "tokens": {"count": 1, "unknown": 0, "truncated": False},
                "model": {"name": evil, "version": evil},
                "explanation": heads if full else explanation,
            }
        )

    page.route("**/route", answer)
    page.fill("#text", "evil")
    expect(page.locator(".team")).to_have_text(evil)
    expect(page.locator(".head")).to_have_count(1)  # the heads come with an answer of their own
    page.locator(".head").click()
    page.locator("button.word").hover()
    assert page.evaluate("window.ran") is None
    assert page.locator("body img").count() == 0


def test_the_policy_forbids_what_the_page_does_not_need(visit, service_url):
    page = visit()
    for path in ("/", "/learn", "/web/app.js"):
        headers = page.request.get(service_url + path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    refused = page.evaluate(
        """() => new Promise(done => { document.addEventListener('securitypolicyviolation', () => done(true));
        const script = document.createElement('script'); script.textContent = 'window.ran = 1';
        document.body.append(script);
        setTimeout(() => done(false), 1000); })"""
    )
    assert refused
    assert page.evaluate("window.ran") is None
    visit.errors.clear()  # the browser reports the violation
