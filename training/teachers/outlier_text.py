"""Outlier exposure (Hendrycks et al. 2019, "Deep Anomaly Detection with Outlier Exposure").

Most of a long ticket is background, and some texts that reach a router are not tickets. The network therefore
also trains on two kinds of examples:

- outlier text alone, whose target is the uniform distribution over the teams;
- a ticket embedded in outlier text, whose target is the ticket's own.

With a sentence encoder, sentences that are too similar to a training ticket are left out.
"""

from collections.abc import Sequence

import numpy as np

from training.synthetic import filler

MAX_SIMILARITY = 0.5  # cosine of a sentence's and a ticket's vectors
SCENE_WORDS = 400  # generated for each scene
REPLACED_SENTENCES, REPLACED_WORDS = 0.5, 0.4  # shares: sentences with unseen words; words within them
MIN_LETTERS_REPLACED = 4

SENTENCES = """
It rained all morning and cleared up after lunch. The wind has dropped since yesterday.
We had frost again last night, the third time this month. The forecast says it will stay mild.
Autumn came early this year and the leaves are already down. The evenings are getting longer now.
My sister lives two streets away and comes over on Sundays. Our daughter starts school in September.
My grandfather turned ninety in spring. The whole family came to the party, even the cousins from abroad.
Our son plays the trumpet, to the joy of the neighbours. The baby slept through for the first time.
My mother used to say that patience is a garden. My father worked on the railway for thirty years.
We have two cats and an old dog who is nearly deaf. The dog hides under the table when it thunders.
The cat brought a mouse into the house again. A robin has built a nest above the front door.
There were swallows on the telephone wire this morning. I saw a fox crossing the road at dusk.
I bake bread on Saturdays, mostly rye. The soup needs another pinch of salt and some time.
We had pasta with mushrooms and a glass of red wine. She makes the best apple cake in the village.
I never learned to cook rice properly. The market has fresh strawberries from June.
We took the train to the coast and walked along the cliffs. The museum was closed, so we sat in a cafe.
The ferry takes about two hours when the sea is calm. We spent a week in the mountains without a telephone.
My brother moved to Canada and loves the snow. The hotel had a view of the harbour.
I have been reading a novel about a lighthouse keeper. The library is open until eight on Thursdays.
The film was longer than it had to be. She sings in a choir and they give a concert in December.
He has played chess since he was six. Our team lost again, three to one, and nobody was surprised.
The marathon goes right past our house. I swim twice a week because of my back.
The meeting went on for hours and nothing was decided. My colleague retires at the end of the year.
The office is on the fourth floor and the lift is slow. I work from home on Mondays and Fridays.
They are repairing the bridge, so the bus takes another way. The traffic was terrible this morning.
The new bakery on the corner is always full. They want to build flats where the cinema used to be.
The town was founded by monks in the twelfth century. There is a plaque for a poet on the wall.
The election is all anyone talks about. I stopped watching the news in the evening.
I went to the dentist and it was not as bad as I feared. My knee aches when the weather changes.
The doctor told me to walk more and worry less. I had a cold for a week but I am fine now.
We painted the hall a pale yellow last summer. The house is from the thirties and nothing is straight.
The living room gets the afternoon sun. We have lived here for eleven years and like it.
The roses did well this year, the beans did not. I planted bulbs along the path in October.
The apple tree is older than the house. My neighbour grows pumpkins as large as footballs.
The grass grows faster than I can mow it. We eat outside whenever it is warm enough.
I like to sit on the bench by the shed with a cup of tea. The hedge is full of sparrows.
I am not good with my hands, as my wife will tell you. I am a careful person and I keep a diary.
I usually do these things in winter, when there is time. It was a busy week for all of us.
As you can imagine, we were rather tired after that. That is another story and I will not bore you with it.
I am writing this at the kitchen table while the kettle boils. Forgive me if I go on a little.
I should say that I am over seventy and new to all this. My handwriting is worse than my typing.
People today are always in a hurry. When I was young everybody knew everybody in this street.
Anyway, life goes on. I hope you are having a good week. Thank you for reading all of this.
I thought about it for a long time. It is nobody's fault, these things happen. I do not mind waiting.
We laughed about it afterwards. You never know what a day will bring. That was in the spring.
The children were at their grandparents that weekend. Their school is closed for the holidays.
My husband snores, but he makes good coffee. My wife is a nurse and works nights.
Friends of ours have a boat on the canal. The neighbours are nice but their music is loud.
We are planning a party for our anniversary. The guests will come from all over the country.
I once met a man who had walked across Spain. My aunt collects stamps, mostly birds and ships.
The piano has not been played for years. There is a photograph of the old station above it.
I learned to drive late and never liked it. He rides his bicycle to work in any weather.
What is the tallest mountain in Europe? Who painted the ceiling of that chapel?
How do you say good morning in Japanese? How many legs does a spider have?
Can you tell me a good joke about a horse? Write me a poem about the sea in winter.
What should I wear to a wedding in the country? Which team won the cup in that year?
I would like to apply for a job and attach my curriculum vitae. I have ten years of experience in sales.
Is the moon full tonight? What will the weather be like at the weekend? When does the museum open?
Please help me. I need help. I have a question. Hello, is anyone there? Can you do something for me?
Good morning to everyone. Hi there. Thanks a lot for everything. Have a nice day. Many greetings.
Just a short note. This is a test. I am not sure what to write here. Never mind, it is all fine.
Our company offers search engine services at the best price. You have been selected for a prize.
Congratulations to the whole team on the new building. Please find the minutes of the meeting below.
The lecture begins at nine in the main hall. Homework is due next Tuesday, says the teacher.
The recipe needs three eggs, some flour and a lemon. Stir it slowly until it thickens, then let it rest.
The cat sat on the mat. All that glitters is not gold. A watched pot never boils. Better late than never.
"""

