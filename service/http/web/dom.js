// Build elements from data. Strings become text nodes and are never parsed as HTML.

/** el("p", {class: "hint", onclick: f}, "text", child) -> Element. `style.x`-like widths go through `size()`. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Replace all children. */
export function fill(node, ...children) {
  node.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
}

export const byId = (id) => document.getElementById(id);

/** A bar of `share` (0 to 1) of its track; the number is shown next to it. */
export function bar(share, kind = "") {
  const inner = el("span", { class: `bar-fill ${kind}` });
  inner.style.width = `${(100 * Math.max(0, Math.min(1, share))).toFixed(2)}%`;
  return el("span", { class: "bar-track", "aria-hidden": "true" }, inner);
}

/** Keep one tab stop in a row of buttons and move it with the arrow keys, Home and End. */
export function rove(container, selector, onmove = () => {}) {
  container.addEventListener("keydown", (event) => {
    const items = [...container.querySelectorAll(selector)];
    const at = items.indexOf(document.activeElement);
    if (at < 0) return;
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (to === undefined || !items[to]) return;
    event.preventDefault();
    for (const item of items) item.tabIndex = -1;
    items[to].tabIndex = 0;
    items[to].focus();
    onmove(items[to]);
  });
}
