// What both pages share: language and colours (chosen here or by the system), and the words in the markup.

import { el, fill, byId } from "./dom.js";
import { currentLanguage, languages, setLanguage, t } from "./strings.js";

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

/** Set up the header. `repaint()` is called after every change of language or colours. */
export function start(title, repaint) {
  const wanted = (navigator.language || "en").slice(0, 2);
  let theme = stored("theme", THEMES) ?? "auto";
  setLanguage(stored("language", languages) ?? wanted);
  applyTheme(theme);

  const draw = () => {
    translateMarkup(title);
    fill(
      byId("switches"),
      el(
        "button",
        {
          type: "button",
          class: "switch",
          id: "language",
          lang: currentLanguage() === "en" ? "fr" : "en",
          onclick: () => {
            setLanguage(currentLanguage() === "en" ? "fr" : "en");
            store("language", currentLanguage());
            draw();
            repaint();
            byId("language").focus();
          },
        },
        currentLanguage() === "en" ? "Français" : "English",
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
