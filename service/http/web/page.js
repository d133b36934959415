// Code of all pages: language, colours, texts in the markup, and the dialog for the API key.

import { whenKeyNeeded } from "./api.js";
import { el, fill, byId } from "./dom.js";
import { currentLanguage, languages, nameOf, setLanguage, t } from "./strings.js";

const THEMES = ["auto", "light", "dark"];

function stored(name, allowed) {
  try {
    const value = localStorage.getItem(`larkfield-${name}`);
    return allowed.includes(value) ? value : null;
  } catch {
    return null; // storage may be forbidden; the page works without it
  }
}

function store(name, value) {
  try {
    localStorage.setItem(`larkfield-${name}`, value);
  } catch {
    // as above
  }
}

function translateMarkup(title) {
  document.title = t(title);
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
}

function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

/** Ask for the API key; resolves to it, or to null if the person cancels. */
function askForKey(refused) {
  return new Promise((resolve) => {
    const input = el("input", { type: "password", id: "api-key", autocomplete: "off", required: true });
    const dialog = el("dialog", { class: "card key", "aria-labelledby": "key-title", onclose: () => { dialog.remove(); resolve(dialog.returnValue || null); } });
    const use = (event) => {
      event.preventDefault();
      if (input.value.trim()) dialog.close(input.value.trim());
    };
    dialog.append(
      el("h2", { id: "key-title" }, t("key_title")),
      el("p", { class: "hint" }, t("key_hint")),
      ...(refused ? [el("p", { class: "status problem", role: "alert" }, t("key_wrong"))] : []),
      el("form", { onsubmit: use }, el("label", { for: "api-key" }, t("key_label")), input,
        el("div", { class: "steps" },
          el("button", { type: "submit", class: "small", id: "use-key" }, t("key_send")),
          el("button", { type: "button", class: "small", onclick: () => dialog.close("") }, t("key_cancel")))),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Set up the header. `repaint()` is called after every change of language or colours. */
export function start(title, repaint) {
  const wanted = (navigator.language || "en").slice(0, 2);
  let theme = stored("theme", THEMES) ?? "auto";
  setLanguage(stored("language", languages) ?? wanted);
  applyTheme(theme);
  whenKeyNeeded(askForKey);

  const draw = () => {
    translateMarkup(title);
    fill(
      byId("switches"),
      el("label", { class: "visually-hidden", for: "language" }, t("language")),
      el(
        "select",
        {
          id: "language",
          class: "switch",
          onchange: (event) => {
            setLanguage(event.target.value);
            store("language", currentLanguage());
            draw();
            repaint();
            byId("language").focus();
          },
        },
        ...languages.map((code) => el("option", { value: code, lang: code, selected: code === currentLanguage() }, nameOf(code))),
      ),
      el("label", { class: "visually-hidden", for: "theme" }, t("theme")),
      el(
        "select",
        {
          id: "theme",
          class: "switch",
          onchange: (event) => {
            theme = event.target.value;
            store("theme", theme);
            applyTheme(theme);
            repaint();
          },
        },
        ...THEMES.map((name) => el("option", { value: name, selected: name === theme }, t(`theme_${name}`))),
      ),
    );
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}
