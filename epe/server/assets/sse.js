// Server-sent events out of a fetch: the browser's EventSource can send neither a key nor a body.

/** Takes text as it comes, in any pieces, and gives the events that are whole. Lines end as this server ends them. */
export class EventParser {
  #line = [];
  #name = "";
  #data = "";

  /** The events, as {name, data}, that `text` completes. */
  push(text) {
    // A picture is one line of megabytes in hundreds of pieces: they are joined once.
    const pieces = text.split("\n");
    const begun = pieces.pop();
    const events = [];
    for (const piece of pieces) {
      this.#line.push(piece);
      const event = this.#take(this.#line.join(""));
      this.#line = [];
      if (event !== null) events.push(event);
    }
    if (begun !== "") this.#line.push(begun);
    return events;
  }

  #take(line) {
    if (line.startsWith("event: ")) this.#name = line.slice(7);
    else if (line.startsWith("data: ")) this.#data += line.slice(6);
    if (line !== "") return null;
    const event = this.#data === "" ? null : { name: this.#name, data: JSON.parse(this.#data) };
    this.#name = this.#data = "";
    return event;
  }
}

/** The events of an answer, until it ends. `onLife` is called for all that comes, signs of life included. */
export async function* eventsOf(response, onLife = () => {}) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onLife();
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {}); // of no effect where it has ended or broken
  }
}
