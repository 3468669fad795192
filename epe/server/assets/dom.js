// The one way in which text comes into the page: as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

/** An element with attributes and children; a child that is no node becomes a text. */
export function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same, in an SVG. */
export function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Set a text, if it is another one: else a screen reader would say it again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Make the children of `parent` those of `items`, by their `key`: `build(item)` makes one that is new, and `update(child,
 * item)` brings each up to date. One that stays is the same element as before: a click or a focus on it is not lost.
 */
export function keep(parent, items, { build, update = () => {} }) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const after = items.map((item) => before.get(String(item.key)) ?? named(build(item), item.key));
  const stay = new Set(after);
  for (const child of [...parent.children]) if (!stay.has(child)) child.remove();
  after.forEach((child, index) => {
    update(child, items[index]);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

function named(child, key) {
  child.dataset.key = key;
  return child;
}

/** Items of a list that are a text each. */
export function list(parent, items) {
  keep(parent, items, { build: () => make("li"), update: (child, { text }) => say(child, text) });
}
