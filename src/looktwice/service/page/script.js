// The page: pictures in by every way a browser has, and looks shown as they happen.

import * as api from "./api.js";
import { Camera } from "./camera.js";
import { Dial, percent } from "./dial.js";
import { plain, Stage } from "./stage.js";
import { askToken } from "./token.js";
import { odds, showTrust } from "./trust.js";

const REMEMBERED = 30;
const DECISIONS = { accept: "Accept", review: "Check it yourself" };
const UNFAMILIAR = "This is not the kind of picture it learned from";
const LIST = new Intl.ListFormat("en-GB", { type: "disjunction" });
const byId = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const stage = new Stage();
const dial = new Dial(byId("dial"));
const camera = new Camera((photos) => enqueue([photos]));
const queue = [];
const visit = [];
let profile = null;
let busy = false;
let latest = null; // the look that was begun last
let front = null; // the look that is shown

// Looking -----------------------------------------------------------------------------------------------------------

function enqueue(jobs) {
  queue.push(...jobs);
  front = latest;
  if (busy) show(latest);
  else next();
}

async function next() {
  const files = queue.shift();
  busy = files !== undefined;
  if (!busy) return;
  const look = waiting(files);
  if (front === latest) front = look;
  latest = look;
  show(look);
  try {
    await perform(look, files);
  } catch (error) {
    if (error.status === 401) {
      queue.unshift(files);
      await askToken(error);
      await begin();
    } else fail(look, error);
  }
  next();
}

/** A look whose files are about to be sent, with a preview of the first. */
function waiting(files) {
  const [{ name }] = files;
  const burst = api.isBurst(files);
  const picture = URL.createObjectURL(files[0]);
  return { name: name || "picture", picture, width: Infinity, height: Infinity, views: [], others: burst ? "other photos" : "changed copies" };
}

async function perform(look, files) {
  check(files);
  for await (const { name, says } of api.look(files)) {
    if (name === "problem") throw new api.Refused(says);
    hear(look, name, says);
    if (name === "verdict") remember(look);
    if (look !== front) continue;
    if (name === "picture") show(look);
    else if (name === "view") look.views.forEach((_, index) => stage.draw(look, index));
    else update(look);
    if (name === "verdict") conclude(look);
  }
  if (!look.verdict) throw new api.Refused({ status: 0, code: "network", detail: "The service broke off. Try again." });
}

function check(files) {
  const size = files.reduce((sum, file) => sum + file.size, 0);
  const most = profile?.limits.bytes ?? Infinity;
  if (size > most) {
    const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
    throw new Error(`The file has ${megabytes(size)}; this service takes ${megabytes(most)}. Make it smaller.`);
  }
}

function hear(look, name, says) {
  if (name === "picture") {
    URL.revokeObjectURL(look.picture);
    Object.assign(look, says, { received: true });
  } else if (name === "view") look.views[says.place - 1].picture = says.picture;
  else if (name === "verdict") look.verdict = says;
  else if (says.place === 0) look.base = says.label;
  else look.views[says.place - 1].label = says.label;
}

function fail(look, error) {
  const why = error.error === "extra-missing" ? "This service cannot read HEIC; choose a JPEG." : error.message;
  look.failure = why.includes(look.name) ? why : `${look.name}: ${why}`;
  remember(look);
  if (look === front) show(look);
}

// What is shown -----------------------------------------------------------------------------------------------------

function show(look) {
  if (look !== front) return;
  stage.show(look);
  update(look);
  intoView(look.failure ? "alert" : "stage");
}

function update(look) {
  complain(look.failure);
  stage.answers(look);
  if (look.verdict) present(look);
  else progress(look);
}

/** On a phone, what is new may be above or below the screen. */
function intoView(id) {
  byId(id).scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
}

