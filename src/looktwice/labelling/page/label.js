// One picture at a time: a click is kept until the service says that it is on disk, and only then the next one shows.

import { Refused, send } from "/page/api.js";
import { askToken } from "/page/token.js";

const $ = (id) => document.getElementById(id);
const WINDOW = "looktwice-window", PENDING = "looktwice-click";
const AGAIN = 1000; // milliseconds until a click that did not get through is sent again
const LATER = 1500; // milliseconds until the page asks for a new summary
const SOON = 300; // milliseconds until it asks whether the options have come
const LOOKS = 20; // how often it asks after a click, since a busy machine takes its time
const MATCHES = 8;
const RELOADED = 500; // milliseconds that a page has to disappear when it is reloaded

let own = ""; // the id of this window
let known = []; // every label
let state = null;
let shown = null; // the item on the page, as it was when it was shown
let busy = false;
let looking = 0; // the timer of looking again
let marked = -1; // the match that Enter takes
let chosen = new Set(); // the tags that are switched on, where several may be true
const pictures = new Map(); // file → a promise of its address, for those that are shown or come next

function token() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The id of this window, which a reload keeps. A duplicated tab has a copy of it, and needs another. */
async function identify() {
  const id = sessionStorage.getItem(WINDOW);
  if (id && await claim(id)) return id;
  const fresh = token();
  sessionStorage.setItem(WINDOW, fresh);
  await claim(fresh);
  return fresh;
}

/** Hold a lock on an id while this page lives; false if another page has it. */
function claim(id) {
  if (!navigator.locks) return true; // they exist on this machine and over https
  const signal = AbortSignal.timeout(RELOADED);
  return new Promise((resolve) => {
    navigator.locks.request(`${WINDOW}-${id}`, { signal }, () => { resolve(true); return new Promise(() => {}); }).catch(() => resolve(false));
  });
}

async function asked(work) {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 401) throw error;
      await askToken(error);
    }
  }
}

// Pictures

function load(file) {
  if (!pictures.has(file)) {
    const path = `/v1/label/picture?file=${encodeURIComponent(file)}`;
    pictures.set(file, asked(async () => URL.createObjectURL(await (await send(path)).blob())));
    pictures.get(file).catch(() => pictures.delete(file)); // it is told when it is shown, and then loaded anew
  }
  return pictures.get(file);
}

function forget(files) {
  for (const [file, address] of pictures) {
    if (files.includes(file)) continue;
    pictures.delete(file);
    address.then(URL.revokeObjectURL, () => {});
  }
}

// What is shown

async function show(next) {
  state = next;
  const item = state.items[0] ?? null;
  $("progress").value = state.total ? state.settled / state.total : 1;
  $("count").textContent = `${state.settled} of ${state.total}`;
  showNotice(state.notice);
  $("task").hidden = !item;
  $("finished").hidden = Boolean(item);
  $("undo").disabled = $("undo-last").disabled = !state.mine;
  showSummary(state.summary);
  state.items.forEach(({ file }) => load(file));
  forget(state.items.map(({ file }) => file));
  shown = item;
  if (!item) {
    const left = state.total - state.settled;
    $("finished-words").textContent = left ? `Others are labelling the last ${left}.` : "Every picture is labelled.";
    return;
  }
  await showItem(item);
}

function showNotice(notice) {
  $("notice").hidden = !notice;
  $("notice").textContent = notice;
}

function showSummary(summary) {
  $("summary").hidden = !summary;
  if (!summary) return;
  $("summary-lines").replaceChildren(...summary.lines.map(([term, value, detail]) => {
    const pair = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd"), small = document.createElement("small");
    dt.textContent = term;
    small.textContent = detail;
    dd.append(value, small);
    pair.append(dt, dd);
    return pair;
  }));
  $("enough").hidden = !summary.enough;
  $("summary-note").textContent = summary.note;
}

/** Ask for the state again: options come with the classifier's answers, and the summary is computed beside the clicks. */
function lookAgain(times = LOOKS) {
  clearTimeout(looking);
  looking = setTimeout(async () => {
    if (busy) return;
    try {
      const next = await (await send(`/v1/label/state?window=${own}`)).json();
      if (busy || next.items[0]?.file !== shown?.file) return;
      if (shown?.pending) showOptions(shown = next.items[0]);
      state = { ...next, items: [...(shown ? [shown] : []), ...next.items.slice(1)] };
      showNotice(state.notice);
      showSummary(state.summary);
      if (shown?.pending) lookAgain(times);
      else if (times > 1) lookAgain(times - 1);
    } catch {
      if (shown?.pending && times > 1) lookAgain(times - 1); // otherwise the next click tells it
    }
  }, shown?.pending ? SOON : LATER);
}

