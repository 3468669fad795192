// The picture of the lanes over time: each rank a row, each request a colour, a lane of several ranks one block.

import { colourOf } from "./colours.js";
import { runsOf, shortId } from "./words.js";

export const WINDOW_S = 60;
const ROW_PX = 30;
const AXIS_PX = 20;
const NAMES_PX = 58;
const GAP_PX = 2;
const LEAST_LABEL_PX = 52;

export function heightOf(numRanks) {
  return Math.max(1, numRanks) * ROW_PX + AXIS_PX;
}

/** The blocks {x, y, width, height, id, stage} of stretches, in pixels, where the last `WINDOW_S` seconds are seen. */
export function blocksOf(stretches, { nowS, widthPx }) {
  const perSecond = (widthPx - NAMES_PX) / WINDOW_S;
  const toX = (atS) => Math.max(NAMES_PX, widthPx - (nowS - atS) * perSecond);
  return stretches.flatMap(({ ranks, id, stage, startS, endS }) => {
    const x = toX(startS);
    const width = Math.max(1, toX(Math.min(endS ?? nowS, nowS)) - x);
    return runsOf(ranks).map(([first, last]) => ({
      x, width, id, stage, y: first * ROW_PX + GAP_PX / 2, height: (last - first + 1) * ROW_PX - GAP_PX,
    }));
  });
}

/** Draw all of it; `theme` holds the colours of the page, `chosen` the request that stands out. */
export function paint(canvas, { stretches, numRanks, nowS, theme, chosen }) {
  const widthPx = canvas.clientWidth;
  const context = fit(canvas, widthPx, heightOf(numRanks));
  paintRows(context, { numRanks, widthPx, theme });
  for (const block of blocksOf(stretches, { nowS, widthPx })) paintBlock(context, block, { theme, chosen });
  paintAxis(context, { numRanks, widthPx, theme });
}

/** The canvas in the pixels of this screen; setting a size clears it. */
function fit(canvas, widthPx, heightPx) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${heightPx}px`;
  canvas.width = Math.round(widthPx * ratio);
  canvas.height = Math.round(heightPx * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  return context;
}

function paintRows(context, { numRanks, widthPx, theme }) {
  for (let rank = 0; rank < numRanks; rank++) {
    context.fillStyle = theme.empty;
    context.fillRect(NAMES_PX, rank * ROW_PX + GAP_PX / 2, widthPx - NAMES_PX, ROW_PX - GAP_PX);
    context.fillStyle = theme.text;
    context.fillText(`rank ${rank}`, 0, (rank + 0.5) * ROW_PX);
  }
}

function paintBlock(context, { x, y, width, height, id, stage }, { theme, chosen }) {
  const colour = colourOf(id);
  context.fillStyle = colour.fill;
  context.fillRect(x, y, width, height);
  if (id === chosen) {
    context.strokeStyle = theme.text;
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, Math.max(0, width - 2), height - 2);
  }
  if (width < LEAST_LABEL_PX) return;
  context.save();
  context.beginPath();
  context.rect(x, y, width - 3, height);
  context.clip();
  context.fillStyle = colour.text;
  context.fillText(`${shortId(id)} ${stage === "denoise" ? "" : stage}`, x + 5, y + height / 2);
  context.restore();
}

function paintAxis(context, { numRanks, widthPx, theme }) {
  const y = numRanks * ROW_PX + AXIS_PX / 2;
  context.fillStyle = theme.quiet;
  for (let agoS = 0; agoS <= WINDOW_S; agoS += 15) {
    const text = agoS === 0 ? "now" : `−${agoS} s`;
    const x = widthPx - (agoS / WINDOW_S) * (widthPx - NAMES_PX);
    const { width } = context.measureText(text);
    context.fillText(text, Math.min(x - width / 2, widthPx - width), y);
  }
}
