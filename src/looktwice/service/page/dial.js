// A dial from 0 to 100 %: the confidence, its interval, and the threshold above which answers are accepted.

const SVG = "http://www.w3.org/2000/svg";
const SWEEP = 240;
const [CX, CY, R] = [100, 100, 80];
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** A share in words: never 100 %, which no evidence gives, and with a decimal where it matters. */
export function percent(share) {
  if (share > 0.9995) return "> 99.9 %";
  return `${(100 * share).toFixed(share >= 0.985 ? 1 : 0)} %`;
}

function point(share, radius) {
  const angle = ((90 + (360 - SWEEP) / 2 + SWEEP * share) * Math.PI) / 180;
  return [CX + radius * Math.cos(angle), CY + radius * Math.sin(angle)].map((value) => value.toFixed(2));
}

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

export class Dial {
  #arcs = {};
  #tick;
  #number;
  #from;
  #shown = 0;
  #frame = 0;

  constructor(root) {
    const svg = element("svg", { viewBox: "0 0 200 168", "aria-hidden": "true" }, root);
    const arc = `M ${point(0, R).join(" ")} A ${R} ${R} 0 1 1 ${point(1, R).join(" ")}`;
    for (const name of ["track", "band", "value"]) {
      this.#arcs[name] = element("path", { d: arc, pathLength: 100, class: name }, svg);
    }
    this.#tick = element("path", { class: "tick" }, svg);
    this.#number = document.createElement("p");
    this.#number.className = "number";
    this.#from = document.createElement("p");
    this.#from.className = "from";
    root.append(this.#number, this.#from);
    this.empty();
  }

  threshold(share) {
    this.#from.textContent = share === null ? "" : `accepted if at least ${percent(share)}`;
    this.#tick.setAttribute("d", share === null ? "" : `M ${point(share, R - 11).join(" ")} L ${point(share, R + 11).join(" ")}`);
  }

  empty() {
    this.#draw("value", 0, 0);
    this.#draw("band", 0, 0);
    this.#say(0, "–");
  }

  /** Where the votes stand while answers are still coming. */
  swing(share) {
    this.#draw("value", 0, share);
    this.#draw("band", 0, 0);
    this.#say(share, "…");
  }

  settle({ confidence, low, high }) {
    this.#draw("value", 0, confidence);
    this.#draw("band", low, high);
    this.#count(confidence);
  }

  #draw(name, from, to) {
    this.#arcs[name].style.strokeDasharray = `0 ${100 * from} ${100 * (to - from)} 200`;
  }

  #say(share, text) {
    cancelAnimationFrame(this.#frame);
    this.#shown = share;
    this.#number.textContent = text;
  }

  #count(target) {
    cancelAnimationFrame(this.#frame);
    const [from, began] = [this.#shown, performance.now()];
    const step = (now) => {
      const part = calm.matches ? 1 : Math.min(1, (now - began) / 700);
      this.#shown = from + (target - from) * (1 - (1 - part) ** 3);
      this.#number.textContent = percent(part === 1 ? target : this.#shown);
      if (part < 1) this.#frame = requestAnimationFrame(step);
    };
    step(began);
  }
}
