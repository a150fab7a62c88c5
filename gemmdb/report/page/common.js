"use strict";
// Texts of the data reach the page through textContent and nothing else.

const DATA = JSON.parse(document.getElementById("data").textContent);

/** An element with a class, and children: elements, or texts. */
function el(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  for (const child of children) made.append(child);
  return made;
}

/** A text for plotly, which reads some tags: none is left. */
function esc(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

const whole = (x) => Math.round(x).toLocaleString("en-US");
const times = (x) => (x === null ? "-" : `${x < 10 ? x.toFixed(2) : x < 100 ? x.toFixed(1) : whole(x)}x`);
const percent = (x) => (x > 0 && x < 0.0005 ? "<0.1%" : `${(100 * x).toFixed(x > 0 && x < 0.0995 ? 1 : 0)}%`);

/** Microseconds in a readable unit, with three digits. */
function micro(us) {
  if (us === null || us === undefined) return "-";
  const three = (x) => x.toFixed(x < 10 ? 2 : x < 100 ? 1 : 0);
  if (us >= 1e6) return `${three(us / 1e6)} s`;
  return us >= 1e3 ? `${three(us / 1e3)} ms` : `${three(us)} us`;
}

/** The geometric mean; NaN without values. */
function geomean(values) {
  let sum = 0;
  for (const value of values) sum += Math.log(value);
  return Math.exp(sum / values.length);
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** The items by a key, in the order in which keys appear. */
function groups(items, key) {
  const found = new Map();
  for (const item of items) {
    const name = key(item);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(item);
  }
  return found;
}

const distinct = (items, key) => [...new Set(items.map(key))].sort();
const pluralised = (n, noun) => `${whole(n)} ${noun}${n === 1 ? "" : "s"}`;

/** A row of figures: [figure, label] each. */
function tiles(figures) {
  const made = figures.map(([figure, label]) => el("div", "tile", el("div", "figure", figure), el("div", "label", label)));
  return el("section", "tiles", ...made);
}

/** A card with a heading, a note on how to read it, and content. */
function card(title, note, content, className = "") {
  const made = el("section", `card ${className}`, el("h2", "", title));
  if (note) made.append(el("p", "note", note));
  made.append(content);
  return made;
}

/** A table for few rows. `heads`: {title, right, name, bar}; `rows`: a list of cells for each row. On a phone each row
 *  becomes a block whose cells carry their column's title. */
function plainTable(id, heads) {
  const body = el("tbody");
  const style = (head) => [head.right && "right", head.name && "name", head.bar && "barcell"].filter(Boolean).join(" ");
  const table = el("table", "", el("thead", "", el("tr", "", ...heads.map((head) => el("th", style(head), head.title)))), body);
  table.id = id;
  const fill = (rows) => body.replaceChildren(...rows.map((cells) => el("tr", "row", ...cells.map((cell, at) => labelled(el("td", style(heads[at]), cell), heads[at].title)))));
  return { table, fill };
}

/** A cell with its column's title, for phones. */
function labelled(cell, title) {
  cell.dataset.label = title;
  return cell;
}

/** The kernels of a GEMM, each on one line where there is room. */
function kernelNames(text) {
  const names = text.split(" / ");
  return el("span", "mono kernel", ...names.flatMap((name, at) => [el("span", "", at < names.length - 1 ? `${name} /` : name), " "]).slice(0, -1));
}

/** A bar of a part of the largest. */
function bar(part) {
  const made = el("span", part > 0 ? "bar" : "");
  made.style.width = `${100 * part}%`;
  return made;
}

function facts(pairs) {
  const list = el("dl", "facts");
  for (const [name, value] of pairs) list.append(el("dt", "", name), el("dd", "", value));
  return list;
}

/** The head of the page, with the switch between light and dark. */
function heading(kind, title, lead) {
  const toggle = el("button", "toggle", "Light / dark");
  toggle.type = "button";
  toggle.id = "theme";
  toggle.addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
  const words = el("div", "words", el("div", "eyebrow", kind), el("h1", "", title), el("p", "lead", lead));
  document.getElementById("header").replaceChildren(words, toggle);
}

const root = document.documentElement;
const themed = [];

/** What serves a GEMM, in the order of gemmdb.outcome. */
const OUTCOMES = ["table", "near", "tuned", "ATen (measured best)", "ATen (predicted best)", "ATen (nothing known)", "ATen (refused)", "not handled"];
const [TABLE, NEAR, TUNED, BEST, PREDICTED, UNKNOWN, REFUSED] = OUTCOMES;
const byOutcome = (a, b) => OUTCOMES.indexOf(a[0]) - OUTCOMES.indexOf(b[0]);

/** Marks a time that was measured only on a busy machine. */
const timed = (row, text) => (row.busy ? `${text}*` : text);
const BUSY = "* Timed only while other programs kept the machine busy: it may be too long.";

function theme(name) {
  root.dataset.theme = name;
  for (const redraw of themed) redraw();
}

root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => theme(event.matches ? "dark" : "light"));

/** Filters above charts. `choices`: {id, label, of(item)} for each list of values; `search(item)`: the text to look in;
 *  `ranges`: {id, label, of(item)}, from and to. Calls `changed(items that fit)`. */
function filters(items, { choices, search, ranges = [], noun }, changed) {
  const bar = el("section", "filters card");
  const count = el("span", "count");
  count.id = "count";
  const tests = [];
  for (const { id, label, of } of choices) {
    const values = distinct(items, of);
    if (values.length < 2) continue;
    const select = el("select");
    select.id = `filter-${id}`;
    for (const value of ["", ...values]) {
      const option = el("option", "", value === "" ? "all" : value);
      option.value = value;
      select.append(option);
    }
    bar.append(el("label", "", label, select));
    tests.push({ control: select, fits: (item) => select.value === "" || of(item) === select.value });
  }
  for (const { id, label, of } of ranges) {
    for (const [side, fits] of [["from", (x, limit) => x >= limit], ["to", (x, limit) => x <= limit]]) {
      const input = el("input");
      Object.assign(input, { type: "number", min: 1, id: `filter-${id}-${side}`, placeholder: "any" });
      bar.append(el("label", "", `${label} ${side}`, input));
      tests.push({ control: input, fits: (item) => input.value === "" || fits(of(item), Number(input.value)) });
    }
  }
  const words = el("input");
  Object.assign(words, { type: "search", id: "filter-search", placeholder: "addmm 4096 bf16", autocomplete: "off" });
  bar.append(el("label", "grow", "Search: all of these words", words));
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = items.filter((item) => tests.every((one) => one.fits(item))
      && (wanted.length === 0 || wanted.every((word) => search(item).includes(word))));
    count.textContent = `${whole(found.length)} of ${pluralised(items.length, noun)}`;
    changed(found);
  };
  const reset = el("button", "", "Reset");
  Object.assign(reset, { type: "button", id: "filter-reset" });
  reset.addEventListener("click", () => {
    for (const { control } of [...tests, { control: words }]) control.value = "";
    apply();
  });
  bar.append(reset, count);
  let waiting = 0;
  bar.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(apply, 150);
  });
  return { bar, apply };
}
