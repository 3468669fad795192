// Which lanes were at work when, as `layout.changed` told it: what the picture of the lanes is made of.

// Older ones leave the picture; with more than so many the oldest are let go.
export const KEPT_S = 600;
export const MAX_STRETCHES = 4000;
const MAX_WIDTHS = 2000;
const MAX_CHANGES = 8;

/** Stretches are {ranks, id, stage, startS, endS}, in seconds of the server's clock; `endS` is null while one lasts. */
export class History {
  #open = new Map();
  #past = [];
  #widths = new Map();
  changes = [];

  /** From `atS` on these lanes are at work, and no others. */
  layout(atS, lanes) {
    const now = new Map(lanes.map((lane) => [keyOf(lane), lane]));
    for (const [key, stretch] of this.#open) if (!now.has(key)) this.#end(key, stretch, atS);
    for (const [key, lane] of now) {
      if (this.#open.has(key)) continue;
      this.#open.set(key, { ranks: lane.ranks, id: lane.request_id, stage: lane.stage, startS: atS, endS: null });
    }
    this.#noteWidths(atS, lanes);
    this.#forget(atS);
  }

  /** Nobody knows what comes after `atS`: the connection is lost. */
  breakOff(atS) {
    for (const [key, stretch] of this.#open) this.#end(key, stretch, atS);
  }

  /** A request has ended, and its width is no longer compared. */
  forget(id) {
    this.#widths.delete(id);
  }

  get now() {
    return [...this.#open.values()];
  }

  /** All stretches of which something lies after `fromS`. */
  since(fromS) {
    return [...this.#past, ...this.#open.values()].filter(({ endS }) => endS === null || endS > fromS);
  }

  of(id) {
    return this.since(-Infinity).filter((stretch) => stretch.id === id);
  }

  #end(key, stretch, atS) {
    this.#open.delete(key);
    this.#past.push({ ...stretch, endS: Math.max(atS, stretch.startS) });
  }

  #forget(atS) {
    const first = this.#past.findIndex(({ endS }) => endS > atS - KEPT_S);
    this.#past.splice(0, first < 0 ? this.#past.length : first);
    this.#past.splice(0, this.#past.length - MAX_STRETCHES);
  }

  /** A request that has no lane for a moment keeps its last width. */
  #noteWidths(atS, lanes) {
    const widths = new Map();
    for (const { request_id: id, ranks } of lanes) widths.set(id, (widths.get(id) ?? 0) + ranks.length);
    for (const [id, width] of widths) {
      const before = this.#widths.get(id);
      if (before !== undefined && before !== width) this.changes.unshift({ atS, id, before, width });
      this.#widths.delete(id); // so that the oldest stands first
      this.#widths.set(id, width);
    }
    // Ends may go unheard while the connection is lost.
    for (const id of this.#widths.keys()) {
      if (this.#widths.size <= MAX_WIDTHS) break;
      this.#widths.delete(id);
    }
    this.changes.length = Math.min(this.changes.length, MAX_CHANGES);
  }
}

function keyOf({ ranks, request_id: id, stage }) {
  return `${ranks.join(" ")}|${id}|${stage}`;
}
