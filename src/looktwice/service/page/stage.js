// The picture in the middle, its views around it; each lights up with its answer.

const SVG = "http://www.w3.org/2000/svg";
const RADIUS = 37; // per cent of the stage
const byId = (id) => document.getElementById(id);

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function place(index, count) {
  const angle = (2 * Math.PI * index) / count - Math.PI / 2;
  return [Math.cos(angle), Math.sin(angle)];
}

/** A label as people write it. */
export function plain(label) {
  return label.replaceAll("_", " ");
}

/** The answer about the picture itself; tags stand apart, which come with a semicolon between. */
function named({ base, verdict }) {
  if (base === null) return "no label";
  return plain(verdict?.kind === "tags" ? base.split(/;(?=(?:[^"]*"[^"]*")*[^"]*$)/).join(", ") || "no tag" : base);
}

/** What a copy is and what the classifier says of it. */
function told({ caption, label }) {
  return label === undefined ? caption : `${caption}: ${label === null ? "no label" : plain(label)}`;
}

export class Stage {
  #root = byId("stage");
  #fan = byId("fan");
  #rays = byId("rays");
  #items = [];
  #lines = [];
  #look = null;

  constructor() {
    byId("picture").addEventListener("error", ({ target }) => (target.hidden = true)); // such as HEIC, before it is sent
    for (let index = 0; index < 8; index++) {
      const [x, y] = place(index, 8);
      byId("ghost").append(shape("rect", { x: 74 * x - 17.5, y: 74 * y - 17.5, width: 35, height: 35, rx: 7 }));
    }
  }

  show(look) {
    this.#look = look;
    this.#root.dataset.state = "shown";
    byId("invite").hidden = true;
    byId("subject").hidden = false;
    const picture = byId("picture");
    picture.src = look.picture;
    picture.hidden = false;
    picture.alt = look.name;
    picture.classList.toggle("coarse", Math.max(look.width, look.height) < 96);
    this.#spread(look.views);
    this.answers(look);
  }

  #spread(views) {
    const count = views.length;
    this.#root.style.setProperty("--thumb", `${Math.min(17.5, (0.8 * 2 * Math.PI * RADIUS) / Math.max(count, 1))}cqi`);
    this.#items = views.map((_, index) => this.#item(index, count));
    this.#fan.replaceChildren(...this.#items.map(({ root }) => root));
    this.#lines = views.map((_, index) => this.#line(index, count));
    this.#rays.replaceChildren(...this.#lines);
  }

  #item(index, count) {
    const root = document.createElement("li");
    const [x, y] = place(index, count);
    root.style.setProperty("--x", (RADIUS * x).toFixed(2));
    root.style.setProperty("--y", (RADIUS * y).toFixed(2));
    root.style.setProperty("--delay", `${35 * index}ms`);
    const button = document.createElement("button");
    button.type = "button";
    const image = document.createElement("img");
    image.alt = "";
    const said = document.createElement("span");
    said.className = "said";
    button.append(image, said);
    button.addEventListener("click", () => this.#enlarge(this.#look.views[index]));
    root.append(button);
    return { root, button, image, said };
  }

  /** A copy in large, with its answer. */
  #enlarge(view) {
    byId("view-picture").src = view.picture ?? "";
    byId("view-picture").hidden = !view.picture;
    byId("view-title").textContent = this.#look.others === "other photos" ? view.caption : `Changed copy: ${view.caption}`;
    byId("view-answer").textContent = view.label === undefined ? "The classifier was not asked about this one." : view.label === null ? "The classifier gave no label." : `The classifier says ${plain(view.label)}.`;
    byId("view-dialog").showModal();
  }

  #line(index, count) {
    const [x, y] = place(index, count);
    return shape("line", { x1: 30 * x, y1: 30 * y, x2: 58 * x, y2: 58 * y });
  }

  draw(look, index) {
    const item = this.#items[index];
    if (!item || !look.views[index].picture) return;
    item.image.src = look.views[index].picture;
    item.image.classList.toggle("coarse", Math.max(look.width, look.height) < 96);
  }

  answers(look) {
    const against = look.verdict?.label ?? look.base;
    const base = byId("base");
    base.textContent = look.base === undefined ? (look.failure ? look.name : "") : named(look);
    base.dataset.state = look.base === against ? "agree" : "differ";
    look.views.forEach((view, index) => this.#light(look, view, index, against));
  }

  #light(look, view, index, against) {
    const item = this.#items[index];
    this.draw(look, index);
    const known = view.label !== undefined && against !== undefined;
    const state = !known ? (look.verdict ? "unasked" : "waiting") : view.label === against ? "agree" : "differ";
    item.root.dataset.state = state;
    this.#lines[index].dataset.state = state;
    item.said.textContent = known && state === "differ" ? plain(view.label ?? "no label") : "";
    item.button.title = told(view);
    item.button.setAttribute("aria-label", item.button.title);
  }
}
