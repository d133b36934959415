"""Words of danger and of legal threat, which raise the flag `urgent` whatever the network's confidence.

The flag tells a helpdesk that a person should see the ticket first: fire, smoke, injury, an electric shock, a
child in danger, a recall, a lawyer, a data breach. It changes neither the team nor the decision. Words are
listed for the languages of `PHRASES`. A listed phrase counts wherever it stands: "no smoke" raises the flag
too. What only names a thing ("smoke alarm", "fire pit", "child seat") does not.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice, takewhile

MAX_CHARACTERS = 50_000
BEGINNING = 4  # letters
_WORD = re.compile(r"\w+")

# One line for each language. A space stands for spaces, "*" for any letters that end the word.
PHRASES = {
    "English": """smoke|smoking|smoked|smoky|fire|flame|flames|in flames|burn|burns|burnt|burned
        burning|scald*|scorch*|overheat*|melted|melting|explod*|explosion*|spark|sparks|sparking|sparked
        gas leak|smell of gas|injur*|hurt|bleeding|bled|wound|wounded|hospital|ambulance|cut myself
        cut my|poison*|choke*|choking|suffocat*|electric shock|electrical shock|got a shock
        gave me a shock|electrocut*|live wire*|child|children|baby|toddler|danger|dangerous|hazard*
        unsafe|recall|recalled|recalls|lawyer*|solicitor*|attorney*|legal action|take you to court
        sue you|suing|lawsuit|ombudsman|data breach|data leak|data leaked|identity theft|stolen identity
        suicid*|kill myself""",
    "French": """fumée|fume|incendie|feu|flamme*|brûl*|brule*|brulé*|brulure*|surchauff*|explos*
        explosé*|étincelle*|etincelle*|fuite de gaz|odeur de gaz|blessé*|blesse|blessure*|hôpital
        hopital|saign*|choc électrique|choc electrique|électrocut*|décharge électrique|enfant|enfants
        bébé|danger|dangereux|dangereuse|rappel de produit|avocat|avocate|tribunal|fuite de données
        violation de données|vol de données""",
    "German": """rauch|raucht|qualm*|brennt|brannte|gebrannt|feuer|flamme*|verbrannt*|verbrenn*
        überhitz*|explodier*|explosion*|funken|gasgeruch|verletz*|krankenhaus|blutet*|stromschlag
        stromschläge|kinder|mein kind|unser kind|das kind|baby|gefahr|gefährlich*|rückruf|rückrufaktion
        anwalt|anwältin|rechtsanwalt*|klage|datenleck|datenpanne|datenschutzverletzung""",
    "Spanish": """humo|fuego|incendio|llamas|quemad*|quemó|quema|quemé|explot*|explosión|chispas
        fuga de gas|olor a gas|herid*|lesion*|hospital|sangr*|descarga eléctrica|calambre|niño|niña
        niños|bebé|peligro*|retirada del producto|abogado|abogada|demanda judicial|tribunal
        filtración de datos|fuga de datos""",
    "Italian": """fumo|fuoco|incendio|fiamme|bruciat*|brucia|ustion*|esplos*|scintille|fuga di gas
        odore di gas|ferit*|ospedale|sanguin*|scossa elettrica|scossa|bambino|bambina|bambini|neonato
        pericolo|pericoloso|pericolosa|richiamo del prodotto|avvocato|tribunale|fuga di dati
        violazione dei dati""",
    "Dutch": """rook|rookt|vuur|vlam|vlammen|verbrand*|brandwond*|oververhit*|ontplof*|explosie|vonken
        gaslek|gaslucht|gewond*|letsel|ziekenhuis|bloed|bloedt|bloeden|elektrische schok|stroomschok
        kinderen|mijn kind|ons kind|het kind|baby|gevaar|gevaarlijk*|terugroepactie|advocaat|rechtszaak
        datalek""",
    "Portuguese": """fumo|fumaça|fogo|incêndio|chamas|queim*|explodiu|explosão|faíscas|fuga de gás
        vazamento de gás|cheiro a gás|ferid*|ferimento*|hospital|sangr*|choque elétrico|criança|crianças
        bebê|bebé|perigo|perigoso|perigosa|advogado|advogada|tribunal|fuga de dados|vazamento de dados""",
    "Polish": """dym|dymi|dymu|pożar|ogień|płomie*|oparz*|poparz*|spali*|przegrzewa*|wybuch*|eksplo*
        iskry|iskrzy|wyciek gazu|zranion*|zranił*|skalecz*|szpital*|krwawi*|porażenie prądem|poraził*
        dziecko|dziecka|dzieci|niebezpiecz*|zagrożeni*|prawnik*|adwokat*|wyciek danych""",
}
# Names of things, and a verb, that hold a listed word.
HARMLESS = """smoke alarm*|smoke detector*|smoke machine*|smoke grey|smoke gray|smoked glass|smoked oak
fire pit*|fire bowl*|fire basket*|fire guard*|fire screen*|fire wood|fire door*|fire alarm*|fire stick*
fire tv|fire extinguisher*|flame effect*|child seat*|child lock*|child gate*|child safe*|child proof*
child's|children's|baby gate*|baby monitor*|baby seat*|sun burn|recall that|don't recall|do not recall
can't recall|cannot recall|as i recall|i recall|spark plug*|wound up|alarme incendie|détecteur de fumée
feu d'artifice|kindersitz*|feuerschale*|feuerstelle*|rookmelder*|brandblusser*|calambre del"""


