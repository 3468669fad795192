// What comes while something is drawn, whichever route draws it: {kind, ...} of the kinds "taken", "preview", "finished".

import { ApiError } from "./api.js";
import { eventsOf } from "./sse.js";

const NUM_PREVIEWS = 3;
// How long a video whose service cannot be reached is left alone; it is drawn all the same.
const AGAIN_MS = 2000;

/** A picture, whose request ends when `signal` hangs up. Events carry {blob, step} or {blob, seed, drawn}. */
export async function* drawPicture({ api, body, id, signal }) {
  const asked = { ...body, stream: true, partial_images: NUM_PREVIEWS };
  const headers = { "x-request-id": id };
  const response = await api.call("v1/images/generations", { method: "POST", body: asked, headers, signal });
  yield { kind: "taken", prefix: `${id}-` };
  for await (const { name, data } of eventsOf(response)) {
    if (name === "error") throw new ApiError(data.error.message, { param: data.error.param });
    if (name === "image_generation.partial_image") yield { kind: "preview", blob: blobOf(data.b64_json), step: data.step };
    if (name !== "image_generation.completed") continue;
    yield { kind: "finished", blob: blobOf(data.b64_json), seed: data.seed, drawn: data.epe };
    return;
  }
  throw new ApiError("the connection has ended before the picture came; draw it again", {});
}

/** A video: a job, which is asked after as often as the service says, also over a lost connection. */
export async function* drawVideo({ api, body, signal }) {
  let answer = await askVideo(api, "v1/videos", { method: "POST", body, signal });
  const path = `v1/videos/${encodeURIComponent(answer.video.id)}`;
  yield { kind: "taken", prefix: answer.video.id };
  try {
    while (["queued", "in_progress"].includes(answer.video.status)) {
      await pause(answer.afterMs, signal);
      const before = answer.video.progress;
      answer = await askVideo(api, path, { signal }).catch((error) => stayOn(error, answer, signal));
      if (answer.video.progress === before) continue;
      const blob = await previewOf(api, path, signal);
      if (blob !== null) yield { kind: "preview", blob };
    }
  } catch (error) {
    if (signal.aborted) await api.call(path, { method: "DELETE" });
    throw error;
  }
  const { status, error, epe } = answer.video;
  if (status !== "completed") throw new ApiError(error.message, {});
  const content = await api.call(`${path}/content`, { signal });
  yield { kind: "finished", blob: await content.blob(), seed: epe.seed, drawn: epe.drawn };
}

/** The first frame as far as it has formed, or null. */
async function previewOf(api, path, signal) {
  try {
    const answer = await api.call(`${path}/content?variant=thumbnail`, { signal, alsoGood: [404] });
    const blob = answer.ok ? await answer.blob() : null;
    return blob?.type.startsWith("image/") ? blob : null;
  } catch (error) {
    if (signal.aborted) throw error;
    return null;
  }
}

async function askVideo(api, path, options) {
  const response = await api.call(path, options);
  return { video: await response.json(), afterMs: Number(response.headers.get("openai-poll-after-ms")) || AGAIN_MS };
}

/** What was known before, where the service cannot be reached; whatever it answers counts. */
function stayOn(error, answer, signal) {
  if (error instanceof ApiError || signal.aborted) throw error;
  return { ...answer, afterMs: AGAIN_MS };
}

function pause(forMs, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, forMs);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
    if (signal.aborted) reject(signal.reason);
  });
}

function blobOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  return new Blob([bytes], { type: mediaTypeOf(bytes) });
}

/** The media type of a picture by its first bytes. */
function mediaTypeOf(bytes) {
  if (bytes[0] === 0x89) return "image/png";
  return bytes[0] === 0xff ? "image/jpeg" : "image/webp";
}