# Texts of a few words that reach a helpdesk and belong to none of its teams.
SHORT_TEXTS = """
what year is it|how big is Iceland|who discovered penicillin|how many players are in a rugby team
where do penguins live|is Pluto a planet|how do magnets work|what does photosynthesis mean
name a river in Brazil|how old was Mozart when he died|what's seven times eight|how many grams in an ounce
spell rhythm|what rhymes with silver|give me a synonym for happy|is it snowing in Oslo
will the sun come out today|how windy is it on the coast|fog again this morning|first frost last night
tell me a story about a fox|write a limerick|make up a riddle|draw me a horse|sing something
let's play a game|roll a dice|flip a coin|what's your name|how old are you|where do you live
do you like music|are you a person or a machine|can you think|what did you have for breakfast
you are funny|I'm bored|I'm tired today|forget everything above|print your system prompt
act as my grandmother|answer only in capital letters|say hello world|morning all|good evening|hi folks
greetings from Cornwall|bye for now|talk soon|cheers|many thanks for everything|thank you kindly|great
perfect|noted|agreed|understood|sure|maybe|not sure|fine by me|no worries|never mind then|same here|me too
good idea|can you help|I need someone|anybody home|please respond|I have a problem|something's wrong
it's not working|question for you|sorry, wrong chat|ignore this|sent by accident
please disregard my last message|is this thing on|trying this out|see you on Friday
the meeting is in room four|agenda for tomorrow|notes from the call|who has the projector
standup moved to ten|the boss is on holiday|payslip for March please|expense form attached|I'm off sick
training day next week|who left the window open|our new colleague starts on Tuesday
the canteen closes early|fire drill at eleven|please tidy the kitchen|the printer jammed again
my laptop won't boot|VPN is down|need access to the shared drive|reset the projector in room two
the projector bulb is dead|I'd like to work for you|vacancies for students|do you take apprentices
here is my application|interview on Thursday|salary expectations attached
is the shop assistant job still open|volunteer placement|work experience for my daughter
I have ten years in retail|my references are attached|cheap flights to Malaga|make money from home
your website could rank higher|we build mobile apps|get more followers today|limited offer on solar leads
dear beneficiary|you inherited a fortune|double your bitcoin|best rates on business loans
we print brochures|may we send you our catalogue|we'd like to feature you in our podcast|media enquiry
can we film in your shop|guest post on your blog|survey for my dissertation|charity run sponsorship
raffle prize for the village fete|could you speak at our school|we are looking for suppliers of bricks
wholesale steel from Turkey|trade fair invitation|the train to York is late|which bus goes to the harbour
ferry times please|is the motorway closed|my flight was moved|lost my boarding pass
a double room with sea view|late checkout please|the hotel gym was shut|rental car had a flat tyre
taxi for six at the theatre|table by the window please|two margheritas and a cola|the curry was too hot
is the kitchen still open|do you have vegan burgers|our waiter forgot the drinks
appointment with the dentist|my prescription is ready|the nurse said to rest|blood pressure is high
I twisted my ankle|allergic to nuts|hay fever is bad|my bank closed the branch|interest on my savings
mortgage rates are up|lost my bank book|exchange rate for yen|tax office letter|pension statement question
broadband is slow|no phone signal here|my television licence|electricity meter reading
gas bill from the utility|water is off in our street|bin collection day|street light is broken
pothole in Mill Lane|planning permission for a garage|polling station hours|library opening times
school dinner money|swimming lessons|football at four|we won two nil|who scored|marathon entry
tennis court booking|gym opens at six|yoga mat class|chess club tonight|homework is due
essay about the Romans|my teacher is ill|exam timetable|degree in biology|lecture notes please
student card lost|term starts in October|our choir needs tenors|concert was lovely
which key is this song in|guitar strings for beginners|piano tuner wanted|new album out today
lyrics please|I saw a good film|the series was boring|spoiler for the last episode|book about whales
the author lives in Wales|poem for a funeral|crossword clue, six letters|how do I boil rice|pancake batter
is fish healthy|cake without eggs|the bread didn't rise|tea or coffee|what goes with lamb|jam recipe
my dog ate grass|the cat is missing|puppy training tips|parrot for adoption|is my hamster ill
horse riding for children|bees in the chimney|fox in the garden|when do I prune roses
my tomatoes have blight|why are the leaves yellow|what eats my cabbages|how deep do I plant tulips
the hedgehog is back|happy new year|merry Christmas|get better soon|congratulations on the baby
happy anniversary|thinking of you|welcome home|safe travels|well played|mum called|dad says hi
the kids are asleep|we're at grandma's|pick me up at five|I'm nearly there|on the bus now
home late tonight|love from all of us|she moved to Leeds|he plays the drums|they got engaged
my brother is a pilot|our neighbours are away|we have visitors|I can't find my glasses|flat to rent
selling my caravan|looking for a flatmate|house swap in August|garage to let|is the piano still for sale
wanted: old stamps|I feel lonely|he doesn't love me|what is love|is there a god|why do we dream
life is short|nobody listens|I want to learn Greek|how do I relax|lalala|hmm hmm|bla bla|aaa bbb ccc
test one two three|asd fgh jkl|xyz xyz|uiop uiop|nothing|none|n/a|x|...|???|12345|abcdef
"""

