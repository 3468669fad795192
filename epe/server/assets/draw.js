// The box that draws: a prompt goes in, previews come while the picture forms, then the picture.

import { ApiError } from "./api.js";
import { find, say } from "./dom.js";
import { eventsOf } from "./sse.js";
import { laneText, seconds } from "./words.js";

const NUM_PREVIEWS = 3;
const FIELDS = ["prompt", "size", "num_inference_steps", "seed", "deadline_s", "priority"];

/** The body of a request by what stands in the fields; raises `ApiError` with the field that is no number. */
export function bodyOf(texts) {
  const body = { prompt: texts.prompt, stream: true, partial_images: NUM_PREVIEWS };
  if (texts.size.trim() !== "") body.size = texts.size.trim().replace("×", "x");
  for (const name of ["num_inference_steps", "seed", "priority", "deadline_s"]) {
    const text = texts[name].trim();
    if (text === "") continue;
    const value = Number(text.replace(",", "."));
    const isRight = name === "deadline_s" ? value > 0 : Number.isSafeInteger(value);
    if (!isRight) throw new ApiError(`${text.slice(0, 32)} is not allowed here: give a ${name === "deadline_s" ? "number above 0" : "whole number"}`, { param: name });
    if (name === "deadline_s") body.deadline_ms = value * 1000;
    else body[name] = value;
  }
  return body;
}

/** The media type by the first bytes of a file. */
export function mediaTypeOf(bytes) {
  if (bytes[0] === 0x89) return "image/png";
  return bytes[0] === 0xff ? "image/jpeg" : "image/webp";
}

/** One drawing at a time. `prefix` begins the ids of what is in work, so that it is known among all requests. */
export class Drawing {
  #api;
  #onStart;
  #abort = null;
  #url = null;
  #isFinished = false;
  prefix = null;

  constructor({ api, onStart }) {
    this.#api = api;
    this.#onStart = onStart;
    find("draw").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run();
    });
    find("draw-cancel").addEventListener("click", () => this.cancel());
    find("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("draw").requestSubmit();
    });
  }

  /** Hang up: the service ends a request whose client has left at the next step. */
  cancel() {
    this.#abort?.abort();
  }

  /** Whether a request is the one that this page waits for. */
  owns(id) {
    return this.#abort !== null && this.prefix !== null && id.startsWith(this.prefix);
  }

  /** How far the request is, as the events of the service tell. */
  progressed({ stage, step, num_inference_steps: numSteps, ranks }) {
    find("draw-progress").value = stage === "denoise" ? step / numSteps : stage === "encode" ? 0 : 1;
    find("draw-progress").title = laneText(ranks);
  }

  async #run() {
    if (this.#abort !== null) return;
    this.#begin();
    try {
      const body = bodyOf(Object.fromEntries(FIELDS.map((name) => [name, find(name).value])));
      const signal = this.#abort.signal;
      const headers = { "x-request-id": this.prefix.slice(0, -1) };
      const response = await this.#api.call("v1/images/generations", { method: "POST", body, headers, signal });
      say(find("draw-state"), "Taken; it waits for its lane or is drawn.");
      for await (const event of eventsOf(response)) this.#hear(event);
      if (!this.#isFinished) throw new ApiError("the connection has ended before the picture came; draw it again", {});
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#end();
    }
  }

  #begin() {
    this.#abort = new AbortController();
    this.#isFinished = false;
    this.prefix = `page-${crypto.getRandomValues(new Uint32Array(2)).join("")}-`;
    for (const name of FIELDS) find(name).removeAttribute("aria-invalid");
    find("draw-state").classList.remove("bad");
    say(find("draw-state"), "Sent…");
    this.#busy(true);
    find("picture").hidden = true;
    find("picture-save").hidden = true;
    this.#onStart(this.prefix);
  }

  #busy(isBusy) {
    // A button that has the focus would lose it by being disabled.
    find("draw-button").setAttribute("aria-disabled", isBusy);
    find("draw-cancel").disabled = !isBusy;
    find("draw-progress").hidden = !isBusy;
    find("draw-progress").value = 0;
  }

  #hear({ name, data }) {
    if (name === "error") throw new ApiError(data.error.message, { param: data.error.param });
    const isWhole = name === "image_generation.completed";
    if (!isWhole && name !== "image_generation.partial_image") return;
    this.#show(data, isWhole);
    say(find("draw-state"), isWhole ? "Finished." : `Preview after step ${data.step}.`);
    this.#isFinished = isWhole;
  }

  #show({ b64_json: text, seed, epe }, isWhole) {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    const type = mediaTypeOf(bytes);
    if (this.#url !== null) URL.revokeObjectURL(this.#url);
    this.#url = URL.createObjectURL(new Blob([bytes], { type }));
    find("picture").hidden = false;
    find("picture-image").src = this.#url;
    find("picture-image").alt = isWhole ? `A picture of: ${find("prompt").value}` : "A preview of the picture";
    find("picture-image").classList.toggle("preview", !isWhole);
    say(find("picture-caption"), isWhole ? factsText(seed, epe) : "Preview");
    find("picture-save").hidden = !isWhole;
    find("picture-save").href = this.#url;
    find("picture-save").download = `epe-${seed}.${type.split("/")[1]}`;
  }

  #fail(error) {
    if (error.name === "AbortError") return say(find("draw-state"), "Cancelled.");
    find("draw-state").classList.add("bad");
    say(find("draw-state"), error instanceof ApiError ? error.message : "The service cannot be reached; try again.");
    const name = error.param === "deadline_ms" ? "deadline_s" : error.param;
    if (!FIELDS.includes(name)) return undefined;
    find(name).setAttribute("aria-invalid", "true");
    return find(name).focus();
  }

  #end() {
    // What has the focus is about to be disabled.
    if (document.activeElement === find("draw-cancel")) find("draw-button").focus();
    this.#abort = null;
    this.#busy(false);
  }
}

function factsText(seed, { total_s: totalS, predicted_s: predictedS, lanes }) {
  const widths = lanes.filter(({ stage }) => stage === "denoise").map(({ ranks }) => ranks.length);
  const changes = widths.filter((width, index) => width !== widths[index - 1]);
  return `Seed ${seed}; ${seconds(totalS)}, predicted ${seconds(predictedS)}; lanes ${changes.join(" → ")} wide.`;
}
