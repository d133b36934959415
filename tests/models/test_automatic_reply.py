"""Absence notices, bounces, and similar texts that are neither. All texts are made up."""

from __future__ import annotations

import pytest

from models.automatic_reply import is_automatic_reply
from models.scope import Scope, review_reasons


@pytest.mark.parametrize(
    "text",
    [
        "Automatic reply: your order\nThank you, I am back on Monday.",
        "Thank you for your email. I am out of the office until 5 May and will reply when I am back.",
        "I am currently on annual leave with limited access to mail. For urgent matters please call Tom.",
        "Abwesenheitsnotiz: Bestellung 12",
        "Vielen Dank für Ihre Nachricht. Ich bin bis zum 5. Mai nicht im Büro.",
        "Ich bin im Urlaub. In dringenden Fällen wenden Sie sich bitte an meine Kollegin.",
        "Réponse automatique : commande",
        "Bonjour, je suis absent jusqu'au 5 mai. En cas d'urgence, merci de contacter l'accueil.",
        "Respuesta automática: pedido",
        "Estoy fuera de la oficina hasta el lunes. Responderé a mi regreso.",
        "Risposta automatica: ordine",
        "Sono in ferie fino al 5 maggio e risponderò al mio rientro.",
        "Automatisch antwoord: bestelling",
        "Ik ben niet op kantoor tot 5 mei. Bij terugkomst lees ik uw bericht.",
        "Automatyczna odpowiedź: zamówienie",
        "Jestem na urlopie do 5 maja. W pilnych sprawach proszę o kontakt z biurem.",
        "Resposta automática: pedido",
        "Estou de férias até 5 de maio e respondo no meu regresso.",
        "Undeliverable: your order\nThe mailbox is full.",
        "This is the mail system. Your message could not be delivered to one or more recipients.",
        "Ihre Nachricht konnte nicht zugestellt werden. Empfänger unbekannt.",
        "Votre message n'a pas pu être remis au destinataire.",
    ],
)
def test_is_automatic(text: str) -> None:
    assert is_automatic_reply(text)
    assert review_reasons(text, 9.0, Scope()) == ["automatic_reply"]


@pytest.mark.parametrize(
    "text",
    [
        "I am on holiday next week, please hold my parcel.",
        "My parcel could not be delivered, where is it now?",
        "The courier wrote that it was not delivered although I was at home.",
        "Das Paket konnte nicht zugestellt werden, obwohl ich da war.",
        "I was absent when the courier came and your message says nothing.",
        "Ihr Kollege war am Telefon nicht erreichbar. Ihre Nachricht hilft mir nicht.",
        "Le colis n'est pas arrivé pendant mes vacances.",
        "Can you switch off the out of office assistant in my mailbox settings?",
        "",
    ],
)
def test_is_a_ticket(text: str) -> None:
    assert not is_automatic_reply(text)
