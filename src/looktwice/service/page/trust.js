// The page behind the second tab: what verdicts rest on.

import { reliability } from "./api.js";
import { percent } from "./dial.js";

const byId = (id) => document.getElementById(id);
const COLUMNS = { accuracy: "acc.", ece: "ECE", auroc: "AUROC", brier: "Brier" };

function make(name, text = "") {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function cell(figure) {
  const made = make("td", figure?.value == null ? "–" : figure.value.toFixed(3));
  if (figure?.low != null) made.append(" ", make("small", `${figure.low.toFixed(3)}–${figure.high.toFixed(3)}`));
  return made;
}

function row(result) {
  const made = make("tr");
  const head = make("th", result.calibrator);
  head.scope = "row";
  made.append(head, make("td", `${+result.queries.toFixed(1)}`), ...Object.keys(COLUMNS).map((key) => cell(result.figures[key])));
  return made;
}

const TAG_COLUMNS = { pictures: "true", precision: "precision", recall: "recall", missed: "missed", review: "review", ece: "ECE", yes_from: "yes from", no_below: "no below" };

function tagRow(figures) {
  const made = make("tr");
  const head = make("th", figures.tag);
  head.scope = "row";
  const shown = (key) => (figures[key] === null ? "–" : key === "pictures" ? String(figures[key]) : figures[key].toFixed(2));
  made.append(head, ...Object.keys(TAG_COLUMNS).map((key) => make("td", shown(key))));
  return made;
}

function heading(text) {
  const made = make("th", text);
  made.scope = "col";
  return made;
}

/** The promise about accepted answers in words of everyday life. */
export function odds({ max_error, claims }) {
  if (typeof max_error !== "number") return `Of the answers accepted like this, ${claims.join(", and ")}.`;
  const inverse = 1 / max_error;
  const share = Math.abs(inverse - Math.round(inverse)) < 0.01 * inverse ? `1 in ${Math.round(inverse)} is` : `${+(100 * max_error).toFixed(1)} in 100 are`;
  return `Of the answers accepted like this, at most ${share} wrong.`;
}

function plainly(profile) {
  const { threshold, claims, pictures, tags } = profile;
  if (tags || !claims.length || threshold === null) return "Check its answers yourself: none is accepted without you";
  if (!pictures) return "Nothing is known yet about how often it is right";
  return odds(profile).replace(" like this", "").slice(0, -1);
}

function plainlyMore({ basis, pictures, unfamiliar, threshold, tags }) {
  return [
    basis === "estimate" && "This is expected, not guaranteed.",
    pictures && `It learned how far to trust the classifier from ${pictures.toLocaleString("en")} pictures to which people gave the right answer.`,
    threshold !== null && !tags && `Answers from ${percent(threshold)} on are accepted; the others are for you to check.`,
    unfamiliar === "review" && "A picture unlike those is never accepted.",
  ].filter(Boolean).join(" ");
}

export function guarantee({ threshold, claims, basis, labels_missing, pictures, tags }) {
  if (tags && !claims.length) return "A tag gets a yes from 90 % on and a no up to 10 %; nothing is guaranteed";
  if (tags) return `${basis === "guarantee" ? "Guaranteed" : "Expected, not guaranteed"} for each tag: ${claims.join(", and ")}${tags.tags.some(({ yes_from, no_below }) => yes_from === null || no_below === null) ? `; not for every tag yet: ${wanting(labels_missing)}` : ""}`;
  if (!pictures) return "Nothing is guaranteed yet";
  if (!claims.length) return "Nothing is guaranteed";
  const what = claims.join(", and ");
  if (threshold !== null && basis === "estimate") return `Accept from ${percent(threshold)} on: it is expected, not guaranteed, that ${what}`;
  if (threshold !== null) return `Accept from ${percent(threshold)} on: ${what}`;
  return `It cannot be guaranteed that ${what}: ${wanting(labels_missing)}`;
}

function wanting(labels) {
  return labels === null ? "more labels alone would not help" : `about ${labels.toLocaleString("en")} more labelled pictures are needed`;
}

function familiar({ unfamiliar, false_alarms }) {
  if (unfamiliar === null) return " This profile cannot tell whether a picture is like them: fit it again for that.";
  const becomes = { accept: "judged as any other", review: "never accepted", refuse: "refused" }[unfamiliar];
  return ` A picture that is not like them is ${becomes}; ${+(100 * false_alarms).toFixed(1)} % of those that are like them are taken for such.`;
}

function basis({ pictures, panel, classifier, level, coverage, ...rest }) {
  const views = panel.length ? `${panel.length} ${panel.length === 1 ? "view" : "views"} a picture` : "one query a picture";
  if (!pictures) {
    return `The weights of ${views} were learned on another classifier. No labelled picture of ${classifier} is known, so every answer is for a person to review.`;
  }
  return (
    `Learned from ${pictures.toLocaleString("en")} labelled pictures, with ${views}, about the classifier ${classifier}. ` +
    (rest.claims.length ? `The guarantee holds with ${+(100 * level).toFixed(1)} % certainty; the rest is for a person to review.` : "The rest is for a person to review.") +
    (coverage === null ? "" : ` Prediction sets hold the truth ${+(100 * coverage).toFixed(1)} % of the time.`) +
    familiar(rest)
  );
}

function showDrift(drift) {
  byId("drift").hidden = !drift?.seen;
  if (!drift?.seen) return;
  byId("drift").className = drift.alarm ? "drifted" : "";
  byId("drift").textContent =
    `${drift.seen.toLocaleString("en")} ${drift.seen === 1 ? "picture was" : "pictures were"} looked at since the service began. ` +
    (drift.alarm
      ? `Since ${new Date(1000 * drift.since).toLocaleString("en")} they no longer look like those that the profile was made from: ${drift.held ? "every answer is held for a person to review" : "answers are accepted all the same, as was asked for"}. Label some of them and add them with looktwice fit --add.`
      : "As a whole, they look like those that the profile was made from.");
}

export async function showTrust(profile) {
  byId("plainly").textContent = plainly(profile);
  byId("plainly-more").textContent = plainlyMore(profile);
  byId("guarantee").textContent = guarantee(profile);
  byId("basis").textContent = basis(profile);
  for (const card of [byId("figure"), byId("results").closest(".card")]) card.hidden = !profile.pictures;
  showDrift(profile.drift);
  const body = make("tbody");
  body.append(...(profile.tags ? profile.tags.tags.map(tagRow) : profile.results.map(row)));
  const head = make("thead");
  const first = make("tr");
  const titles = profile.tags ? ["tag", ...Object.values(TAG_COLUMNS)] : ["calibrator", "queries", ...Object.values(COLUMNS)];
  first.append(...titles.map(heading));
  head.append(first);
  byId("results").replaceChildren(head, body);
  byId("results").classList.toggle("tags", Boolean(profile.tags));
  byId("figures-note").hidden = Boolean(profile.tags);
  byId("panel").closest(".card").hidden = !profile.panel.length;
  byId("panel").replaceChildren(
    ...profile.panel.map(({ view, caption }) => {
      const item = make("li", caption);
      item.append(" ", make("code", view));
      return item;
    }),
  );
  const drawing = new DOMParser().parseFromString(await reliability(), "image/svg+xml").documentElement;
  byId("figure").replaceChildren(document.adoptNode(drawing));
}
