// The question for an API key. However many calls wait for one, it is asked once.

import { find, say } from "./dom.js";

let waiting = null;

/** A promise of a key; `sentence` says why one is needed. Whoever closes the question finds it again at the top. */
export function askForKey(sentence) {
  say(find("key-message"), sentence);
  find("key-button").hidden = false;
  if (waiting === null) {
    waiting = Promise.withResolvers?.() ?? withResolvers();
    open();
  }
  return waiting.promise;
}

export function listenForKey() {
  find("key-button").addEventListener("click", open);
  find("key-close").addEventListener("click", () => find("key-dialog").close());
  find("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    give(find("key").value.trim());
  });
}

function open() {
  if (!find("key-dialog").open) find("key-dialog").showModal();
}

function give(key) {
  if (key === "" || waiting === null) return;
  const { resolve } = waiting;
  waiting = null;
  find("key").value = "";
  find("key-dialog").close();
  find("key-button").hidden = true;
  resolve(key);
}

function withResolvers() {
  const parts = {};
  parts.promise = new Promise((resolve) => { parts.resolve = resolve; });
  return parts;
}
