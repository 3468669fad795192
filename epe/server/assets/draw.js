// The box that draws: a prompt goes in, previews come while the picture forms, then the picture, or a video.

import { ApiError } from "./api.js";
import { find, say } from "./dom.js";
import { drawPicture, drawVideo } from "./sources.js";
import { laneText, seconds, widthsText } from "./words.js";

const NUMBERS = { num_inference_steps: "whole", seed: "whole", priority: "whole", seconds: "positive", deadline_s: "positive" };
const FIELDS = ["prompt", "size", ...Object.keys(NUMBERS)];

/** The body of a request by what stands in the fields; raises `ApiError` with the field that is no number. */
export function bodyOf(texts) {
  const body = { prompt: texts.prompt };
  if (texts.size.trim() !== "") body.size = texts.size.trim().replace("×", "x");
  for (const [name, kind] of Object.entries(NUMBERS)) {
    const text = (texts[name] ?? "").trim();
    if (text === "") continue;
    const value = numberOf(text, { name, kind });
    if (name === "deadline_s") body.deadline_ms = value * 1000;
    else body[name] = value;
  }
  return body;
}

function numberOf(text, { name, kind }) {
  const value = Number(text.replace(",", "."));
  if (kind === "whole" ? Number.isSafeInteger(value) : value > 0 && value < Infinity) return value;
  const allowed = kind === "whole" ? "a whole number" : "a number above 0";
  throw new ApiError(`${text.slice(0, 32)} is not allowed here; give ${allowed}`, { param: name });
}

/** One drawing at a time. What it draws is known among all requests by the beginning of its id. */
export class Drawing {
  #api;
  #onTaken;
  #abort = null;
  #prefix = null;
  #url = null;
  #makes = "picture";

  /** `onTaken(prefix)` is called with the beginning of the id of each request, or null where none is known yet. */
  constructor({ api, onTaken }) {
    this.#api = api;
    this.#onTaken = onTaken;
    find("draw").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run();
    });
    find("draw-cancel").addEventListener("click", () => this.cancel());
    find("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("draw").requestSubmit();
    });
  }

  /** What the model of the service draws: "picture" or "video". */
  set makes(what) {
    this.#makes = what;
    find("seconds-field").hidden = what !== "video";
  }

  /** Hang up: the service ends a request whose client has left at the next step. */
  cancel() {
    this.#abort?.abort();
  }

  /** Whether a request is the one that this page waits for. */
  owns(id) {
    return this.#abort !== null && this.#prefix !== null && id.startsWith(this.#prefix);
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
      const body = bodyOf(Object.fromEntries(FIELDS.map((name) => [name, valueOf(name)])));
      const id = `page-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
      const draw = this.#makes === "video" ? drawVideo : drawPicture;
      this.#expect(this.#makes === "video" ? null : `${id}-`);
      for await (const event of draw({ api: this.#api, body, id, signal: this.#abort.signal })) this.#hear(event);
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#end();
    }
  }

  #begin() {
    this.#abort = new AbortController();
    for (const name of FIELDS) find(name).removeAttribute("aria-invalid");
    find("draw-state").classList.remove("bad");
    say(find("draw-state"), "Sent…");
    this.#busy(true);
    for (const name of ["picture", "picture-save"]) find(name).hidden = true;
  }

  #busy(isBusy) {
    // A button that has the focus would lose it by being disabled.
    find("draw-button").setAttribute("aria-disabled", isBusy);
    find("draw-cancel").disabled = !isBusy;
    find("draw-progress").hidden = !isBusy;
    find("draw-progress").value = 0;
  }

  /** It may be admitted before its answer begins, so a picture is expected from the start. */
  #expect(prefix) {
    if (this.#prefix === prefix && prefix !== null) return;
    this.#prefix = prefix;
    this.#onTaken(prefix);
  }

  #hear({ kind, prefix, blob, step, seed, drawn }) {
    if (kind === "taken") {
      this.#expect(prefix);
      return say(find("draw-state"), "Taken; it waits for its lane or is drawn.");
    }
    const isWhole = kind === "finished";
    this.#show(blob, isWhole);
    say(find("draw-state"), isWhole ? "Finished." : step === undefined ? "Preview of the first frame." : `Preview after step ${step}.`);
    say(find("picture-caption"), isWhole ? factsText(seed, drawn) : "Preview");
    find("picture-save").download = `epe-${seed}.${blob.type.split("/")[1]}`;
    return undefined;
  }

  #show(blob, isWhole) {
    if (this.#url !== null) URL.revokeObjectURL(this.#url);
    this.#url = URL.createObjectURL(blob);
    const isVideo = blob.type.startsWith("video/");
    const [shown, other] = isVideo ? [find("picture-video"), find("picture-image")] : [find("picture-image"), find("picture-video")];
    shown.src = this.#url;
    shown.hidden = false;
    other.hidden = true;
    other.removeAttribute("src");
    const what = isWhole ? `A ${this.#makes} of: ${find("prompt").value}` : "A preview of the picture";
    shown.setAttribute(isVideo ? "aria-label" : "alt", what);
    shown.classList.toggle("preview", !isWhole);
    find("picture").hidden = false;
    find("picture-save").hidden = !isWhole;
    find("picture-save").href = this.#url;
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

/** What stands in a field that is seen. */
function valueOf(name) {
  return find(name).closest("[hidden]") === null ? find(name).value : "";
}

function factsText(seed, { total_s: totalS, predicted_s: predictedS, lanes }) {
  return `Seed ${seed}; ${seconds(totalS)}, predicted ${seconds(predictedS)}; ${widthsText(lanes)}.`;
}