function progress(look) {
  const answered = look.views.filter((view) => view.label !== undefined);
  byId("verdict").dataset.state = look.failure ? "empty" : "waiting";
  byId("label").textContent = look.base ? plain(look.base) : "\u00a0";
  for (const id of ["decision", "promise", "set", "unfamiliar", "tags"]) byId(id).hidden = true;
  byId("dial").hidden = false;
  byId("verdict").classList.remove("unfamiliar");
  const more = queue.length ? ` ${queue.length} more ${queue.length === 1 ? "is" : "are"} waiting.` : "";
  const now = !look.received ? "Sending …" : look.views.length ? `${answered.length} of ${look.views.length} ${look.others} have an answer.` : "Looking …";
  byId("sentence").textContent = look.failure ? "There is no verdict." : now + more;
  byId("status").textContent = look.failure ? "" : look.received ? "Looking …" : "Sending …";
  if (answered.length && look.base !== undefined && !look.failure) {
    dial.swing(answered.filter((view) => view.label === look.base).length / answered.length);
  } else dial.empty();
}

function conclude(look) {
  intoView("verdict");
  const { kind, label, confidence, prediction_set, unfamiliar_because } = look.verdict;
  const answer = kind === "label" && `${plain(label)}, ${percent(confidence)}.`;
  const told = [unfamiliar_because && `${UNFAMILIAR}: ${unfamiliar_because}.`, answer, decided(look.verdict) && `${byId("decision").textContent}.`, explained(look), prediction_set && `${named(prediction_set)}.`];
  byId("status").textContent = told.filter(Boolean).join(" ");
}

/** A prediction set in words; null among the labels stands for any other label. */
function named(labels) {
  return `Prediction set: ${labels.length ? LIST.format(labels.map((label) => (label === null ? "any other label" : plain(label)))) : "no label"}`;
}

/** What a verdict says in a few words. */
function short(verdict) {
  return plain(verdict.kind === "tags" ? verdict.yes.join(", ") || "No tag is sure" : verdict.label);
}

const decided = (verdict) => (verdict.held ? "review" : verdict.decision);

/** How the confidence came about, for people who have never heard of views. */
function explained({ verdict, others }) {
  const { kind, asked, agree, confidence, distribution, sentence } = verdict;
  if (verdict.unfamiliar_because) return "How often it is right about such pictures is not known.";
  if (kind === "tags" || asked.some(({ classifier }) => classifier !== asked[0].classifier)) return sentence;
  const answered = asked.slice(1).filter(({ label }) => label !== null).length;
  const second = distribution[1];
  const told = [
    verdict.base !== verdict.label && `The picture itself was called ${plain(verdict.base)}.`,
    answered && `${agree} of ${answered} ${others} got the same answer.`,
    `Such answers are right ${percent(confidence)} of the time.`,
    confidence < 0.5 && "So it is more likely wrong than right.",
    second?.probability >= 0.01 && `Next most likely: ${plain(second.label)}, ${percent(second.probability)}.`,
  ];
  return told.filter(Boolean).join(" ");
}

/** What accepting is worth, or why a person must look. */
function promise({ unfamiliar_because, ...verdict }) {
  const decision = decided(verdict);
  if (decision === "review") return unfamiliar_because || verdict.held ? "" : "It is not sure enough to be accepted.";
  if (decision !== "accept" || !profile?.claims.length) return "";
  const expected = verdict.basis === "estimate" ? "This is expected, not guaranteed." : "";
  return `${odds(profile)} ${expected}`.trim();
}

/** A chip for each tag that is there or open; those that are not there are counted. */
function showTags({ tags = [], no = [] }) {
  byId("tags").hidden = !tags.length;
  const open = tags.filter(({ decision }) => decision !== "no");
  const chips = open.map(({ name, probability, decision }) => [decision, `${plain(name)} ${percent(probability)}${decision === "review" ? "?" : ""}`]);
  if (no.length) chips.push(["no", `${no.length} not there`]);
  byId("tags").replaceChildren(...chips.map(([decision, text]) => {
    const item = document.createElement("li");
    item.className = "chip";
    item.dataset.decision = { yes: "accept", review: "review", no: "none" }[decision];
    item.textContent = text;
    return item;
  }));
}