def _phrases(lines: str) -> list[str]:
    """The phrases; of two that begin alike, the longer one first."""
    found = {phrase.strip() for line in lines.splitlines() for phrase in line.split("|")}
    return sorted(found - {""}, reverse=True)


def _pattern(lines: str) -> str:
    return "|".join(
        re.escape(phrase).replace(r"\*", r"\w*").replace(r"\ ", r"\s+") for phrase in _phrases(lines)
    )


@cache
def _compiled() -> re.Pattern[str]:
    """Harmless phrases first: where one matches, the danger within it does not count."""
    return re.compile(rf"\b(?:(?:{_pattern(HARMLESS)})\b|({_pattern(chr(10).join(PHRASES.values()))})\b)")


def urgent_words(text: str) -> list[str]:
    """The listed phrases in the text, each once, as they are written but lower-cased, in their order.

    Only the first MAX_CHARACTERS are searched, which bounds the time.
    """
    found = (match[1] for match in _compiled().finditer(text[:MAX_CHARACTERS].lower()) if match[1])
    return list(dict.fromkeys(" ".join(phrase.split()) for phrase in found))


class UrgentWords:
    """Finds the listed phrases in tickets that a tokenizer has read; most tickets cost it a microsecond.

    A phrase shows in a ticket by the token of its rarest word. Only a ticket with such a token is searched,
    or one with words that the vocabulary lacks, if one of its words begins like a word of a phrase.
    """

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        """`vocabulary` maps words to ids, which grow as words get rarer."""
        entries = sorted(vocabulary)
        self._ids: set[int] = set()
        self._beginnings: set[str] = set()  # of words that the vocabulary may lack
        for phrase in (one for lines in PHRASES.values() for one in _phrases(lines)):
            stems = [word.rstrip("*") for word in phrase.split()]
            matching = [_matching(word, vocabulary, entries) for word in phrase.split()]
            if all(matching):
                self._ids |= max(matching, key=min)
            if not all(matching) or "*" in phrase:
                self._beginnings.add(max(stems, key=len)[:BEGINNING])

    def find(self, text: str, ids: Sequence[int], unknown: int) -> list[str]:
        """The phrases in a text of these token ids, of which `unknown` are of words not in the vocabulary."""
        if self._ids.isdisjoint(ids):
            if not unknown:
                return []
            words = _WORD.findall(text[:MAX_CHARACTERS].lower())
            if self._beginnings.isdisjoint({word[:BEGINNING] for word in words}):
                return []
        return urgent_words(text)


def _matching(word: str, vocabulary: Mapping[str, int], entries: Sequence[str]) -> set[int]:
    """The ids of the words that `word`, which may end in "*", stands for; `entries` are sorted."""
    if not word.endswith("*"):
        return {vocabulary[word]} if word in vocabulary else set()
    stem = word.rstrip("*")
    alike = takewhile(lambda entry: entry.startswith(stem), islice(entries, bisect_left(entries, stem), None))
    return {vocabulary[entry] for entry in alike}
