// Charts: plotly with the page's colours, drawn again when the theme or the width changes.

const PALETTE = {
  light: ["#2563c9", "#d9730d", "#17804f", "#8e44ad", "#b8860b", "#c0392b", "#16808a", "#6b7280"],
  dark: ["#7fb2ff", "#ffab5e", "#58c48f", "#cf9bea", "#e3c04d", "#ff8a7a", "#5fd0da", "#a7b0bd"],
};
const BACKENDS = { aten: 7, triton: 0, cutlass: 1, cpp: 2 };

const colour = (place) => PALETTE[root.dataset.theme][place % 8];
const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const narrow = () => window.innerWidth < 560;
const backendColour = (name) => colour(BACKENDS[name] ?? 5);

/** Each of the values with a colour that does not change with the filters. */
function colours(values) {
  const places = new Map(values.map((value, place) => [value, place]));
  return (value) => colour(places.get(value));
}

function axis(title, more = {}) {
  return {
    title: { text: title, font: { size: 12.5 } }, gridcolor: variable("--faint"), zerolinecolor: variable("--line"),
    linecolor: variable("--line"), tickfont: { size: 11.5 }, automargin: true, ...more,
  };
}

const DECADES = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7];
const plain = (x) => (x >= 1e9 ? `${x / 1e9}G` : x >= 1e6 ? `${x / 1e6}M` : x >= 1e4 ? `${x / 1e3}k` : String(x));

const binary = (x) => (x >= 2 ** 30 ? `${x / 2 ** 30}G` : x >= 2 ** 20 ? `${x / 2 ** 20}M` : x >= 8192 ? `${x / 1024}k` : String(x));

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

/** A chart. `draw(items)` returns {data, layout}, or null where there is nothing to draw; then `empty` is shown. */
function chart(id, draw, className = "", empty = "Nothing fits the filters.") {
  const place = el("div", `chart ${className}`);
  place.id = id;
  place.dataset.empty = empty;
  let last = [];
  const show = (items) => {
    last = items;
    const figure = items.length ? draw(items) : null;
    place.classList.toggle("empty", figure === null);
    if (figure === null) {
      Plotly.purge(place);
      return;
    }
    const base = {
      margin: { l: 8, r: narrow() ? 8 : 14, t: 8, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: variable("--ink"), size: 12 },
      hoverlabel: {
        bgcolor: variable("--card"), bordercolor: variable("--line"), font: { color: variable("--ink"), size: 12 }, align: "left",
      },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 }, itemsizing: "constant" },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", hovermode: "closest", autosize: true,
    };
    const layout = { ...base, ...figure.layout };
    Plotly.react(place, figure.data, layout, {
      responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover", showTips: false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], doubleClick: "reset", showEditInChartStudio: false,
    });
  };
  themed.push(() => show(last));
  return { place, show };
}

/** Entries of a legend in full colours for groups of points, which are drawn thin. */
const legend = (names, of, more = {}) => names.map((name) => ({
  type: "scatter", mode: "markers", name: esc(name), legendgroup: esc(name), x: [null], y: [null], hoverinfo: "skip",
  marker: { size: 9, color: of(name), ...more },
}));

/** A group of points. */
const points = (name, x, y, text, colour, opacity) => ({
  type: "scatter", mode: "markers", name: esc(name), legendgroup: esc(name), showlegend: false, x, y, text, hoverinfo: "text",
  marker: { color: colour, size: narrow() ? 4 : 5, opacity },
});

/** The lines of a hover, escaped. */
const hover = (lines) => lines.map(esc).join("<br>");

window.addEventListener("beforeprint", () => {
  theme("light");
  for (const place of document.querySelectorAll(".js-plotly-plot")) {
    Plotly.relayout(place, { width: 650, height: place.classList.contains("low") ? 210 : 350 });
  }
});
window.addEventListener("afterprint", () => {
  for (const place of document.querySelectorAll(".js-plotly-plot")) {
    Plotly.relayout(place, { width: null, height: null, autosize: true });
  }
});