function write(id, text) {
  byId(id).hidden = !text;
  byId(id).textContent = text;
}

function present(look) {
  const { verdict } = look;
  const decision = decided(verdict);
  byId("verdict").dataset.state = decision ?? "undecided";
  byId("label").textContent = short(verdict);
  showTags(verdict);
  byId("sentence").textContent = explained(look);
  byId("verdict").classList.toggle("unfamiliar", verdict.unfamiliar_because !== null);
  byId("unfamiliar").hidden = !verdict.unfamiliar_because;
  byId("unfamiliar-because").textContent = verdict.unfamiliar_because ?? "";
  write("set", verdict.prediction_set ? named(verdict.prediction_set) : "");
  const basis = verdict.basis === "estimate" ? " (estimate)" : "";
  const undecided = verdict.kind === "tags" ? "" : "No guarantee for bursts";
  write("decision", verdict.held ? `${DECISIONS.review}: ${verdict.held}` : decision ? DECISIONS[decision] + basis : undecided);
  byId("decision").dataset.decision = decision ?? "none";
  write("promise", promise(verdict));
  byId("dial").hidden = verdict.kind === "tags";
  if (verdict.kind === "label") dial.settle(verdict);
}

function complain(words = "") {
  write("alert", words);
}

// This visit --------------------------------------------------------------------------------------------------------

function remember(look) {
  visit.unshift(look);
  visit.length = Math.min(visit.length, REMEMBERED);
  byId("history").hidden = false;
  byId("history-list").replaceChildren(...visit.map(entry));
}

function entry(look) {
  const { verdict, failure } = look;
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.decision = failure ? "failed" : (decided(verdict) ?? "none");
  const image = document.createElement("img");
  image.src = look.picture;
  image.alt = "";
  image.addEventListener("error", () => (image.src = "/page/icon.svg"), { once: true }); // a preview that this browser cannot show
  image.classList.toggle("coarse", Math.max(look.width, look.height) < 96);
  const words = document.createElement("span");
  words.textContent = failure ? look.name : short(verdict);
  const share = document.createElement("strong");
  share.textContent = failure ? "No verdict" : verdict.kind === "tags" ? "" : percent(verdict.confidence);
  button.classList.toggle("unfamiliar", Boolean(verdict?.unfamiliar_because));
  const more = document.createElement("small");
  more.className = failure ? "" : "unseen";
  more.textContent = failure ?? (verdict.unfamiliar_because ? "Unfamiliar" : (DECISIONS[decided(verdict)] ?? (verdict.kind === "tags" ? "" : "Burst")));
  button.append(image, words, share, more);
  button.addEventListener("click", () => {
    front = look;
    show(look);
  });
  item.append(button);
  return item;
}

// Ways in -----------------------------------------------------------------------------------------------------------

const pictures = (list) => [...(list ?? [])].filter((file) => file instanceof File);

byId("choose").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", (event) => {
  enqueue(pictures(event.target.files).map((file) => [file]));
  event.target.value = "";
});
byId("camera").addEventListener("click", () => camera.open().catch(({ message }) => complain(message)));

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
    } catch ({ message }) {
      complain(message);
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
  complain(tab.id === "tab-look" ? front?.failure : "");
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

async function begin() {
  try {
    profile = await api.profile();
    dial.threshold(profile.threshold);
    if (profile.limits.heic && !byId("file").accept.includes("heic")) byId("file").accept += ",image/heic,image/heif,image/avif";
    await Promise.all([showTrust(profile), byId("samples").hidden && offerSamples()]);
  } catch (error) {
    if (error.status !== 401) return complain(error.message);
    await askToken(error);
    return begin();
  }
}

byId("view-close").addEventListener("click", () => byId("view-dialog").close());
begin();
