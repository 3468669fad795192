// Calls of the service. Where it asks for a key, the call waits until there is one.

const KEY = "epe-key";

/** An answer that is an error: its sentence, and the field that is wrong, if one is. */
export class ApiError extends Error {
  constructor(message, { status, param = null }) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

export class Api {
  #askForKey;
  #storage;

  /** `askForKey(sentence)` gives a promise of a key. It is kept in `storage`, which ends with the tab. */
  constructor({ askForKey, storage }) {
    this.#askForKey = askForKey;
    this.#storage = storage;
  }

  /** The answer, if it is none of an error; raises `ApiError`, or what fetch raises. A status in `alsoGood` is no error. */
  async call(path, { method = "GET", body, headers = {}, signal, alsoGood = [] } = {}) {
    for (;;) {
      const key = this.#storage.getItem(KEY);
      const response = await fetch(path, {
        method, signal, cache: "no-store", credentials: "omit", redirect: "error",
        body: body === undefined ? undefined : JSON.stringify(body),
        headers: headersOf({ key, body, headers }),
      });
      if (response.ok || alsoGood.includes(response.status)) return response;
      const error = await errorOf(response);
      if (error.status !== 401) throw error;
      // Another call may have got a new key in the meantime.
      if (this.#storage.getItem(KEY) === key) this.#storage.setItem(KEY, await this.#askForKey(error.message));
    }
  }

  async json(path, options) {
    return (await this.call(path, options)).json();
  }
}

function headersOf({ key, body, headers }) {
  const all = { ...headers };
  if (key !== null) all.Authorization = `Bearer ${key}`;
  if (body !== undefined) all["Content-Type"] = "application/json";
  return all;
}

async function errorOf(response) {
  const reply = await response.json().catch(() => null); // a proxy's page, for example
  const detail = reply?.error ?? {};
  const message = detail.message ?? `the service has answered with status ${response.status}`;
  return new ApiError(message, { status: response.status, param: detail.param ?? null });
}
