// Texts, numbers and names in the language of the page. `t("key", {name: value})` fills {name}.

import ENGLISH from "./english.js";
import FRENCH from "./french.js";
import GERMAN from "./german.js";

const TEXTS = { en: ENGLISH, fr: FRENCH, de: GERMAN };

// The five teams of the shipped bundle. Other names stay as they are.
const TEAMS = {
  fr: { delivery: "livraison", returns: "retours", payment: "paiement", warranty: "garantie", account: "compte" },
  de: { delivery: "Lieferung", returns: "Rückgabe", payment: "Zahlung", warranty: "Garantie", account: "Konto" },
};

// Made-up tickets; the router reads English.
export const EXAMPLES = [
  { en: "Charged twice", de: "Doppelt belastet", fr: "Débit en double", subject: "", text: "This is not about the courier. You took the money for my hedge trimmer twice, please give one payment back." },
  { en: "Broken on arrival", de: "Kaputt angekommen", fr: "Cassé à l’arrivée", subject: "Terracotta pots", text: "The parcel came this morning and two of the four pots were in pieces. The box had a hole in it. Can you send new ones?" },
  { en: "Stopped working", de: "Geht nicht mehr", fr: "En panne", subject: "", text: "We bought the pressure washer last spring. It ran well for eight months, now the pump hums and no water comes out. Is this a repair under the guarantee?" },
  { en: "Send it back", de: "Zurücksenden", fr: "Renvoi", subject: "Wrong colour", text: "I ordered the garden cushions in green but they look grey in daylight. How do I send them back, and do you give me a label?" },
  { en: "Cannot sign in", de: "Anmelden geht nicht", fr: "Connexion impossible", subject: "", text: "I changed my email address last week and now the password reset link never reaches me. Please help me get into my account." },
  { en: "Two topics", de: "Zwei Themen", fr: "Deux sujets", subject: "Two things", text: "The return you collected on Monday is confirmed, thanks. But the refund has not reached my card, and my new order shows no tracking number." },
  { en: "With HTML", de: "Mit HTML", fr: "Avec du HTML", subject: "RE: order", text: "<p>Hello,</p><p>my <b>discount code</b> was&nbsp;declined at the checkout. Could you check the amount on the invoice?</p>\n\nOn Tue, 3 March, Larkfield wrote:\n> Thank you for your order. The courier will call you." },
  { en: "Something else", de: "Etwas anderes", fr: "Autre chose", subject: "", text: "Would you like to write a guest article about rooftop beekeeping for our city magazine?" },
];

let language = "en";

export const languages = Object.keys(TEXTS);
export const currentLanguage = () => language;
export const nameOf = (code) => TEXTS[code].language_name;

export function setLanguage(code) {
  language = languages.includes(code) ? code : "en";
  document.documentElement.lang = language;
}

/** French puts no-break spaces before : and inside « », narrow ones before ; ! and ?. */
function withSpaces(text) {
  return text.replace(/ ([:»])/g, "\u00a0$1").replace(/« /g, "«\u00a0").replace(/ ([;!?])/g, "\u202f$1");
}

/** The form of a text for a number: `zero` if there is one and the number is 0, else by the language's plural rules. */
function form(forms, values) {
  const count = values.count ?? values.limit ?? 0;
  if (count === 0 && forms.zero) return forms.zero;
  return forms[new Intl.PluralRules(language).select(count)] ?? forms.other;
}

export const has = (key) => key in ENGLISH;

export function t(key, values = {}) {
  const found = TEXTS[language][key] ?? ENGLISH[key] ?? key;
  const text = typeof found === "string" ? found : form(found, values);
  const spaced = language === "fr" ? withSpaces(text) : text;
  return spaced.replace(/\{(\w+)\}/g, (whole, name) => {
    const value = name in values ? values[name] : whole;
    return typeof value === "number" ? value.toLocaleString(language) : String(value);
  });
}

/** A text in the quotation marks of the page's language. */
export const quoted = (text) => t("quoted", { text });

/** The team's name in the language of the page. */
export const teamName = (team) => (Object.hasOwn(TEAMS[language] ?? {}, team) ? TEAMS[language][team] : team);

/** A reason for review as a sentence. */
export const reasonText = (reason) => (has(`reason_${reason}`) ? t(`reason_${reason}`) : t("reason_other", { reason }));

export const number = (value, digits = 2) =>
  value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const percent = (value, digits = 0) =>
  value.toLocaleString(language, { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits });

/** "a, b and c" in the language of the page. */
export const listed = (words) => new Intl.ListFormat(language, { type: "conjunction" }).format(words);