function showOptions(item) {
  const more = [...chosen].filter((label) => !item.options.includes(label)); // found by searching
  $("options").replaceChildren(...[...item.options, ...more].map(option));
  $("pending").hidden = !item.pending;
  $("not").disabled = !state.tags && !excluded().length;
  $("save").disabled = !chosen.size;
}

/** Switch a tag on or off; it is saved with all others. */
function toggle(label) {
  if (busy || !shown) return;
  chosen[chosen.has(label) ? "delete" : "add"](label);
  showOptions(shown);
  $("status").textContent = `${label}: ${chosen.has(label) ? "on" : "off"}`;
}

async function showItem(item) {
  $("name").textContent = item.file;
  $("prediction").hidden = !item.prediction;
  chosen = new Set(item.chosen);
  $("save").hidden = !state.tags;
  $("keys-words").textContent = state.tags ? "A number: on or off" : "Shift and a number: not that one";
  $("question").textContent = state.tags ? "Which are true of it?" : item.prediction ? "If not, what is it?" : "What is it?";
  $("not-words").textContent = item.prediction ? "It is wrong" : state.tags ? "No tag is true" : "None of these";
  if (item.prediction) {
    $("prediction-label").textContent = `${item.prediction.label}?`;
    $("prediction-confidence").textContent = `${(100 * item.prediction.confidence).toFixed(1)} % confident`;
  }
  showOptions(item);
  $("search").value = "";
  match();
  try {
    const address = await load(item.file);
    if (shown?.file === item.file) $("picture").src = address;
    $("picture").classList.toggle("coarse", await coarse($("picture")));
    $("picture").hidden = false;
  } catch (error) {
    $("picture").hidden = true; // it is another one
    tell(`${item.file} cannot be shown: ${error.message}`);
  }
}

async function coarse(image) {
  await image.decode().catch(() => {});
  return Math.max(image.naturalWidth, image.naturalHeight) < 200;
}

function option(label, place) {
  const row = document.createElement("li"), button = document.createElement("button"), key = document.createElement("kbd");
  key.textContent = place < 10 ? String((place + 1) % 10) : "";
  key.setAttribute("aria-hidden", "true");
  const words = document.createElement("span");
  words.append(...label.split(/(?<=_)/).flatMap((part, at) => (at ? [document.createElement("wbr"), part] : [part])));
  button.type = "button";
  button.dataset.label = label;
  button.append(key, words);
  if (state.tags) button.setAttribute("aria-pressed", String(chosen.has(label)));
  button.addEventListener("click", (event) => (state.tags ? toggle(label) : say(event.shiftKey ? "not" : "label", [label])));
  row.append(button);
  return row;
}

function tell(words) {
  $("alert").hidden = !words;
  $("alert").textContent = words ?? "";
}

// Clicks

function say(says, labels = []) {
  if (busy || !shown) return;
  deliver({ path: "/v1/label/click", body: { id: token(), window: own, file: shown.file, says, labels } });
}

function undo() {
  if (busy || !state?.mine) return;
  deliver({ path: "/v1/label/undo", body: { id: token(), window: own } });
}

/** Send until it is on disk: it is kept here over a reload, and has an id, so that it never counts twice. */
async function deliver(click) {
  busy = true;
  $("main").setAttribute("aria-busy", "true");
  sessionStorage.setItem(PENDING, JSON.stringify(click));
  const options = { method: "POST", body: JSON.stringify(click.body), headers: { "content-type": "application/json" } };
  for (;;) {
    try {
      const reply = await (await asked(() => send(click.path, options))).json();
      sessionStorage.removeItem(PENDING);
      tell(null);
      $("status").textContent = $("last").textContent = said(click.body);
      remember(click.body.labels ?? []);
      await settle(reply);
      return;
    } catch (error) {
      if (!(error instanceof Refused) || (error.status && error.status < 500)) {
        sessionStorage.removeItem(PENDING);
        tell(error.message);
        await settle(state);
        return;
      }
      tell(`Not saved yet: ${error.message} Trying again.`);
      await new Promise((resolve) => setTimeout(resolve, AGAIN));
    }
  }
}

async function settle(reply) {
  if (reply) await show(reply);
  busy = false;
  $("main").setAttribute("aria-busy", "false");
  lookAgain();
}

function said({ says, labels, file }) {
  if (!says) return "Undone.";
  const not = labels?.length > 1 ? "none of these" : `not ${labels}`;
  const words = { label: `Saved: ${labels}`, tags: `Saved: ${labels.join(", ") || "no tag"}`, not: `Saved: ${not}`, unsure: "Saved: can’t tell", skip: "Skipped" };
  return `${words[says]} (${file}).`;
}

function remember(labels) {
  const fresh = labels.filter((label) => !known.includes(label));
  if (fresh.length) known = [...known, ...fresh].sort((a, b) => a.localeCompare(b));
}

// Something else

