// The page: pictures in by every way a browser has, and looks shown as they happen.

import * as api from "./api.js";
import { Camera } from "./camera.js";
import { Dial, percent } from "./dial.js";
import { Stage } from "./stage.js";
import { showTrust } from "./trust.js";

const REMEMBERED = 30;
const DECISIONS = { accept: "Accept", review: "Review" };
const UNFAMILIAR = "This is not the kind of picture it learned from";
const LIST = new Intl.ListFormat("en-GB", { type: "disjunction" });
const byId = (id) => document.getElementById(id);

const stage = new Stage();
const dial = new Dial(byId("dial"));
const camera = new Camera((photos) => enqueue([photos]));
const queue = [];
const visit = [];
let profile = null;
let running = null;
let current = null;

// Looking -----------------------------------------------------------------------------------------------------------

function enqueue(jobs) {
  queue.length = 0;
  queue.push(...jobs);
  running?.abort();
  if (!running) next();
}

async function next() {
  const files = queue.shift();
  if (!files) return;
  running = new AbortController();
  try {
    await look(files, running.signal);
  } catch (error) {
    if (error.name !== "AbortError") complain(error);
  }
  running = null;
  next();
}

async function look(files, signal) {
  complain(null);
  check(files);
  byId("status").textContent = "Looking …";
  let shown = null;
  for await (const { name, says } of api.look(files, signal)) {
    if (name === "problem") throw new api.Refused(says);
    shown = heard(shown, name, says);
    shown.others = api.isBurst(files) ? "other photos" : "views";
    current = shown;
    if (name === "picture") stage.show(shown);
    progress(shown, name);
  }
  if (!shown?.verdict) throw new api.Refused({ status: 0, code: "network", detail: "The service broke off. Try again." });
}

function check(files) {
  const size = files.reduce((sum, file) => sum + file.size, 0);
  const most = profile?.limits.bytes ?? Infinity;
  if (size > most) {
    const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
    throw new Error(`${files[0].name ?? "The picture"} has ${megabytes(size)}; this service takes ${megabytes(most)}. Make it smaller.`);
  }
}

function heard(shown, name, says) {
  if (name === "picture") return { ...says, views: says.views.map((view) => ({ ...view })) };
  if (name === "view") shown.views[says.place - 1].picture = says.picture;
  else if (name === "verdict") shown.verdict = says;
  else if (says.place === 0) shown.base = says.label;
  else shown.views[says.place - 1].label = says.label;
  return shown;
}

function progress(shown, name) {
  if (name === "view") return shown.views.forEach((_, index) => stage.draw(shown, index));
  stage.answers(shown);
  if (name === "verdict") return conclude(shown);
  const answered = shown.views.filter((view) => view.label !== undefined);
  byId("verdict").dataset.state = "waiting";
  byId("label").textContent = shown.base ?? "\u00a0";
  for (const id of ["decision", "set", "unfamiliar", "tags"]) byId(id).hidden = true;
  byId("verdict").classList.remove("unfamiliar");
  byId("sentence").textContent = `${answered.length} of ${shown.views.length} ${shown.others} have an answer.`;
  if (answered.length && shown.base !== undefined) {
    dial.swing(answered.filter((view) => view.label === shown.base).length / answered.length);
  } else dial.empty();
}

function conclude(shown) {
  remember(shown);
  present(shown);
  const { kind, label, confidence, sentence, decision, prediction_set, unfamiliar_because } = shown.verdict;
  const answer = kind === "label" && `${label}, ${percent(confidence)}.`;
  const told = [unfamiliar_because && `${UNFAMILIAR}: ${unfamiliar_because}.`, answer, decision && `${DECISIONS[decision]}.`, sentence, prediction_set && `${named(prediction_set)}.`];
  byId("status").textContent = told.filter(Boolean).join(" ");
}

/** A prediction set in words; null among the labels stands for any other label. */
function named(labels) {
  return `Prediction set: ${labels.length ? LIST.format(labels.map((label) => label ?? "any other label")) : "no label"}`;
}

/** What a verdict says in a few words. */
function short(verdict) {
  return verdict.kind === "tags" ? verdict.yes.join(", ") || "No tag is sure" : verdict.label;
}

/** A chip for each tag that is there or open; those that are not there are counted. */
function showTags({ tags = [], no = [] }) {
  byId("tags").hidden = !tags.length;
  const open = tags.filter(({ decision }) => decision !== "no");
  const chips = open.map(({ name, probability, decision }) => [decision, `${name} ${percent(probability)}${decision === "review" ? "?" : ""}`]);
  if (no.length) chips.push(["no", `${no.length} not there`]);
  byId("tags").replaceChildren(...chips.map(([decision, text]) => {
    const item = document.createElement("li");
    item.className = "chip";
    item.dataset.decision = { yes: "accept", review: "review", no: "none" }[decision];
    item.textContent = text;
    return item;
  }));
}

function present(shown) {
  const { verdict } = shown;
  const decision = verdict.held ? "review" : verdict.decision;
  byId("verdict").dataset.state = decision ?? "undecided";
  byId("label").textContent = short(verdict);
  showTags(verdict);
  byId("sentence").textContent = verdict.unfamiliar_because ? "The confidence holds only for pictures like the labelled ones, so it means nothing here." : verdict.sentence;
  byId("verdict").classList.toggle("unfamiliar", verdict.unfamiliar_because !== null);
  byId("unfamiliar").hidden = !verdict.unfamiliar_because;
  byId("unfamiliar-because").textContent = verdict.unfamiliar_because ?? "";
  byId("set").hidden = !verdict.prediction_set;
  byId("set").textContent = verdict.prediction_set ? named(verdict.prediction_set) : "";
  const chip = byId("decision");
  chip.hidden = verdict.kind === "tags" && !decision;
  chip.dataset.decision = decision ?? "none";
  const basis = verdict.basis === "estimate" ? " (estimate)" : "";
  chip.textContent = verdict.held ? `Held for review: ${verdict.held}` : decision ? DECISIONS[decision] + basis : "No guarantee for bursts";
  byId("dial").hidden = verdict.kind === "tags";
  if (verdict.kind === "label") dial.settle(verdict);
}

