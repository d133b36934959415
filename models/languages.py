"""The commonest function words of many languages in the Latin script.

Function words occur in texts on any subject, so that a few of them identify the language of a short ticket
without a model. For other scripts, see `script`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache

FUNCTION_WORDS = {
    "Catalan": "el la els les un una que de del dels en amb per no és són està meu meva què com quan"
    " aquest aquesta però també molt més sense hola gràcies si us plau on ha he hem heu han"
    " estic vull",
    "Croatian": "je se na da za od su nije sam smo ste biti kao ali ili koji koja koje moj moja moje gdje"
    " kada zašto još već samo nisam hvala molim dobar dan vas me mi mu jer ako bih bi što",
    "Czech": "je se na že to do za od jsem jsme jste není byl byla jako ale nebo který která které můj"
    " moje kde kdy proč ještě už jen prosím děkuji dobrý den vás mi mě jak mám máme nemůžu"
    " když jsou",
    "Danish": "og er det en at den til på med de for af ikke har jeg vi som var men min mit mine hvor"
    " hvornår hvorfor kan skal vil hej tak venlig hilsen mig jer dette også efter fra blev"
    " hvis",
    "Dutch": "de het een en van is dat in op niet zijn met voor er aan ik mijn maar om hij ze wij we"
    " jullie ook nog naar dan bij uit heb heeft hebben waar wanneer waarom kan kunt moet wil"
    " graag hallo bedankt dank geen deze dit wordt werd ben",
    "English": "the an and of to in is it that for on with as was at by this have from or had not are"
    " but be you they which we were can will would there been has my your me our their what"
    " when where why how please could should do does did about into after before",
    "Estonian": "ja on ei et see ma ta mis kui ka oma minu ole olen oli aga või kus millal miks tere"
    " palun aitäh mulle meie teie saa veel juba selle seda pole",
    "Finnish": "ja on ei että se hän mitä kun myös oma minun ole olen oli mutta tai missä milloin miksi"
    " hei kiitos minulle teidän voi voin vielä jo tämä sen sitä ovat en miten jos",
    "French": "le la les un une des et est en que qui dans pour pas sur au aux avec ce cette il elle je"
    " vous nous mon ma mes votre vos ne ai été sont du de où quand pourquoi comment bonjour"
    " merci mais plus très toujours suis avez pouvez depuis sans être",
    "German": "der die das und ist in den von zu mit sich des auf für nicht ein eine einen einem einer"
    " als auch es an ich sie wir mein meine meinen meiner habe hat haben wurde wird war wo"
    " wann warum wie kann können bitte danke hallo guten tag aber noch seit bei nach dem ihr"
    " ihre sehr schon bin sind mir mich",
    "Hungarian": "az és is egy hogy nem van volt meg ez azt de csak már még én ön vagyok kell lehet hol"
    " mikor miért kérem köszönöm jó napot nekem sem mert ha vagy lett nagyon szeretném",
    "Indonesian": "yang dan di ke dari ini itu untuk dengan tidak saya kami anda adalah pada sudah belum"
    " akan bisa dalam apa kapan mengapa bagaimana mana tolong terima kasih halo selamat karena"
    " tetapi juga ada telah mohon",
    "Italian": "il lo la gli le un una uno di che in non per con sono del della dei al alla da mi si ho"
    " ha mio mia miei ma anche come quando dove perché questo questa vorrei grazie buongiorno"
    " salve ciao più ancora stato nel nella suo sua posso potete",
    "Latvian": "un ir ar no uz par ka nav es jūs mēs mans mana kas kur kad kāpēc bet vai lūdzu paldies"
    " sveiki labdien man vēl jau tas tā šis pēc līdz esmu bija",
    "Lithuanian": "ir yra su iš ne kad tai aš jūs mes mano kas kur kada kodėl bet ar prašau ačiū sveiki"
    " labas diena man dar jau apie po iki esu buvo nėra",
    "Norwegian": "og er det en at den til på med de for av ikke har jeg vi som var men min mitt mine hvor"
    " når hvorfor kan skal vil hei takk vennlig hilsen meg dere dette også etter fra ble hvis",
    "Polish": "na do się że nie to jest jak za po od są był była ale lub oraz który która które mój"
    " moja moje gdzie kiedy dlaczego jeszcze już tylko proszę dziękuję dzień dobry mi mnie mam"
    " czy przez dla państwa nadal",
    "Portuguese": "os as um uma de do da dos das em no na que não para com por se meu minha ele ela eu você"
    " mas como quando onde porque este esta foi está estou tenho obrigado obrigada olá bom dia"
    " muito mais ainda já ao pelo pela são gostaria posso",
    "Romanian": "și în la de pe cu este nu că un am ai are sunt din pentru mai dar sau care meu mea mele"
    " unde când cum vă rog mulțumesc bună ziua să fi fost îmi nici după fără deja încă",
    "Slovak": "je sa na že to do za od som sme ste nie bol bola ako ale alebo ktorý ktorá ktoré môj"
    " moja moje kde kedy prečo ešte už len prosím ďakujem dobrý deň vás mi ma mám nemôžem keď"
    " sú",
    "Slovenian": "in je se na da za od so ni sem smo ste biti kot ali ki moj moja moje kje kdaj zakaj še"
    " že samo prosim hvala dober dan vas mi me imam ker bil bila kako lahko",
    "Spanish": "el la los las un una es de del en que no por con para se lo su mi mis me al como pero"
    " más ha he está están fue yo usted ustedes cuando cuándo dónde qué cómo hola gracias"
    " buenos días favor tengo muy sin sobre este esta desde todavía aún también porque sido"
    " quiero puede pueden",
    "Swahili": "na ya wa kwa ni katika za la kuwa hii hiyo yangu yako lakini kama nini wapi lini"
    " tafadhali asante habari mimi sisi bado sana hapana ndiyo nina",
    "Swedish": "och är det en att den till på med de för av inte har jag vi som var men min mitt mina"
    " när varför kan ska vill hej tack vänlig hälsning mig er detta också efter från blev om"
    " ett",
    "Tagalog": "ang ng sa na mga at ay ko mo hindi ito po para kung ako namin kayo saan kailan bakit"
    " pero wala may pa lang salamat naman ba yung siya kami",
    "Turkish": "ve bir bu da de için ile ne mi çok ben siz biz ama gibi daha var yok değil olarak nerede"
    " neden nasıl zaman lütfen teşekkürler merhaba benim kadar sonra henüz hala",
    "Vietnamese": "và là của có không cho tôi được này với các một những đã sẽ chưa bị khi từ đến nào sao"
    " xin cảm ơn chào hàng tại vì nhưng rất bạn",
}


@cache
def languages_of_words() -> dict[str, tuple[str, ...]]:
    """For each function word, the languages that use it."""
    users: dict[str, list[str]] = {}
    for language, listed in FUNCTION_WORDS.items():
        for word in listed.split():
            users.setdefault(word, []).append(language)
    return {word: tuple(languages) for word, languages in users.items()}


_WORD = re.compile(r"[^\W\d_]+")
_READ = 5_000  # characters; more do not make the language surer


def language_of(text: str) -> str | None:
    """The English name of a text's language, or of its script if that is not Latin; None if it is not clear.

    A function word counts less the more languages have it. One word that a single language has is enough.
    """
    text = text[:_READ].lower()
    scripts = Counter(script(letter) for letter in text if letter.isalpha())
    if scripts and (name := scripts.most_common(1)[0][0]) != "LATIN":
        return name.title() if name != "CJK" else name
    scores: Counter[str] = Counter()
    for word in _WORD.findall(text):
        users = languages_of_words().get(word, ())
        for language in users:
            scores[language] += 1 / len(users)  # type: ignore[assignment]
    (first, best), (_, second) = [*scores.most_common(2), ("", 0), ("", 0)][:2]
    return first if best >= 1 and best > 1.25 * second else None


@cache
def script(letter: str) -> str:
    """The script of a letter: the first word of its Unicode name; Japanese and Chinese count as one."""
    name = unicodedata.name(letter, "UNKNOWN").split(maxsplit=1)[0]
    return "CJK" if name in ("HIRAGANA", "KATAKANA", "CJK") else name
