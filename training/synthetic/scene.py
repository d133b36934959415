"""The customer, product and order of one ticket, which fill the slots of its templates."""

import random
from collections.abc import Sequence

from training.synthetic.content import Content, Product, Voice
from training.synthetic.grammar import expand

CODE_WORDS = (
    "SPRING", "GARDEN", "WELCOME", "BLOOM", "SAVE", "HOME", "ROSE", "PATIO", "GREEN", "SUNNY", "AUTUMN",
    "FERN", "HELLO", "EXTRA", "MEADOW", "TULIP",
)  # fmt: skip
PLURAL_FORMS = {
    "they": ("it", "they"), "them": ("it", "them"), "their": ("its", "their"),
    "is": ("is", "are"), "was": ("was", "were"),
    "has": ("has", "have"), "does": ("does", "do"), "isnt": ("isn't", "aren't"),
    "wasnt": ("wasn't", "weren't"), "hasnt": ("hasn't", "haven't"), "doesnt": ("doesn't", "don't"),
    "s": ("s", ""),
}  # fmt: skip
FAULT_LISTS = ("worn", "hurt", "danger", "breakage")


class Scene:
    """Fills the slots of one ticket's templates; the product, order and amounts stay the same throughout."""

    def __init__(self, content: Content, rng: random.Random, voice: Voice, product: Product) -> None:
        self.content, self.rng, self.voice, self.product = content, rng, voice, product
        self.order = _order_number(rng)
        self.order_told = False
        self.item_told = False
        self.extra: dict[str, str] = {}  # slots that a frame fills: what, do, want, aside, topic
        self._money = _money_format(rng)
        self._low = rng.choice((rng.randint(9, 60), rng.randint(40, 180), rng.randint(120, 900)))
        self._diff = rng.randint(2, max(4, self._low // 2))
        self._cents = rng.choice(("00", "00", "50", "95", "99", "90", "49", "20"))
        self._colours = rng.sample(range(99), 2)

    def pick(self, lines: Sequence[str]) -> str:
        return lines[int(self.rng.random() * len(lines))]

    def say(self, template: str, **extra: str) -> str:
        """Expand one template; `extra` fills slots of this call alone."""
        self.extra.update(extra)
        return expand(template, self.rng, self.slot)

    def choose(self, lines: Sequence[str], **extra: str) -> str:
        return self.say(self.pick(lines), **extra)

    def slot(self, name: str) -> str:
        if name in self.extra:
            return self.extra[name]
        if name in PLURAL_FORMS:
            return PLURAL_FORMS[name][self.product.plural]
        if name in FAULT_LISTS:
            return self._fault(name)
        if name in self.content.phrases:
            return expand(self.content.phrases[name], self.rng, self.slot)
        return getattr(self, f"_{name}_slot")()

    def _thing_slot(self) -> str:
        """The product's name: in full the first time, and sometimes with the order number."""
        if self.item_told:
            return f"{self.pick(('the', 'the', 'my', 'this' if not self.product.plural else 'these'))} " + (
                self.pick((self.product.short, self.product.short, self.product.name))
            )
        self.item_told = True
        detail = self.pick(("", "", "", "", "", "new", "{colour}", "large", "small"))
        adjective = expand(detail, self.rng, self.slot)
        name = f"{self.pick(('my', 'my', 'the', 'our'))} {adjective} {self.product.name}".replace("  ", " ")
        if not self.order_told and self.rng.random() < 0.2:
            self.order_told = True
            name += f" {self.pick(('from', 'on', 'in', 'of'))} order {self.order}"
        return name

    def _item_slot(self) -> str:
        self.item_told = True
        return self.pick((self.product.name, self.product.name, self.product.short))

    def _short_slot(self) -> str:
        return self.product.short

    def _part_slot(self) -> str:
        return self.pick(self.product.parts)

    def _other_slot(self) -> str:
        while True:
            other = self.content.products[int(self.rng.random() * len(self.content.products))]
            if not other.plural and other.name != self.product.name:
                return other.name

    def _fault(self, kind: str) -> str:
        lists = [
            self.content.faults[name].get(kind, [])
            for name in sorted({*self.product.kinds, "any"} & self.content.faults.keys())
        ]
        return self.choose([line for lines in lists for line in lines])

    def _order_slot(self) -> str:
        self.order_told = True
        return self.order

    def _code_slot(self) -> str:
        return f"{self.pick(CODE_WORDS)}{self.pick(('', '5', '10', '15', '20', '25', '2024'))}"

    def _last4_slot(self) -> str:
        return f"{self.rng.randrange(10_000):04d}"

    def _low_slot(self) -> str:
        return self._money.format(self._low, self._cents)

    def _amount_slot(self) -> str:
        return self._low_slot()

    def _high_slot(self) -> str:
        return self._money.format(self._low + self._diff, self._cents)

    def _diff_slot(self) -> str:
        return self._money.format(self._diff, "00").replace(".00", "")


def _order_number(rng: random.Random) -> str:
    number = f"{rng.randrange(100_000, 1_000_000)}"
    return rng.choice(("LK-", "LK-", "LK-", "LK-", "LK", "#LK-", "lk-")) + number


def _money_format(rng: random.Random) -> str:
    styles = ("£{}.{}", "£{}", "${}.{}", "${}", "€{}.{}", "{} pounds", "{} dollars", "{}.{}", "{} euros")
    return rng.choice(styles)
