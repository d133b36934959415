"""The synthetic tickets: deterministic, varied, and labelled by construction as the policy says."""

import csv
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from mails import FORMATS, as_mail

from training.data.dataset import load_dataset
from training.synthetic import STYLES, TEAMS, Stream, filler, generate, out_of_scope
from training.synthetic.__main__ import main as write_file
from training.synthetic.content import content
from training.synthetic.grammar import GrammarError, expand, parse, tidy
from training.synthetic.parts import Parts
from training.synthetic.scene import Scene
from training.synthetic.tickets import TEAM_SHARES
from training.synthetic.untidy import slips

COUNT = 6000


@pytest.fixture(scope="module")
def tickets():
    return generate(COUNT, seed=0)


# ------------------------------------------------------------------ the same everywhere


def test_the_same_seed_gives_the_same_tickets_in_any_number(tickets):
    assert generate(500, seed=0) == tickets[:500]


def test_another_seed_gives_other_tickets(tickets):
    texts = {ticket.text for ticket in tickets}
    others = {ticket.text for ticket in generate(500, seed=1)}
    assert len(others & texts) <= 5  # a bare short question may come up twice


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_file_has_the_same_bytes_for_any_hash_seed(tmp_path, hash_seed):
    write_file(["--count", "200", "--seed", "7", "--out", str(tmp_path / "here.csv")])
    command = [sys.executable, "-m", "training.synthetic", "--count", "200", "--seed", "7", "--out"]
    subprocess.run([*command, str(tmp_path / "there.csv")], check=True, env={"PYTHONHASHSEED": hash_seed})
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_the_file_reads_back_as_a_data_set_without_faults(tmp_path, tickets):
    path = tmp_path / "tickets.csv"
    write_file(["--count", "300", "--out", str(path)])
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == [ticket.text for ticket in tickets[:300]]
    dataset = load_dataset(path)
    assert dataset.teams == tuple(sorted(TEAMS))
    assert len(dataset.train) + len(dataset.valid) == 300
    assert not list(dataset.faults)


# ------------------------------------------------------------------ what it covers


def test_no_text_comes_twice_and_ids_name_synthetic_tickets(tickets):
    assert len({ticket.text.casefold() for ticket in tickets}) == COUNT
    assert [ticket.ticket_id for ticket in tickets[:2]] == ["S-000001", "S-000002"]
    assert len({ticket.ticket_id for ticket in tickets}) == COUNT


def test_every_team_has_its_share_in_every_style_but_boundary(tickets):
    assert Counter(ticket.style for ticket in tickets).keys() == STYLES.keys()
    for style in STYLES.keys() - {"boundary"}:
        counts = Counter(ticket.team for ticket in tickets if ticket.style == style)
        for team, share in TEAM_SHARES.items():
            assert counts[team] / sum(counts.values()) == pytest.approx(share / 100, abs=0.03)


def test_every_situation_and_every_side_of_a_boundary_is_written():
    """Content that can never come up would be dead text; the deck deals all of it."""
    stream = Stream(seed=3)
    dealt = defaultdict(set)
    for _ in range(3000):
        subject, team, _ = stream.deal()
        dealt[team].add(subject.name)
    for team in TEAMS:
        assert {situation.name for situation in content().situations[team]} <= dealt[team]
    for pair in content().boundaries:
        for team in pair.clues:
            assert pair.name in dealt[team]


def test_there_is_enough_to_write_about():
    known = content()
    assert all(20 <= len(known.situations[team]) <= 40 for team in TEAMS)
    assert len(known.products) >= 60
    pairs = {frozenset(pair.clues) for pair in known.boundaries}
    assert {frozenset({"delivery", "warranty"}), frozenset({"returns", "payment"})} <= pairs


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("team", TEAMS)
def test_teams_and_styles_can_be_asked_for_alone(team, style):
    some = generate(20, seed=2, teams=[team], styles=[style])
    assert {(ticket.team, ticket.style) for ticket in some} == {(team, style)}


def test_styles_have_their_marks(tickets):
    words = defaultdict(list)
    for ticket in tickets:
        words[ticket.style].append(len(ticket.text.split()))
    assert max(words["short"]) <= 25
    assert min(words["long"]) >= 50
    for ticket in tickets:
        if ticket.style == "negation":
            assert re.search(r"\b(not|n't|nor|neither|no|nothing|forget)\b|n't", ticket.text, re.I), (
                ticket.text
            )
    lower = [ticket.text == ticket.text.lower() for ticket in tickets if ticket.style == "typos"]
    assert 0.3 < sum(lower) / len(lower) < 0.9


# ------------------------------------------------------------------ labels by construction