/** Learn the labels that the classifier and other people have named since. */
async function relearn() {
  try {
    const before = known.length;
    remember((await (await send("/v1/label/work")).json()).labels);
    if (known.length > before && document.activeElement === $("search")) match();
  } catch {
    // Those that are known will do.
  }
}

function found() {
  const words = $("search").value.trim();
  if (!words) return [];
  const wanted = words.toLowerCase();
  const hits = known.filter((label) => label.toLowerCase().includes(wanted));
  hits.sort((a, b) => b.toLowerCase().startsWith(wanted) - a.toLowerCase().startsWith(wanted));
  const best = hits.slice(0, MATCHES).map((label) => ({ label, words: label }));
  return known.includes(words) ? best : [...best, { label: words, words: `New label: ${words}` }];
}

function match() {
  const matches = found();
  marked = matches.length ? 0 : -1;
  $("matches").replaceChildren(...matches.map(({ label, words }, place) => {
    const row = document.createElement("li");
    row.id = `match-${place}`;
    row.role = "option";
    row.textContent = words;
    row.dataset.label = label;
    row.addEventListener("mousedown", (event) => event.preventDefault());
    row.addEventListener("mousemove", () => mark(place));
    row.addEventListener("click", () => take(place));
    return row;
  }));
  $("matches").hidden = !matches.length;
  $("search").setAttribute("aria-expanded", String(matches.length > 0));
  mark(marked);
}

function mark(place) {
  marked = place;
  [...$("matches").children].forEach((row, at) => row.setAttribute("aria-selected", String(at === place)));
  if (place < 0) $("search").removeAttribute("aria-activedescendant");
  else $("search").setAttribute("aria-activedescendant", `match-${place}`);
}

function take(place) {
  const row = $("matches").children[place];
  if (!row) return;
  $("search").blur();
  if (!state.tags) return say("label", [row.dataset.label]);
  $("search").value = "";
  if (!chosen.has(row.dataset.label)) toggle(row.dataset.label);
}

function searching(event) {
  const count = $("matches").children.length;
  if (event.key === "Enter") take(marked);
  else if (event.key === "Escape") { $("search").value = ""; match(); $("search").blur(); }
  else if (event.key === "ArrowDown" && count) mark((marked + 1) % count);
  else if (event.key === "ArrowUp" && count) mark((marked + count - 1) % count);
  else return;
  event.preventDefault();
}

// Keys

function excluded() {
  return shown.prediction ? [shown.prediction.label] : shown.options;
}

function tagAt(place) {
  return $("options").children[place]?.querySelector("button").dataset.label;
}

const KEYS = {
  ArrowRight: () => say("skip"),
  ArrowLeft: undo,
  ArrowDown: () => say("unsure"),
  ArrowUp: () => $("search").focus(),
  Backspace: undo,
  n: () => (state.tags ? say("tags", []) : excluded().length && say("not", excluded())),
  u: undo,
  "/": () => $("search").focus(),
  Enter: () => (state.tags ? chosen.size && say("tags", [...chosen]) : shown.prediction && say("label", [shown.prediction.label])),
};

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || document.querySelector("dialog[open]")) return;
  if (event.target === $("search")) return;
  if (event.key === "Enter" && event.target instanceof HTMLButtonElement) return;
  const digit = /^Digit(\d)$/.exec(event.code)?.[1] ?? /^[0-9]$/.exec(event.key)?.[0];
  const label = digit && (state?.tags ? tagAt((Number(digit) + 9) % 10) : shown?.options[(Number(digit) + 9) % 10]);
  if (label && state.tags) toggle(label);
  else if (label) say(event.shiftKey ? "not" : "label", [label]);
  else if (KEYS[event.key] && (shown || KEYS[event.key] === undo)) KEYS[event.key]();
  else return;
  event.preventDefault();
}

document.addEventListener("keydown", pressed);
$("search").addEventListener("input", match);
$("search").addEventListener("keydown", searching);
$("search").addEventListener("blur", () => { $("matches").hidden = true; $("search").setAttribute("aria-expanded", "false"); });
$("search").addEventListener("focus", () => { match(); relearn(); });
for (const id of ["accept", "save"]) $(id).addEventListener("click", KEYS.Enter);
$("not").addEventListener("click", KEYS.n);
$("unsure").addEventListener("click", KEYS.ArrowDown);
$("skip").addEventListener("click", KEYS.ArrowRight);
for (const id of ["undo", "undo-last"]) $(id).addEventListener("click", undo);

own = await identify();
const work = await asked(async () => (await send("/v1/label/work")).json());
known = work.labels;
document.title = $("title").textContent = work.title;
$("next").textContent = $("fit").textContent = work.next;
const pending = sessionStorage.getItem(PENDING);
if (pending) await deliver(JSON.parse(pending));
else await settle(await asked(async () => (await send(`/v1/label/state?window=${own}`)).json()));
