// What the page asks the service; every address is its own.

const KEY = "looktwice-token";

export class Refused extends Error {
  constructor(problem) {
    super(problem.detail);
    this.status = problem.status;
    this.code = problem.code;
    this.error = problem.error;
  }
}

/** Keep a token, or that of a pasted link, until the tab is closed, or on this device until another one is given. */
export function keepToken(text, remember = false) {
  const token = new URLSearchParams(text.split("#")[1]).get("token") ?? text;
  localStorage.removeItem(KEY);
  (remember ? localStorage : sessionStorage).setItem(KEY, token);
  if (remember) sessionStorage.removeItem(KEY);
}

export function keptToken() {
  return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
}

export function forgetToken() {
  for (const storage of [sessionStorage, localStorage]) storage.removeItem(KEY);
}

// A link may carry a token behind the #, which no browser sends to a server; it does not stay in the address bar.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  keepToken(given, localStorage.getItem(KEY) === given);
  history.replaceState(null, "", location.pathname + location.search);
}

function headers(token, more = {}) {
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

async function refused(response) {
  const problem = await response.json().catch(() => null);
  return new Refused(problem ?? { status: response.status, code: "reply", detail: `The service answered ${response.status}.` });
}

export async function send(path, options = {}) {
  const token = keptToken();
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(token, options.headers), credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused({ status: 0, code: "network", detail: "The service cannot be reached. Are you in its network, and is it running?" });
  }
  if (!response.ok) throw Object.assign(await refused(response), { token });
  return response;
}

export async function profile() {
  return (await send("/v1/profile")).json();
}

export async function reliability() {
  return (await send("/v1/profile/reliability.svg")).text();
}

export async function samples() {
  return (await send("/page/samples/index.json")).json();
}

export async function sample(file) {
  return (await send(`/page/samples/${file}`)).blob();
}

/** Whether the files are photos of one object. */
export function isBurst(files) {
  return files.length > 1;
}

/** The events of a look at one picture, or at a burst of photos; one of them is `verdict` or `problem`. */
export async function* look(files, signal) {
  const form = new FormData();
  for (const file of files) form.append(files.length > 1 ? "images" : "image", file, file.name ?? "picture");
  const path = isBurst(files) ? "/v1/burst/events" : "/v1/look/events";
  const response = await send(path, { method: "POST", body: form, signal });
  yield* parsed(response.body.pipeThrough(new TextDecoderStream()).getReader());
}

async function* parsed(reader) {
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      const blocks = buffer.split("\n\n");
      buffer = blocks.pop();
      for (const block of blocks) {
        const lines = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
        if (lines.event) yield { name: lines.event, says: JSON.parse(lines.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
