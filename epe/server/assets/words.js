// How numbers, times and names are written.

/** Seconds, as exact as a person wants them. */
export function seconds(value) {
  const digits = Math.abs(value) < 10 ? 1 : 0;
  return Math.abs(value) < 120 ? `${value.toFixed(digits)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

/** A moment from now on: "in 3.0 s", "2.0 s ago". */
export function fromNow(value) {
  return value >= 0 ? `in ${seconds(value)}` : `${seconds(-value)} ago`;
}

export function gibibytes(bytes) {
  return `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

/** The end of an id tells requests apart; its beginning is often the same. */
export function shortId(id) {
  const [, stem, index] = /^(.*?)(-[0-9])?$/.exec(id);
  return `${stem.slice(-6)}${index ?? ""}`;
}

/** Ranks in order, those that follow each other as a range: "0–2, 5". */
export function ranksText(ranks) {
  return runsOf(ranks).map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

/** Ranks as runs without a gap: [[first, last], ...]. */
export function runsOf(ranks) {
  const runs = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const run = runs.at(-1);
    if (run !== undefined && rank <= run[1] + 1) run[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs;
}

export function laneText(ranks) {
  if (ranks.length === 0) return "no lane";
  return ranks.length === 1 ? `rank ${ranks[0]}` : `ranks ${ranksText(ranks)} (${ranks.length} wide)`;
}

/** The widths of the lanes on which it was denoised, one after the other. */
export function widthsText(visits) {
  const widths = visits.filter(({ stage }) => stage === "denoise").map(({ ranks }) => ranks.length);
  const changes = widths.filter((width, index) => width !== widths[index - 1]);
  return changes.length === 0 ? "no lane" : `${changes.join(" → ")} wide`;
}

export function clock(atS) {
  return new Date(atS * 1000).toLocaleTimeString();
}