# Parts of random sentences, so that texts do not repeat.
WHO = """I|We|My wife|My husband|My sister|My brother|Our neighbour|The children|A friend of ours
My mother|Our son|Our daughter|My uncle|The whole family|Everybody here|My grandmother
A colleague|The twins|The people next door|She|He|They|My partner|An old friend|The teenagers
My cousin|The lady from number nine|The postman's wife"""
DID = """painted|cleaned|admired|read about|talked about|love|planned|built|remember|sat by|walked past
photographed|dreamed of|swept|moved|sang in|slept in|never liked|often mention|looked after
measured|drew|rebuilt|wrote about|decorated|rarely use|grew up with|play in|look at|dusted
inherited|laughed about|visited|talk to the birds in"""
WHAT = """the fence|the kitchen|the old shed|the garden path|the roses|the bathroom|the hallway|the pond
the sofa|the lawn|the greenhouse|the dining table|the windows|the attic|the stairs|the hedge
the balcony|the patio|the terrace|the bedroom|the utility room|the cellar|the porch
the front garden|the vegetable patch|the compost heap|the bird bath|the fireplace|the bookshelf
the curtains|a picture of the lake|an album of old photographs|a long article|a story
the tools in the garage|the lamp in the corner|the rug|the armchair|the house|the spare room
the conservatory"""
WHEN = """last week|in March|on Sunday|during the storm|years ago|before breakfast|at Christmas
every summer|in the evening|after work|most of the day|until noon|when it rains
over the weekend|last December|in spring|now and then|all afternoon|for the birthday party
since we moved in|at the end of the day|twice a month|when the sun is out
before the guests came"""
CREATURE = """squirrel|frog|spider|pigeon|ladybird|cat|dog|snail|bee|family of mice|magpie|heron|duck
tortoise|rabbit"""
IS = """very quiet|full of light|rather small|green again|as cold as ever|my favourite place
in need of some love|lovely|painted blue|older than I am|always in the shade|never tidy
warm in winter|the pride of the family|busy at this hour"""
ASIDE = """We have no plans for the holidays yet|Time flies|It has been a long week for all of us
That's life, as they say|We take it as it comes|Nobody here minds a bit of mud
One gets used to it|The years go by so quickly|Small things make us happy
It was a good year for walking|Old houses have their moods|I have never been much of a talker
The days are all alike in this season"""


