"""Recognises absence notices and bounces by their wording, as their mail headers do not reach a router."""

from __future__ import annotations

_HEAD_CHARACTERS = 600
# Beginnings of subjects and first lines that only programs write; compared in lower case.
_AUTOMATIC_STARTS = (
    "automatic reply", "auto reply", "autoreply", "auto-reply", "auto:", "out of office", "ooo:",
    "undeliverable:", "undelivered mail", "delivery status notification", "mail delivery failed",
    "mail delivery subsystem", "returned mail", "failure notice", "delivery failure",
    "automatische antwort", "abwesenheitsnotiz", "abwesenheitsnachricht", "unzustellbar",
    "réponse automatique", "message d'absence", "absence du bureau", "non remis", "échec de la remise",
    "respuesta automática", "fuera de la oficina", "no se puede entregar", "correo no entregado",
    "risposta automatica", "fuori sede", "fuori ufficio", "non recapitabile", "impossibile recapitare",
    "automatisch antwoord", "afwezigheidsbericht", "niet bezorgd", "onbestelbaar",
    "automatyczna odpowiedź", "autoodpowiedź", "nie można dostarczyć", "niedostarczon",
    "resposta automática", "ausência do escritório", "não entregue", "falha na entrega",
)  # fmt: skip
_ABSENT = (
    "out of the office", "out of office", "away from the office", "away from my desk", "on annual leave",
    "on vacation", "on holiday", "on parental leave", "on maternity leave", "not in the office",
    "nicht im büro", "nicht im haus", "außer haus", "bin abwesend", "zurzeit abwesend", "derzeit abwesend",
    "momentan abwesend", "bin derzeit nicht erreichbar", "bin nicht erreichbar", "im urlaub", "in elternzeit",
    "suis absent", "actuellement absent", "serai absent", "en congé", "en vacances", "hors du bureau",
    "fuera de la oficina", "de vacaciones", "estoy ausente", "estaré ausente",
    "fuori ufficio", "fuori sede", "in ferie", "sono assente", "sarò assente",
    "niet op kantoor", "afwezig", "met vakantie", "op vakantie",
    "poza biurem", "nieobecn", "na urlopie",
    "fora do escritório", "de férias", "estou ausente", "estarei ausente",
)  # fmt: skip
_ANSWER_LATER = (
    "for urgent", "in urgent", "if urgent", "is urgent", "urgent matters", "limited access", "no access to",
    "upon my return", "when i return", "on my return", "when i am back", "will reply", "will respond",
    "get back to you", "for your email", "for your e-mail", "for your message", "please contact my",
    "in dringenden", "nach meiner rückkehr", "dank für ihre", "nicht weitergeleitet", "meine vertretung",
    "wenden sie sich bitte an", "meine kollegin", "meinen kollegen",
    "à mon retour", "dès mon retour", "en cas d'urgence", "merci de contacter", "veuillez contacter",
    "a mi regreso", "a mi vuelta", "caso urgente", "casos urgentes", "póngase en contacto con",
    "al mio rientro", "al mio ritorno", "per urgenze", "in caso di urgenza", "contattare il mio",
    "bij terugkomst", "na mijn terugkeer", "dringende gevallen", "contact opnemen met mijn",
    "po powrocie", "w pilnych", "w sprawach pilnych", "proszę o kontakt z",
    "no meu regresso", "no meu retorno", "assuntos urgentes", "casos de urgência",
)  # fmt: skip
_BOUNCED = (
    "could not be delivered", "couldn't be delivered", "was not delivered", "wasn't delivered",
    "delivery has failed", "delivery to the following recipient", "recipient address rejected",
    "mailbox is full", "user unknown", "mailer-daemon", "konnte nicht zugestellt werden",
    "n'a pas pu être remis", "no se pudo entregar", "no se ha podido entregar",
    "non è stato possibile recapitare", "kon niet worden bezorgd", "nie mógł zostać dostarczon",
    "nie została dostarczona", "não pôde ser entregue", "não foi possível entregar",
)  # fmt: skip
_OF_MAIL = (
    "your message", "this message", "the message", "e-mail", "email", "mail delivery", "recipient", "mailbox",
    "smtp", "mailer", "nachricht", "empfänger", "votre message", "destinataire", "mensaje", "correo",
    "destinatario", "messaggio", "bericht", "wiadomoś", "mensagem",
)  # fmt: skip


def is_automatic_reply(text: str) -> bool:
    """Whether the text is worded as an absence notice or a bounce, in eight European languages.

    An absence notice must also announce a later answer or a substitute, unlike "I am on holiday, please hold
    my parcel". A bounce must mention a mail, unlike "my parcel could not be delivered".
    """
    head = text[:_HEAD_CHARACTERS].lower().lstrip()
    if head.startswith(_AUTOMATIC_STARTS):
        return True
    if any(phrase in head for phrase in _ABSENT):
        return any(phrase in head for phrase in _ANSWER_LATER)
    return any(phrase in head and any(word in head for word in _OF_MAIL) for phrase in _BOUNCED)
