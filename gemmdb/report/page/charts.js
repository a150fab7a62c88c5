// Charts: plotly with the page's colours, drawn again when the theme or the width changes.

const PALETTE = {
  light: ["#2563c9", "#d9730d", "#17804f", "#8e44ad", "#b8860b", "#c0392b", "#16808a", "#6b7280"],
  dark: ["#7fb2ff", "#ffab5e", "#58c48f", "#cf9bea", "#e3c04d", "#ff8a7a", "#5fd0da", "#a7b0bd"],
};
const SOURCES = { ATen: 7, "ATen, another kernel": 6, triton: 0, cutlass: 1, cpp: 2, cublaslt: 3 };

const colour = (place) => PALETTE[root.dataset.theme][place % 8];
let paper = false;
const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const narrow = () => !paper && window.innerWidth < 560;
const touch = matchMedia("(pointer: coarse)");
const sourceColour = (name) => colour(SOURCES[name] ?? 5);

/** Where a config comes from. Only `aten:default` is what runs without gemmdb. */
function source(config) {
  const backend = config.split(":")[0];
  return config === "aten:default" ? "ATen" : backend === "aten" ? "ATen, another kernel" : backend;
}

/** Each of the values with a colour that does not change with the filters. */
function colours(values) {
  const places = new Map(values.map((value, place) => [value, place]));
  return (value) => colour(places.get(value));
}

function axis(title, more = {}) {
  return {
    title: { text: title, font: { size: 12.5 }, standoff: 10 }, gridcolor: variable("--faint"), zerolinecolor: variable("--line"),
    linecolor: variable("--line"), tickfont: { size: 11.5 }, automargin: true, ...more,
  };
}

const DECADES = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7];
const plain = (x) => (x >= 1e9 ? `${x / 1e9}G` : x >= 1e6 ? `${x / 1e6}M` : x >= 1e4 ? `${x / 1e3}k` : String(x));

const binary = (x) => (x >= 2 ** 30 ? `${x / 2 ** 30}G` : x >= 2 ** 20 ? `${x / 2 ** 20}M` : x >= (narrow() ? 1024 : 8192) ? `${x / 1024}k` : String(x));

/** An axis in powers of ten. */
function decades(title, more = {}) {
  return axis(title, { type: "log", tickvals: DECADES, ticktext: DECADES.map(plain), ...more });
}

/** An axis in powers of two, for sizes. */
function octaves(title, values, more = {}) {
  const low = Math.floor(Math.log2(Math.min(...extent(values))));
  const high = Math.ceil(Math.log2(Math.max(...extent(values))));
  const step = Math.max(1, Math.ceil((high - low) / (narrow() ? 6 : 11)));
  const ticks = [];
  for (let power = low; power <= high; power += step) ticks.push(2 ** power);
  return axis(title, { type: "log", tickvals: ticks, ticktext: ticks.map(binary), ...more });
}

/** [smallest, largest]. Math.min(...values) fails for many values. */
function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [1, 2];
}

/** A chart under its legend. `draw(items)` returns {data, layout, legend}, or null where there is nothing to draw; then
 *  `empty` is shown. `legend`: {name, colour, mark} each. It is part of the page, so it never covers the chart. */
function chart(id, draw, className = "", empty = "Nothing fits the filters.") {
  const plot = el("div", `chart ${className}`);
  const key = el("ul", "legend");
  plot.id = id;
  plot.dataset.empty = empty;
  let last = [];
  const show = (items) => {
    last = items;
    const figure = items.length ? draw(items) : null;
    plot.classList.toggle("empty", figure === null);
    key.replaceChildren(...(figure?.legend ?? []).map(({ name, colour, mark = "dot" }) => {
      const swatch = el("span", `swatch ${mark}`);
      swatch.style.color = colour;
      return el("li", "", swatch, name);
    }));
    if (figure === null) {
      Plotly.purge(plot);
      return;
    }
    const base = {
      margin: { l: 8, r: narrow() ? 8 : 14, t: 8, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: variable("--ink"), size: 12 },
      hoverlabel: {
        bgcolor: variable("--card"), bordercolor: variable("--line"), font: { color: variable("--ink"), size: 12 }, align: "left",
      },
      showlegend: false, dragmode: touch.matches ? false : "zoom", hovermode: "closest", autosize: true,
    };
    // Without a toolbar: on a touch screen, which knows no hover, it would cover the chart for good.
    Plotly.react(plot, figure.data, { ...base, ...figure.layout }, { responsive: true, displayModeBar: false, showTips: false, doubleClick: "reset" });
  };
  themed.push(() => show(last));
  return { place: el("div", "", key, plot), show };
}

/** A group of points. */
const points = (x, y, text, colour) => ({
  type: "scatter", mode: "markers", x, y, text, hoverinfo: "text", marker: { color: colour, size: narrow() ? 5 : 6, opacity: 0.7 },
});

const MOST_POINTS = 400;

/** Few rows as points by op; many as cells that are darker the more rows they hold, since points would hide each other.
 *  `x(row)`, `y(row)`: positive numbers on logarithmic axes; `about(row)`: the hover of a point. */
function cloud(rows, x, y, about, opColour) {
  if (rows.length <= MOST_POINTS) {
    const ops = [...groups(rows, (row) => row.op)].sort();
    return {
      data: ops.map(([op, some]) => points(some.map(x), some.map(y), some.map(about), opColour(op))),
      legend: ops.map(([op]) => ({ name: op, colour: opColour(op) })),
    };
  }
  const [across, up] = [edges(rows.map(x), narrow() ? 24 : 44), edges(rows.map(y), narrow() ? 24 : 32)];
  const counts = Array.from({ length: up.length - 1 }, () => new Array(across.length - 1).fill(0));
  for (const row of rows) counts[cellOf(up, y(row))][cellOf(across, x(row))] += 1;
  const most = Math.max(...counts.flat());
  const ground = variable("--cloud");
  return {
    data: [{
      type: "heatmap", x: across, y: up, z: counts.map((line) => line.map((n) => n && Math.log1p(n) / Math.log1p(most))), zmin: 0, zmax: 1,
      hovertext: counts.map((line) => line.map((n) => (n ? pluralised(n, "result") : ""))), hoverinfo: "text", showscale: false,
      colorscale: [[0, `rgba(${ground},0)`], [0.05, `rgba(${ground},0.18)`], [1, `rgba(${ground},1)`]],
    }],
    legend: [
      { name: "1 result", colour: `rgba(${ground},0.25)`, mark: "square" }, { name: pluralised(most, "result"), colour: `rgb(${ground})`, mark: "square" },
    ],
  };
}

/** The edges of `count` cells of equal width on a logarithmic axis. */
function edges(values, count) {
  const [low, high] = extent(values).map(Math.log10);
  const width = Math.max(high - low, 0.1) / (count - 1);
  return Array.from({ length: count + 1 }, (_, at) => 10 ** (low + (at - 0.5) * width));
}

const cellOf = (bounds, value) => {
  const width = Math.log10(bounds[1] / bounds[0]);
  return Math.min(Math.max(Math.floor(Math.log10(value / bounds[0]) / width), 0), bounds.length - 2);
};

/** The lines of a hover, escaped. */
const hover = (lines) => lines.map(esc).join("<br>");

