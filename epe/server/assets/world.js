// What this page knows of the service: pure state, made of events and answers. All of it is bounded.

import { History } from "./history.js";

// Of more that wait only the number is kept, until there is room.
export const MAX_REQUESTS = 2000;
export const MAX_ENDED = 20;
const LOW_WATER = 500;

export class World {
  history = new History();
  requests = new Map();
  ended = [];
  health = null;
  numUnseen = 0;
  // What is heard while a list is on its way: ids of those that came or went on, and of those that ended.
  #sinceAsked = null;
  #skewS = null;
  #isStale = true;

  /** Unix time by the server's clock, of a moment by this one's. */
  serverTime(localS) {
    return localS - (this.#skewS ?? 0);
  }

  /** Take in an event that came at `localS`. */
  hear({ name, data }, localS) {
    switch (name) {
      case "layout.changed":
        this.#meetClock(data.at, localS);
        return this.history.layout(data.at, data.lanes);
      case "request.admitted":
        return this.#admit(data);
      case "request.progressed":
        return this.#progress(data);
      case "request.ended":
        return this.#end(data);
      case "events.lost":
      case "events.left_out":
        this.#isStale = true;
    }
  }

  /** The connection is lost: what is known becomes old. */
  loseTouch(localS) {
    this.history.breakOff(this.serverTime(localS));
    this.#isStale = true;
  }

  /** Whether the list of requests should be asked for. */
  get wantsList() {
    return this.#isStale || (this.numUnseen > 0 && this.requests.size < LOW_WATER);
  }

  /** A list is asked for; what is heard before the answer comes is newer than it. */
  askedForList() {
    this.#sinceAsked = { heard: new Set(), gone: new Set() };
    this.#isStale = false;
  }

  /** No answer has come; it is to be asked for again. */
  listFailed() {
    this.#sinceAsked = null;
    this.#isStale = true;
  }

  /** The answer: the first requests in the order in which they came, and how many there are. */
  list({ data, total }) {
    const known = this.requests;
    const { heard, gone } = this.#sinceAsked;
    this.#sinceAsked = null;
    this.requests = new Map(data.map((request) => [request.id, request]));
    const numListed = this.requests.size;
    for (const id of heard) if (known.has(id)) this.requests.set(id, known.get(id));
    const numMore = Math.max(0, total - numListed);
    // Where the list is cut off, it counts them already.
    this.numUnseen = Math.max(0, numMore - (this.requests.size - numListed));
    for (const id of gone) this.requests.delete(id);
  }

  get numRanks() {
    const ranks = [...(this.health?.ranks ?? []), ...this.history.now.flatMap(({ ranks: each }) => each.map((rank) => ({ rank })))];
    return ranks.reduce((most, { rank }) => Math.max(most, rank + 1), 0);
  }

  /** Those at work first, then those that wait; at most `limit`. */
  first(limit) {
    const atWork = new Set(this.history.now.map(({ id }) => id));
    const firsts = [...atWork].map((id) => this.requests.get(id)).filter(Boolean);
    for (const request of this.requests.values()) {
      if (firsts.length >= limit) break;
      if (!atWork.has(request.id)) firsts.push(request);
    }
    return firsts.slice(0, limit);
  }

  /** A request that waits or works, or one that has ended (then with `account`). */
  find(id) {
    return this.requests.get(id) ?? this.ended.find((each) => each.id === id);
  }

  #meetClock(serverS, localS) {
    // What came fastest tells most about the clocks.
    this.#skewS = Math.min(this.#skewS ?? Infinity, localS - serverS);
  }

  #admit(request) {
    this.#sinceAsked?.heard.add(request.id);
    if (this.requests.size < MAX_REQUESTS) this.requests.set(request.id, request);
    else this.numUnseen += 1;
  }

  #progress({ id, stage, step, ranks }) {
    const request = this.requests.get(id);
    if (request === undefined) return;
    this.#sinceAsked?.heard.add(id);
    this.requests.set(id, { ...request, status: "in_progress", stage, step, ranks });
  }

  #end(end) {
    const request = this.requests.get(end.id);
    this.#sinceAsked?.gone.add(end.id);
    this.history.forget(end.id);
    if (!this.requests.delete(end.id)) this.numUnseen = Math.max(0, this.numUnseen - 1);
    this.ended.unshift({ ...request, ...end });
    this.ended.length = Math.min(this.ended.length, MAX_ENDED);
  }
}