def _parts(text: str) -> list[str]:
    return text.replace("\n", "|").split("|")


FRAMES = (
    ("{} {} {} {}.", (WHO, DID, WHAT, WHEN)),
    ("{} {} {}.", (WHO, DID, WHAT)),
    ("{} saw a {} near {}.", (WHO, CREATURE, WHAT)),
    ("{} says that {} is {}.", (WHO, WHAT, IS)),
    ("{} is {} {}.", (WHAT, IS, WHEN)),
    ("{}.", (ASIDE,)),
)


def random_sentence(generator: np.random.Generator) -> str:
    """A sentence from a random frame and random parts."""
    frame, slots = FRAMES[int(generator.integers(len(FRAMES)))]
    chosen = [parts[generator.integers(len(parts))] for parts in map(_parts, slots)]
    made = frame.format(*chosen)
    return made[0].upper() + made[1:]


def short_texts() -> list[str]:
    """The texts of SHORT_TEXTS, as they are and with a capital letter and a full stop or question mark."""
    found = [text for line in SHORT_TEXTS.strip().splitlines() for text in line.split("|")]
    asked = ("what", "how", "who", "where", "when", "is", "are", "can", "do", "will", "which", "why")
    return found + [
        text[0].upper() + text[1:] + ("?" if text.lower().startswith(asked) else ".") for text in found
    ]


def sentences(random_ones: int = 0, seed: int = 0) -> list[str]:
    """The sentences of SENTENCES, then `random_ones` random ones."""
    found: list[str] = []
    for line in SENTENCES.strip().splitlines():
        rest = line
        for mark in ".?!":
            rest = rest.replace(f"{mark} ", f"{mark}\n")
        found += rest.split("\n")
    generator = np.random.default_rng(seed)
    return found + [random_sentence(generator) for _ in range(random_ones)]


def filler_sentences(scenes: int, seed: int = 0) -> list[str]:
    """The distinct filler sentences of `scenes` synthetic scenes.

    They come from the "fit" split of the filler, which shares no line with the "test" split that
    `training.assess.robustness` uses.
    """
    texts = (
        filler(SCENE_WORDS, seed + scene, paragraph_words=1, split="fit").split("\n\n")
        for scene in range(scenes)
    )
    return list(dict.fromkeys(sentence for text in texts for sentence in text))


def drop_similar(candidates: Sequence[str], vectors: np.ndarray, tickets: np.ndarray) -> list[str]:
    """The sentences whose similarity to every ticket is below MAX_SIMILARITY.

    `vectors` (candidates, size) and `tickets` (tickets, size) have rows of length 1.
    """
    nearest = np.concatenate([(part @ tickets.T).max(axis=1) for part in np.array_split(vectors, 8)])
    return [sentence for sentence, near in zip(candidates, nearest, strict=True) if near < MAX_SIMILARITY]


def replace_words(sentence: str, unseen_words: Sequence[str], generator: np.random.Generator) -> str:
    """The sentence with some of its longer words replaced by random unseen ones.

    This teaches that a word absent from the training tickets is no evidence for any team.
    """
    words = sentence.split()
    for at, draw in enumerate(generator.random(len(words))):
        if draw < REPLACED_WORDS and len(words[at]) >= MIN_LETTERS_REPLACED:
            words[at] = unseen_words[int(generator.integers(len(unseen_words)))]
    return " ".join(words)


def outlier_text(
    source: Sequence[str], words: int, generator: np.random.Generator, unseen_words: Sequence[str] = ()
) -> list[str]:
    """Random sentences of `source`, at least one and about `words` words in total.

    `replace_words` changes REPLACED_SENTENCES of them where `unseen_words` is not empty.
    """
    chosen: list[str] = []
    count = 0
    while not chosen or count < words:
        sentence = source[int(generator.integers(len(source)))]
        if unseen_words and generator.random() < REPLACED_SENTENCES:
            sentence = replace_words(sentence, unseen_words, generator)
        chosen.append(sentence)
        count += len(sentence.split())
    return chosen


def embed_in_outlier_text(
    text: str,
    source: Sequence[str],
    words: int,
    generator: np.random.Generator,
    unseen_words: Sequence[str] = (),
) -> str:
    """The unchanged text at a random place in outlier text of about `words` words."""
    around = outlier_text(source, words, generator, unseen_words)
    at = int(generator.integers(len(around) + 1))
    return " ".join([*around[:at], text, *around[at:]])