def test_a_boundary_ticket_contains_the_clue_for_its_team():
    """Both sides draw on the same shared lines, so the clue alone must tell the teams apart."""
    for pair in content().boundaries:
        for team, clues in pair.clues.items():
            others = [line for other, lines in pair.clues.items() if other != team for line in lines]
            assert not set(clues) & set(others)
        assert not set(pair.lines["shared"]) & {line for lines in pair.clues.values() for line in lines}


def _all_texts(template: str, draws: int = 60) -> set[str]:
    known = content()
    texts = set()
    for seed in range(draws):
        rng = random.Random(seed)
        scene = Scene(known, rng, known.voices["neutral"], rng.choice(known.products))
        texts.add(scene.say(template))
    return texts


CLUE_WORDS = {
    (
        "arrival_or_use",
        "delivery",
    ): r"unpack|open|out of the box|arriv|deliver|came|before|brand new|tape|packag|"
    r"first minute|box|carton|handed",
    ("arrival_or_use", "warranty"): r"week|month|year|summer|season|use|slowly|steadily|time|later",
    ("refund", "returns"): r"not|n't|never|nobody|no one|no |without|open|on its way back|in transit",
    ("refund", "payment"): r"confirm|said|says|approved|announced|paid|sent|left you|processed|complete|"
    r"went through|done|refunded",
}


@pytest.mark.parametrize(("side", "must"), CLUE_WORDS.items(), ids=[f"{a}-{b}" for a, b in CLUE_WORDS])
def test_each_clue_follows_the_policy_of_its_team(side, must):
    pair, team = side
    boundary = next(found for found in content().boundaries if found.name == pair)
    for line in boundary.clues[team]:
        for text in _all_texts(line):
            assert re.search(must, text, re.IGNORECASE), text


def test_confirmed_refunds_never_go_to_returns_and_unconfirmed_ones_never_to_payment(tickets):
    confirmed = re.compile(
        r"refund (was|is|has been) (approved|confirmed|processed|paid|complete)|confirmed (the|my) refund"
    )
    unconfirmed = re.compile(
        r"(not|n't|never|nobody has|no one has|nobody) confirmed (that|the return|my return|receipt)"
    )
    for ticket in tickets:
        if ticket.style != "boundary":
            continue
        if confirmed.search(ticket.text):
            assert ticket.team == "payment", ticket.text
        if unconfirmed.search(ticket.text):
            assert ticket.team == "returns", ticket.text


def test_remarks_on_other_business_never_name_the_tickets_own_team():
    """Distractors, negations and finished matters come from the four other teams."""
    known = content()
    for team in TEAMS:
        parts = Parts(known, random.Random(1), known.situations[team][0], team, hurried=False)
        own = {aside.text for asides in known.asides[team].values() for aside in asides}
        for kind in ("fine", "trouble", "not", "matter"):
            assert not {parts._aside(kind).text for _ in range(300)} & own


def test_a_ticket_never_denies_what_it_asks_for():
    """A refund ticket does not say that it is not about a refund."""
    known = content()
    for team in TEAMS:
        for situation in known.situations[team]:
            parts = Parts(known, random.Random(5), situation, team, hurried=False)
            assert not {parts._aside("not").topic for _ in range(100)} & situation.avoid


# ------------------------------------------------------------------ variety


def _trigrams(texts):
    for text in texts:
        words = re.findall(r"[a-z0-9']+", re.sub(r"lk-?\d+", "order", text.lower()))
        yield from zip(words, words[1:], words[2:], strict=False)


def test_tickets_do_not_collapse_into_templates(tickets):
    texts = [ticket.text for ticket in tickets]
    trigrams = list(_trigrams(texts))
    assert len(set(trigrams)) / len(trigrams) > 0.3
    assert Counter(trigrams).most_common(1)[0][1] < 0.06 * COUNT


def test_near_duplicates_are_rare(tickets):
    """Two tickets share over half of their trigrams in fewer than one case in a hundred."""
    seen = defaultdict(list)
    sets = []
    near = 0
    for ticket in tickets[:2000]:
        own = set(_trigrams([ticket.text]))
        overlap = Counter(other for gram in own for other in seen[gram][:200])
        near += any(n / len(own | sets[other]) > 0.5 for other, n in overlap.items())
        for gram in own:
            seen[gram].append(len(sets))
        sets.append(own)
    assert near < 20


@pytest.mark.slow
def test_fifty_thousand_tickets_hardly_repeat():
    texts = Counter(ticket.text.casefold() for ticket in generate(50_000, seed=4))
    assert 50_000 - len(texts) < 50


# ------------------------------------------------------------------ the grammar


