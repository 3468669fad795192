// One request's own time: what was predicted, what happens, and its end by a button.

import { colourOf } from "./colours.js";
import { draw, find, keep, list, make, say } from "./dom.js";
import { lanesByRequest, stateText } from "./tables.js";
import { clock, fromNow, laneText, seconds, shortId } from "./words.js";

const CHART = { width: 600, height: 80 };
const BARS = { predicted: 6, actual: 32, height: 20 };

/** Show a request of the `world`. */
export function showDetail(world, { id, nowS }) {
  const request = id === null ? undefined : world.find(id);
  find("detail").hidden = request?.created_at === undefined;
  find("detail-hint").hidden = !find("detail").hidden;
  if (find("detail").hidden) return;
  const stretches = stretchesOf(world, request, nowS);
  showFacts(request, { nowS, lane: lanesByRequest(world.history.now).get(id) });
  showChart(request, stretches, nowS);
  list(find("detail-stretches"), stretches.map((each, index) => ({ key: index, text: stretchText(each) })));
  find("detail-cancel").disabled = request.account !== undefined;
}

/** What ends with a request: the pictures of one that is kept end together. */
export function wholeOf(id) {
  return /^job-[0-9a-f]{32}(?=-\d+$)/.exec(id)?.[0] ?? id;
}

/** What it has done, in seconds since it came: as its account says, or before its end as it was seen from here. */
export function stretchesOf(world, request, nowS) {
  const visits = request.account?.visits ?? [];
  if (visits.length > 0) {
    return visits.map(({ ranks, stage, start_s: startS, end_s: endS, first_step: first, num_steps: number }) =>
      ({ ranks, stage, startS, endS, first, number }));
  }
  return world.history.of(request.id).map(({ ranks, stage, startS, endS }) =>
    ({ ranks, stage, startS: startS - request.created_at, endS: (endS ?? nowS) - request.created_at }));
}

function stretchText({ ranks, stage, startS, endS, first, number }) {
  const steps = stage === "denoise" && number > 0 ? `, steps ${first + 1} to ${first + number}` : "";
  return `${seconds(startS)} to ${seconds(endS)}: ${stage}${steps} on ${laneText(ranks)}`;
}

function showFacts(request, { nowS, lane }) {
  const { created_at: createdS, predicted_s: predictedS, deadline_ms: deadlineMs, account } = request;
  const facts = [
    ["Request", request.id],
    ["State", account === undefined ? stateText(request, lane) : endText(request)],
    ["Came", clock(createdS)],
    ["Predicted", `${seconds(predictedS)} (${request.predicted_from})`],
    ["Taken", seconds(account?.total_s ?? nowS - createdS)],
    ["Deadline", deadlineMs === null ? "none" : `${seconds(deadlineMs / 1000)}${account === undefined ? `, ${fromNow(createdS + deadlineMs / 1000 - nowS)}` : ""}`],
  ];
  keep(find("detail-facts"), facts.flatMap(([name, text]) => [{ key: `${name}?`, tag: "dt", text: name }, { key: name, tag: "dd", text }]), {
    build: ({ tag }) => make(tag),
    update: (child, { text }) => say(child, text),
  });
}

function endText({ kind, reason, account: { total_s: totalS, predicted_s: predictedS } }) {
  if (kind !== undefined) return `${kind}: ${reason}`;
  const differenceS = totalS - predictedS;
  return `finished, ${seconds(Math.abs(differenceS))} ${differenceS < 0 ? "earlier" : "later"} than predicted`;
}

function showChart(request, stretches, nowS) {
  const { created_at: createdS, predicted_s: predictedS, deadline_ms: deadlineMs, account } = request;
  const takenS = account?.total_s ?? nowS - createdS;
  const deadlineS = deadlineMs === null ? null : deadlineMs / 1000;
  const spanS = Math.max(takenS, predictedS, Math.min(deadlineS ?? 0, 3 * Math.max(takenS, predictedS)), 0.1) * 1.05;
  const toX = (atS) => (Math.max(0, atS) / spanS) * CHART.width;
  const widest = stretches.reduce((most, { ranks }) => Math.max(most, ranks.length), 1);
  const chart = find("detail-chart");
  chart.setAttribute("viewBox", `0 0 ${CHART.width} ${CHART.height}`);
  chart.setAttribute("preserveAspectRatio", "none");
  chart.replaceChildren(
    bar("predicted", { x: 1, width: toX(predictedS), y: BARS.predicted, height: 16 }),
    bar("waiting", { x: 1, width: toX(takenS), y: BARS.actual, height: 2 * BARS.height }),
    ...stretches.map((each) => stretchBar(each, { id: request.id, toX, widest })),
    ...(deadlineS === null ? [] : [draw("line", { class: "deadline", x1: toX(deadlineS), x2: toX(deadlineS), y1: 0, y2: CHART.height })]),
  );
}

/** The wider the lane, the taller. */
function stretchBar({ ranks, startS, endS }, { id, toX, widest }) {
  const height = (2 * BARS.height * ranks.length) / widest;
  const place = { x: toX(startS), width: Math.max(1, toX(endS) - toX(startS)), y: BARS.actual + 2 * BARS.height - height, height };
  return draw("rect", { ...place, fill: colourOf(id).fill });
}

function bar(name, place) {
  return draw("rect", { class: name, ...place });
}

/** The name under which a person finds it again. */
export function titleOf(id) {
  return `Request ${shortId(id)}`;
}
