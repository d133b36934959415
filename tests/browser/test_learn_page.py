"""/learn in a real browser: the walk in seven steps and the key-size slider, with the lesson's figures."""

import re

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

# What the matrix named first must show, row by row, at each step.
WALK = {
    ("none", 2, "Q"): ["0.5 1.5", "0 0", "1 0"],
    ("none", 2, "K"): ["1 0", "0 0.5", "0 2"],
    ("none", 2, "V"): ["2 0", "0 0", "0 1"],
    ("none", 3, "S"): ["0.5 0.75 3", "0 0 0", "1 0 0"],
    ("none", 4, "S/√d_k"): ["0.354 0.53 2.121", "0 0 0", "0.707 0 0"],
    ("none", 6, "A"): ["0.124 0.148 0.728", "0.333 0.333 0.333", "0.503 0.248 0.248"],
    ("none", 7, "O"): ["0.248 0.728", "0.667 0.333", "1.007 0.248"],
    ("causal", 5, "M"): ["0 −∞ −∞", "0 0 −∞", "0 0 0"],
    ("causal", 6, "A"): ["1 0 0", "0.5 0.5 0", "0.503 0.248 0.248"],
    ("causal", 7, "O"): ["2 0", "1 0", "1.007 0.248"],
    ("padding", 5, "M"): ["0 0 −∞", "0 0 −∞", "0 0 −∞"],
    ("padding", 6, "A"): ["0.456 0.544 0", "0.5 0.5 0", "0.67 0.33 0"],
}
FIGURES = {
    4: ["4.03 1.006", "0.335 0.152", "0.1% 0.0%", "0.2918 0.2337"],
    16: ["15.84 0.990", "0.637 0.165", "3.0% 0.0%", "0.2875 0.2388"],
    64: ["63.69 0.995", "0.822 0.163", "23.5% 0.0%", "0.1948 0.2395"],
    256: ["256.00 1.000", "0.903 0.164", "51.1% 0.0%", "0.1129 0.2405"],
    1024: ["1,024.99 1.001", "0.953 0.164", "73.2% 0.0%", "0.0570 0.2403"],
}


def rows_of(figure):
    return [" ".join(row.locator("td").all_inner_texts()) for row in figure.locator("tbody tr").all()]


def test_the_walk_shows_every_matrix_by_hand(visit):
    page = visit("/learn")
    expect(page.locator("#walk-body h3")).to_have_text("Step 1 of 7: The input")
    for (mask, step, name), expected in WALK.items():
        page.check(f"input[value={mask}]")
        page.locator("#walk-steps button").nth(step - 1).click()
        figure = page.locator(".matrix").filter(has=page.locator(f"b:text-is('{name}')"))
        assert rows_of(figure) == expected, (mask, step)
        shape = f"{len(expected)} × {len(expected[0].split())}"
        expect(figure.locator(".shape")).to_have_text(shape)
        expect(figure.locator("tr.traced th")).to_have_text("damaged")
        if step == 7 and mask == "causal":
            expect(page.locator(".trace")).to_contain_text("Its output is (2, 0)")