function complain(error) {
  const alert = byId("alert");
  alert.hidden = !error;
  alert.textContent = error?.message ?? "";
  if (!error) return;
  byId("status").textContent = "";
  if (error.status === 401) return askToken();
  if (current?.verdict) {
    stage.show(current);
    present(current);
  } else {
    byId("verdict").dataset.state = "empty";
    byId("label").textContent = "\u00a0";
    byId("sentence").textContent = "There is no verdict.";
    for (const id of ["set", "unfamiliar", "tags"]) byId(id).hidden = true;
    byId("verdict").classList.remove("unfamiliar");
    dial.empty();
  }
}

// This visit --------------------------------------------------------------------------------------------------------

function remember(shown) {
  visit.unshift(shown);
  visit.length = Math.min(visit.length, REMEMBERED);
  byId("history").hidden = false;
  byId("history-list").replaceChildren(...visit.map(entry));
}

function entry(shown) {
  const { verdict } = shown;
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.decision = verdict.decision ?? "none";
  const image = document.createElement("img");
  image.src = shown.picture;
  image.alt = "";
  image.classList.toggle("coarse", Math.max(shown.width, shown.height) < 96);
  const words = document.createElement("span");
  words.textContent = short(verdict);
  const share = document.createElement("strong");
  share.textContent = verdict.kind === "tags" ? "" : percent(verdict.confidence);
  button.classList.toggle("unfamiliar", verdict.unfamiliar_because !== null);
  const decision = document.createElement("small");
  decision.className = "unseen";
  decision.textContent = verdict.unfamiliar_because ? "Unfamiliar" : (DECISIONS[verdict.decision] ?? (verdict.kind === "tags" ? "" : "Burst"));
  button.append(image, words, share, decision);
  button.addEventListener("click", () => again(shown));
  item.append(button);
  return item;
}

function again(shown) {
  queue.length = 0;
  running?.abort();
  current = shown;
  complain(null);
  stage.show(shown);
  present(shown);
}

// Ways in -----------------------------------------------------------------------------------------------------------

const pictures = (list) => [...(list ?? [])].filter((file) => file instanceof File);

byId("choose").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", (event) => {
  enqueue(pictures(event.target.files).map((file) => [file]));
  event.target.value = "";
});
byId("camera").addEventListener("click", () => camera.open().catch(complain));

addEventListener("paste", (event) => {
  const files = pictures(event.clipboardData?.files);
  if (files.length) enqueue(files.map((file) => [file]));
});

let over = 0;
const hover = (change) => {
  over = Math.max(0, over + change);
  document.body.classList.toggle("over", over > 0);
};
addEventListener("dragenter", (event) => {
  event.preventDefault();
  hover(1);
});
addEventListener("dragleave", () => hover(-1));
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  over = 0;
  hover(0);
  const files = pictures(event.dataTransfer?.files);
  if (files.length) enqueue(files.map((file) => [file]));
});

async function offerSamples() {
  const { labels, groups } = await api.samples();
  if (!labels.every((label) => profile.vocabulary.includes(label))) return;
  byId("sample-groups").replaceChildren(...groups.flatMap(grouped));
  byId("samples").hidden = false;
}

function grouped({ caption, samples }) {
  const words = document.createElement("p");
  words.textContent = caption;
  const list = document.createElement("ul");
  list.setAttribute("aria-label", caption);
  list.append(...samples.map(offered));
  return [words, list];
}

function offered({ file, truth }) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  const image = document.createElement("img");
  image.src = `/page/samples/${file}`;
  image.alt = `Sample: ${truth}`;
  image.loading = "lazy";
  image.classList.toggle("coarse", file.endsWith(".png"));
  button.append(image);
  button.addEventListener("click", async () => {
    try {
      const blob = await api.sample(file);
      enqueue([[new File([blob], `${truth}${file.slice(-4)}`, { type: blob.type })]]);
    } catch (error) {
      complain(error);
    }
  });
  item.append(button);
  return item;
}

// Tabs --------------------------------------------------------------------------------------------------------------

const tabs = [...document.querySelectorAll("[role=tab]")];

function select(tab, focus = false) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", chosen);
    each.tabIndex = chosen ? 0 : -1;
    byId(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
}

tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => {
    select(tab);
    if (tab.id === "tab-trust") begin();
  });
  tab.addEventListener("keydown", ({ key }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (step) select(tabs[(index + step + tabs.length) % tabs.length], true);
  });
});

// Beginning ---------------------------------------------------------------------------------------------------------

function askToken() {
  byId("token-dialog").showModal();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.keepToken(byId("token").value.trim());
  byId("token").value = "";
  byId("token-dialog").close();
  complain(null);
  begin();
});

async function begin() {
  try {
    profile = await api.profile();
    dial.threshold(profile.threshold);
    await Promise.all([showTrust(profile), byId("samples").hidden && offerSamples()]);
  } catch (error) {
    complain(error);
  }
}

begin();