def test_every_template_reads_and_every_slot_is_known():
    known = content()
    given = {
        "what",
        "do",
        "want",
        "aside",
        "aside2",
        "topic",
        "topic2",
        "matter",
        "clause",
        "solved",
        "settled",
        "line",
    }
    rng = random.Random(0)
    scene = Scene(known, rng, known.voices["neutral"], known.products[0])
    for name in given:
        scene.extra[name] = "x"
    for template in _templates(known):
        for name in re.findall(r"\{([a-z_0-9]+)\}", template):
            assert isinstance(scene.slot(name), str), f"{name} in {template!r}"


def _templates(known):
    yield from known.phrases.values()
    groups = [known.frames, known.filler, known.short, *known.faults.values(), *known.out_of_scope.values()]
    groups += [voice.lines for voice in known.voices.values()]
    groups += [situation.lines for team in TEAMS for situation in known.situations[team]]
    groups += [lines for pair in known.boundaries for lines in (pair.lines, pair.clues)]
    for group in groups:
        for lines in group.values():
            yield from lines
    for tones in known.asides.values():
        yield from (aside.text for asides in tones.values() for aside in asides)


@pytest.mark.parametrize("template", ["[a|b", "a]b]", "{Upper}"])
def test_a_template_that_cannot_be_read_is_quoted(template):
    with pytest.raises(GrammarError, match=re.escape(repr(template))):
        parse(template)


def test_choices_nest_and_empty_ones_leave_no_gap():
    texts = {
        expand("[a [b|c]|d] [|{x}] .", random.Random(seed), {"x": "slot"}.__getitem__) for seed in range(60)
    }
    assert texts == {"a b.", "a c.", "d.", "a b slot.", "a c slot.", "d slot."}


def test_tidy_says_an_before_a_vowel():
    assert tidy("a old hose , a used one, A email") == "an old hose, a used one, An email"


def test_slips_change_words_but_not_numbers():
    text = "where is the parcel with order LK-123456 and my address me@example.org"
    out = slips(text, random.Random(0), rate=1.0)
    assert "LK-123456" in out
    assert "me@example.org" in out
    assert sum(a != b for a, b in zip(text.split(), out.split(), strict=True)) >= 6
    assert slips(text, random.Random(0), rate=0.0) == text


# ------------------------------------------------------------------ texts for other tests


@pytest.mark.parametrize("split", ["fit", "test"])
@pytest.mark.parametrize("words", [1, 150, 2000])
def test_filler_is_as_long_as_asked_and_names_no_business(words, split):
    text = filler(words, seed=1, split=split)
    assert words <= len(text.split()) < words + 40
    business = (
        r"parcel|courier|deliver|refund|return|exchang|guarantee|warrant|repair|password|log ?in|sign|account"
    )
    business += r"|invoice|voucher|discount|charged|label|points|newsletter|tracking"
    assert not re.search(business, text, re.IGNORECASE)
    assert text == filler(words, seed=1, split=split) != filler(words, seed=2, split=split)


def test_stories_for_tests_hold_no_sentence_of_the_tickets(tickets):
    story = set(re.split(r"(?<=[.?!])\s+", filler(20_000, seed=3, split="test")))
    assert len(story) > 1000
    told = {sentence for ticket in tickets for sentence in re.split(r"(?<=[.?!])\s+", ticket.text)}
    assert not story & told


def test_out_of_scope_texts_for_fitting_and_for_testing_share_nothing():
    known = content().out_of_scope
    assert known["fit"].keys() == known["test"].keys()
    for kind in known["fit"]:
        assert not set(known["fit"][kind]) & set(known["test"][kind])
    fit = {found.text.casefold() for found in out_of_scope(2000, split="fit")}
    test = {found.text.casefold() for found in out_of_scope(2000, split="test")}
    assert not fit & test


def test_out_of_scope_texts_come_in_every_kind():
    kinds = Counter(found.kind for found in out_of_scope(100, seed=0))
    assert kinds.keys() >= {"job", "weather", "creative", "noise", "other_language", "vague"}
    assert min(kinds.values()) == max(kinds.values()) == 10
    assert out_of_scope(50, seed=0) == out_of_scope(50, seed=0) != out_of_scope(50, seed=1)


def test_the_command_refuses_a_count_below_one(tmp_path, capsys):
    with pytest.raises(SystemExit):
        write_file(["--count", "0", "--out", str(Path(tmp_path) / "none.csv")])
    assert "--count" in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMATS)
def test_a_mail_is_deterministic_and_mentions_other_teams(form):
    mail = as_mail("My lamp flickers.", form, seed=1)
    assert mail == as_mail("My lamp flickers.", form, seed=1) != as_mail("My lamp flickers.", form, seed=2)
    assert "My lamp flickers." in mail
    everything = " ".join(as_mail("", form, seed) for seed in range(100))
    for word in ("courier", "refund", "invoice", "guarantee", "password"):
        assert word in everything