def test_the_walk_by_keyboard(visit):
    page = visit("/learn")
    page.locator("#walk-next").focus()
    for step in range(2, 8):
        page.keyboard.press("Enter")
        expect(page.locator("#walk-body h3")).to_contain_text(f"Step {step} of 7")
    expect(page.locator("#walk-next")).to_be_disabled()
    page.locator("#walk-back").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#walk-body h3")).to_contain_text("Step 6 of 7")
    expect(page.locator("#walk-back")).to_be_focused()
    page.locator("input[value=none]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".trace")).to_contain_text("damaged 1, on 0, arrival 0; together 1")


def test_the_slider_shows_the_measured_figures(visit):
    page = visit("/learn")
    slider = page.locator("#key-size")
    slider.focus()
    for place, (size, expected) in enumerate(FIGURES.items()):
        if place:
            with page.expect_response(re.compile(rf"/learn/draw\?d_k={size}&")):
                page.keyboard.press("ArrowRight")
        # The first draw of each key size shows the averages of which the sentence speaks.
        average = float(expected[1].split()[0])
        page.wait_for_function(
            "average => Math.abs(Number(document.querySelector('.bars .value')?.innerText) - average) < .006",
            arg=average,
        )
        expect(page.locator("#key-size-now")).to_have_text(str(size))
        assert slider.get_attribute("aria-valuetext") == f"d_k = {size}"
        rows = page.locator(".figures tbody tr")
        assert [" ".join(row.locator("td").all_inner_texts()) for row in rows.all()] == expected
    expect(page.locator("#size-says")).to_contain_text("its gradient shrinks to 0.057")


def test_another_query_is_drawn_by_the_service(visit):
    page = visit("/learn")
    expect(page.locator(".columns-chart")).to_have_count(2)
    expect(page.locator(".columns-chart .column")).to_have_count(64)
    first = page.locator(".bars .value").all_inner_texts()
    with page.expect_response(re.compile(r"/learn/draw\?d_k=4&seed=614$")) as response:
        page.click("#draw-again")
    largest = response.value.json()["unscaled"][0]
    expect(page.locator(".bars .value").first).to_have_text(f"{largest:.3f}".rstrip("0"))
    assert page.locator(".bars .value").all_inner_texts() != first
    expect(page.locator("#draw-again")).to_be_focused()


def test_the_walk_in_french(visit):
    page = visit("/learn", locale="fr-FR")
    page.locator("#walk-steps button").nth(5).click()
    expect(page.locator("#walk-body h3")).to_have_text("Étape 6 sur 7\u00a0: Softmax")
    assert rows_of(page.locator(".matrix"))[0] == "0,124 0,148 0,728"
    assert page.title().startswith("Routeur")


def test_a_service_that_is_away_is_said_to_be(visit):
    page = visit()
    page.route("**/learn/numbers", lambda route: route.abort())
    page.goto(page.url + "learn")
    expect(page.locator("#status")).to_contain_text("could not be fetched")
    visit.errors.clear()


def test_a_question_comes_before_its_answer(visit):
    page = visit("/learn")
    page.locator("#walk-steps button").nth(2).click()
    question = page.locator("#walk-body .predict")
    expect(question).to_contain_text("Which word fits the query")
    expect(question.locator("p")).to_be_hidden()
    question.locator("summary").click()
    expect(question.locator("p")).to_contain_text("(0.5, 1.5) · (0, 2) = 3")


def test_heads_and_tokens_have_their_cost(visit):
    page = visit("/learn")
    expect(page.locator("#cost")).to_have_text(
        "4 × 16 columns: the layer has 16,640 parameters, whatever h is. "
        "Its weights are h · n² = 57,600 numbers, 230.4 kB in float32."
    )
    page.locator("#heads-count").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#cost")).to_contain_text("8 × 8 columns: the layer has 16,640 parameters")
    expect(page.locator("#cost")).to_contain_text("115,200 numbers")


def test_longer_tickets_have_their_cost(visit):
    page = visit("/learn", locale="fr-FR")
    rows = [
        " ".join(row.locator("th, td").all_inner_texts())
        for row in page.locator("#cost-table tbody tr").all()
    ]
    plain = [row.replace("\u202f", " ").replace("\u00a0", " ") for row in rows]
    assert plain == [
        "128 16 384 0,07 Mo 0,10 Mo",
        "1 024 1 048 576 4,19 Mo 0,79 Mo",
        "8 192 67 108 864 268,44 Mo 6,29 Mo",
    ]


def test_the_lessons_ticket_stands_beside_this_routers_heads(visit):
    page = visit("/learn")
    rows = page.locator("#ticket-lesson tbody tr")
    assert [" ".join(row.locator("th, td").all_inner_texts()) for row in rows.all()] == [
        "1 “twice” 0.50 “twice” 0.355",
        "2 “charge” 0.55 “charge” 0.208",
        "3 “remove” 0.50 “remove” 0.118 and “you” 0.116",
        "4 “remove” 0.48 “remove” 0.274",
    ]
    live = page.locator("#ticket-body tbody tr")
    expect(live).to_have_count(8)
    expect(page.locator("#ticket-body thead")).to_contain_text("“not” reads")
    expect(page.locator("#ticket-grid .head")).to_have_count(8)
    page.locator("#ticket-grid .head").first.click()
    expect(page.locator("#larger-title")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#ticket-grid .head").first).to_be_focused()


def test_another_ticket_and_another_reader(visit):
    page = visit("/learn")
    expect(page.locator("#ticket-body tbody tr")).to_have_count(8)
    with page.expect_response(re.compile(r"/route$")) as response:
        page.fill("#ticket-input", "My parcel is late")
    weights = response.value.json()["explanation"]["heads"]
    assert len(weights) == 8
    expect(page.locator("#ticket-reader option")).to_have_text(["1 · My", "2 · parcel", "3 · is", "4 · late"])
    expect(page.locator("#ticket-body caption")).to_contain_text("X is (4, 64)")
    page.select_option("#ticket-reader", "1")
    expect(page.locator("#ticket-body thead")).to_contain_text("“parcel” reads")
    page.fill("#ticket-input", " ")
    expect(page.locator("#ticket-body tbody tr")).to_have_count(0)


def test_a_hidden_score_of_zero_would_leak(visit):
    page = visit("/learn")
    page.locator("#walk-steps button").nth(4).click()
    question = page.locator("#walk-body .predict").nth(1)
    question.locator("summary").click()
    expect(question.locator("p")).to_contain_text("0.416, 0.292 and 0.292")
