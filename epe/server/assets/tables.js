// The tables of the queue, of what has ended, and of the ranks; short, however long the queue is.

import { colourOf } from "./colours.js";
import { find, keep, make, say } from "./dom.js";
import { fromNow, gibibytes, laneText, seconds, shortId, widthsText } from "./words.js";

export const MAX_ROWS = 40;

/** Draw the queue; `choose(id)` is called with a request that somebody chooses. */
export function showQueue(world, { nowS, chosen, choose }) {
  const rows = world.first(MAX_ROWS);
  const laneOf = lanesByRequest(world.history.now);
  keep(find("queue"), rows.map((request) => ({ key: request.id, request })), {
    build: ({ request }) => requestRow(request.id, 5, choose),
    update: (row, { request }) => fill(row, request.id === chosen, queueCells(request, laneOf.get(request.id), nowS)),
  });
  const more = world.requests.size + world.numUnseen - rows.length;
  say(find("queue-rest"), more > 0 ? `and ${more} more` : rows.length === 0 ? "Nothing is in work, and nothing waits." : "");
}

/** What each request at work has now: {stage, ranks}. */
export function lanesByRequest(stretches) {
  const lanes = new Map();
  for (const { id, ranks, stage } of stretches) {
    lanes.set(id, { stage, ranks: [...(lanes.get(id)?.ranks ?? []), ...ranks] });
  }
  return lanes;
}

function queueCells(request, lane, nowS) {
  const finishS = request.created_at + request.predicted_s;
  const dueS = request.deadline_ms === null ? null : request.created_at + request.deadline_ms / 1000;
  return [
    stateText(request, lane),
    `${request.size}, ${request.num_inference_steps} steps`,
    `${request.priority}`,
    `${fromNow(finishS - nowS)}${request.late ? ", too late" : ""}`,
    dueS === null ? "none" : fromNow(dueS - nowS),
  ];
}

/** In words: what a request is at. */
export function stateText({ status, stage, step = 0, num_inference_steps: numSteps }, lane) {
  const steps = (lane?.stage ?? stage) === "denoise" && numSteps !== undefined ? `, step ${step} of ${numSteps}` : "";
  if (lane !== undefined) return `${lane.stage} on ${laneText(lane.ranks)}${steps}`;
  return status === "queued" ? "waits" : `between two lanes${steps}`;
}

export function showEnded(world, { chosen, choose }) {
  keep(find("ended"), world.ended.map((end) => ({ key: end.id, end })), {
    build: ({ end }) => requestRow(end.id, 4, choose),
    update: (row, { end }) => fill(row, end.id === chosen, endedCells(end)),
  });
}

function endedCells({ kind, account }) {
  return [
    kind ?? "finished",
    account.predicted_s > 0 ? seconds(account.predicted_s) : "unknown",
    seconds(account.total_s),
    widthsText(account.visits),
  ];
}

function requestRow(id, numCells, choose) {
  const button = make("button", { type: "button", title: id }, shortId(id));
  button.style.borderLeft = `.6rem solid ${colourOf(id).fill}`;
  button.addEventListener("click", () => choose(id));
  const cells = Array.from({ length: numCells }, () => make("td"));
  return make("tr", {}, make("td", {}, button), ...cells);
}

function fill(row, isChosen, texts) {
  row.querySelector("button").setAttribute("aria-pressed", isChosen);
  texts.forEach((text, index) => say(row.cells[index + 1], text));
}

export function showRanks(health) {
  keep(find("ranks"), health.ranks.map((rank) => ({ key: rank.rank, rank })), { build: rankRow, update: fillRank });
  const policy = health.policy === null ? "" : `Planned by ${health.policy.name}.`;
  say(find("policy"), [policy, health.policy?.fault, health.reason].filter(Boolean).join(" "));
}

function rankRow({ rank }) {
  const meter = make("meter", { min: 0, "aria-label": `memory of rank ${rank.rank}` });
  const memory = make("td", {}, meter, make("span"));
  return make("tr", {}, make("th", { scope: "row" }), make("td"), make("td"), memory, make("td"));
}

function fillRank(row, { rank }) {
  const [name, state, device, memory, work] = row.cells;
  say(name, `${rank.rank}`);
  say(state, rank.reason === "" ? rank.state : `${rank.state}: ${rank.reason}`);
  state.classList.toggle("bad", ["lost", "quarantined"].includes(rank.state));
  say(device, rank.device);
  say(work, rank.request_id === null ? "" : shortId(rank.request_id));
  fillMemory(memory, rank);
}

function fillMemory(cell, { memory_bytes: allBytes, resident_bytes: modelBytes }) {
  const [meter, text] = cell.children;
  meter.hidden = allBytes === null;
  meter.max = allBytes ?? 1;
  meter.value = modelBytes;
  say(text, allBytes === null ? "unknown" : `${gibibytes(modelBytes)} of ${gibibytes(allBytes)}`);
}
