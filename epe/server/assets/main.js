// The page at /: joins what the service tells, what is known of it, and what is shown.

import { Api } from "./api.js";
import { follow, poll } from "./connection.js";
import { showDetail, titleOf, wholeOf } from "./detail.js";
import { find, list, say } from "./dom.js";
import { Drawing } from "./draw.js";
import { askForKey, listenForKey } from "./key.js";
import { WINDOW_S, paint } from "./lanes.js";
import { showEnded, showQueue, showRanks, stateText } from "./tables.js";
import { clock, shortId } from "./words.js";
import { World } from "./world.js";

const HEALTH_EVERY_S = 2;
const LIST_LIMIT = 1000;
const LIST_EVERY_S = 2;
const ANSWER_WITHIN_MS = 30_000;
const TABLES_EVERY_MS = 250;
const PICTURE_EVERY_MS = 100;
// Whoever wants less motion sees the picture of the lanes move once a second.
const CALM_EVERY_MS = 1000;

const localS = () => Date.now() / 1000;
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const world = new World();
const api = new Api({ askForKey, storage: sessionStorage });
const drawing = new Drawing({ api, onTaken: expect });
let chosen = null;
let expected = null;

/** Show the request whose id begins with `prefix`, once it is there. */
function expect(prefix) {
  const id = prefix === null ? undefined : [...world.requests.keys()].findLast((each) => each.startsWith(prefix));
  choose(id ?? null);
  expected = id === undefined ? prefix : null;
}

/** Show this request from now on. */
function choose(id) {
  [chosen, expected] = [id, null];
  say(find("detail-title"), id === null ? "One request" : titleOf(id));
  say(find("detail-note"), "");
  showTables();
}

function hear(event) {
  world.hear(event, localS());
  const { id } = event.data;
  if (event.name === "request.admitted" && expected !== null && id.startsWith(expected)) choose(id);
  if (event.name === "request.progressed" && drawing.owns(id)) drawing.progressed(event.data);
}

function tellState(state, pauseS) {
  find("connection").dataset.state = state;
  if (state === "lost") world.loseTouch(localS());
  const text = state === "live" ? "Live" : `Connection lost; next try within ${Math.ceil(pauseS)} s. What is shown is old.`;
  say(find("connection"), text);
}

async function askHealth() {
  const health = await api.json("health", { alsoGood: [503], signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
  world.health = health;
  showRanks(health);
  drawing.makes = health.makes;
  document.title = `EPE ${health.model}`;
  say(find("model"), health.model);
  const phase = health.status === "running" ? "" : `${health.status}; `;
  say(find("counts"), `${phase}${health.num_running} in work, ${health.num_waiting} wait, ${health.num_finished} finished`);
}

async function askList() {
  if (find("connection").dataset.state !== "live" || !world.wantsList) return;
  world.askedForList();
  try {
    const signal = AbortSignal.timeout(ANSWER_WITHIN_MS);
    world.list(await api.json(`v1/requests?limit=${LIST_LIMIT}`, { signal }));
  } catch (error) {
    world.listFailed();
    throw error;
  }
}

async function cancelChosen() {
  const id = chosen;
  if (drawing.owns(id)) return drawing.cancel();
  say(find("detail-note"), "It ends at the next step…");
  try {
    const { status } = await api.json(`v1/requests/${encodeURIComponent(wholeOf(id))}`, { method: "DELETE" });
    return say(find("detail-note"), `It has ended: ${status}.`);
  } catch (error) {
    return say(find("detail-note"), error.message);
  }
}

function showTables() {
  const nowS = world.serverTime(localS());
  showQueue(world, { nowS, chosen, choose });
  showEnded(world, { chosen, choose });
  showDetail(world, { id: chosen, nowS });
  list(find("lanes-now"), lanesNow());
  list(find("changes"), world.history.changes.map(({ atS, id, before, width }) => (
    { key: `${atS} ${id}`, text: `${clock(atS)}: ${shortId(id)} ${before} → ${width} wide` })));
}

function lanesNow() {
  const lanes = world.history.now.map(({ id, ranks, stage }) => {
    const request = world.requests.get(id) ?? {};
    return { key: `${id} ${ranks[0]}`, text: `${shortId(id)}: ${stateText(request, { stage, ranks })}` };
  });
  return lanes.length > 0 ? lanes : [{ key: "none", text: "No lane is at work." }];
}

function showLanes() {
  const nowS = world.serverTime(localS());
  const style = getComputedStyle(document.documentElement);
  const theme = Object.fromEntries(["text", "quiet", "empty"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
  paint(find("lanes"), { stretches: world.history.since(nowS - WINDOW_S), numRanks: world.numRanks, nowS, theme, chosen });
}

/** Show again and again while somebody looks; the browser says when it can. */
function repeat(show, everyMs) {
  let lastMs = -Infinity;
  const step = (nowMs) => {
    if (nowMs - lastMs >= everyMs()) {
      lastMs = nowMs;
      show();
    }
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

listenForKey();
find("detail-cancel").addEventListener("click", cancelChosen);
repeat(showTables, () => TABLES_EVERY_MS);
repeat(showLanes, () => (calm.matches ? CALM_EVERY_MS : PICTURE_EVERY_MS));
follow({ api, onEvent: hear, onState: tellState });
poll({ ask: askHealth, everyS: HEALTH_EVERY_S });
poll({ ask: askList, everyS: LIST_EVERY_S });
