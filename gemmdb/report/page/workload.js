// The page of a workload.

const RUNGS = ["exact", "near", "epilogue", "sku", "model", "miss"];
const RUNG_COLOURS = { exact: 2, near: 0, epilogue: 6, sku: 3, model: 4, miss: 5 };
const rungColour = (rung) => colour(RUNG_COLOURS[rung] ?? 7);
const byRung = (a, b) => RUNGS.indexOf(a[0]) - RUNGS.indexOf(b[0]);
const MOST_TILES = 400;

function products() {
  return DATA.products.map((one) => {
    const ranges = Object.entries(one.ranges).map(([name, [low, high]]) => `${name} ${low}..${high ?? ""}`).join(", ");
    const name = ranges ? `${one.name} (${ranges})` : one.name;
    const row = { ...one, name, share: DATA.total_us ? one.total_us / DATA.total_us : 0, saved_us: one.aten_us - one.total_us };
    row.words = `${name} ${one.problem} ${one.config} ${one.rung} ${one.device}`.toLowerCase();
    return row;
  });
}

function aboutProduct(row) {
  const what = row.rung === "miss" ? "no table answers: ATen" : `${row.kernel} by rung ${row.rung}, gain ${times(row.gain)}`;
  const build = row.may_save_us ? [`a build may save ${micro(row.may_save_us)}`] : [];
  return hover([row.name, what, `${pluralised(row.calls, "call")} of ${micro(row.us)}: ${percent(row.share)} of the time`, ...build]);
}

/** Area: time as it is served. Outer boxes: rungs. Colour: the gain. */
function treemap(rows) {
  const largest = [...rows].sort((a, b) => b.total_us - a.total_us);
  const shown = largest.slice(0, MOST_TILES);
  const ids = [];
  const labels = [];
  const parents = [];
  const values = [];
  const shades = [];
  const texts = [];
  const hovers = [];
  const add = (id, label, parent, value, shade, text, words) => {
    ids.push(id); labels.push(esc(label)); parents.push(parent); values.push(value); shades.push(shade); texts.push(text); hovers.push(words);
  };
  const all = [...groups(shown, (row) => row.rung)].sort(byRung);
  for (const [rung, some] of all) {
    const total = some.reduce((sum, row) => sum + row.total_us, 0);
    const aten = some.reduce((sum, row) => sum + row.aten_us, 0);
    const words = [rung === "miss" ? "no table answers" : `rung ${rung}`, `${pluralised(some.length, "product")}, ${micro(total)}`, `gain ${times(aten / total)}`];
    add(`rung ${rung}`, rung === "miss" ? "miss" : `rung ${rung}`, "", total, 0, "", hover(words));
    some.forEach((row, at) => {
      const gain = row.aten ? (row.rung === "miss" ? "miss" : "ATen") : times(row.gain);
      add(`${rung} ${at}`, row.name, `rung ${rung}`, row.total_us, Math.log2(row.gain), `${gain}, ${percent(row.share)}`, aboutProduct(row));
    });
  }
  const dark = root.dataset.theme === "dark";
  const scale = dark
    ? [[0, "#8c3a30"], [0.5, "#3a4453"], [0.75, "#21704d"], [1, "#2fae77"]]
    : [[0, "#e8a59d"], [0.5, "#e3e7ed"], [0.75, "#8fd0ae"], [1, "#3da873"]];
  const most = Math.max(1, Math.min(3, extent(rows.map((row) => Math.abs(Math.log2(row.gain))))[1]));
  const ticks = [-2, -1, 0, 1, 2, 3].filter((power) => Math.abs(power) <= most);
  return {
    data: [{
      type: "treemap", ids, labels, parents, values, text: texts, hovertext: hovers, hoverinfo: "text", textinfo: "label+text", branchvalues: "total",
      marker: {
        colors: shades, colorscale: scale, cmin: -most, cmax: most, line: { width: 1, color: variable("--card") }, showscale: !narrow(),
        colorbar: { title: { text: "gain" }, tickvals: ticks, ticktext: ticks.map((power) => `${2 ** power}x`), thickness: 11, outlinewidth: 0, len: 0.8 },
      },
      textfont: { color: variable("--ink") }, tiling: { pad: 2 }, pathbar: { visible: false }, root: { color: "rgba(0,0,0,0)" },
    }],
    layout: { margin: { l: 0, r: 0, t: 0, b: 0 } },
  };
}

/** The time with ATen and as it is served, by rung. */
function beforeAfter(rows) {
  const bars = ["as served", "ATen alone"];
  const data = [...groups(rows, (row) => row.rung)].sort(byRung).map(([rung, some]) => {
    const served = some.reduce((sum, row) => sum + row.total_us, 0);
    const aten = some.reduce((sum, row) => sum + row.aten_us, 0);
    return {
      type: "bar", orientation: "h", name: esc(rung), y: bars, x: [served / 1e3, aten / 1e3], marker: { color: rungColour(rung) }, textposition: "none",
      text: [served, aten].map((us, at) => hover([`${rung}, ${bars[at]}: ${micro(us)}`, `${pluralised(some.length, "product")}`])), hoverinfo: "text",
    };
  });
  return { data, layout: { barmode: "stack", bargap: 0.45, xaxis: axis("milliseconds, all calls"), yaxis: axis("", { type: "category" }) } };
}

/** What a build of the misses may save, the most first. */
function buildList() {
  const body = el("tbody");
  const heads = [["", "product that no table answers"], ["right", "may save"], ["barcell", ""], ["right", "of the time"], ["right", "calls"], ["right", "one call"]];
  const table = el("table", "", el("thead", "", el("tr", "", ...heads.map(([name, text]) => el("th", name, text)))), body);
  table.id = "misses";
  const words = el("p", "note");
  const show = (rows) => {
    const missed = rows.filter((row) => row.rung === "miss").sort((a, b) => (b.may_save_us ?? 0) - (a.may_save_us ?? 0) || b.total_us - a.total_us);
    const known = missed.filter((row) => row.may_save_us !== null);
    const sum = known.reduce((total, row) => total + row.may_save_us, 0);
    words.textContent = missed.length === 0 ? "The tables answer all of these products."
      : known.length === 0 ? "What a build may save is not known for this device. To build them: gemmdb build --arch native --shapes WORKLOAD."
        : `A build of ${pluralised(missed.length, "product")} may save about ${micro(sum)} of ${micro(DATA.total_us)}: gemmdb build --arch native --shapes WORKLOAD.`;
    table.hidden = missed.length === 0;
    body.replaceChildren(...missed.slice(0, 15).map((row) => {
      const bar = el("span", "bar");
      bar.style.width = `${(100 * (row.may_save_us ?? 0)) / (missed[0].may_save_us || 1)}%`;
      return el("tr", "", el("td", "name", row.name), el("td", "right", row.may_save_us === null ? "-" : micro(row.may_save_us)), el("td", "barcell", bar),
        el("td", "right", percent(row.share)), el("td", "right", whole(row.calls)), el("td", "right", `~${micro(row.us)}`));
    }));
  };
  return { content: el("div", "", words, el("div", "scroll", table)), show };
}

function productGrid() {
  const columns = [
    { title: "product", of: (row) => row.name, show: (row) => row.name, name: true },
    { title: "of the time", of: (row) => row.share, show: (row) => percent(row.share), right: true },
    { title: "gain", of: (row) => row.gain, show: (row) => el("span", row.gain > 1 ? "good" : "", row.aten ? "-" : times(row.gain)), right: true },
    { title: "rung", of: (row) => RUNGS.indexOf(row.rung), show: (row) => el("span", row.rung === "miss" ? "bad" : "", row.rung) },
    { title: "calls", of: (row) => row.calls, show: (row) => whole(row.calls), right: true },
    { title: "one call", of: (row) => row.us, show: (row) => `${row.rung === "miss" ? "~" : ""}${micro(row.us)}`, right: true },
    { title: "saved", of: (row) => row.saved_us, show: (row) => (row.saved_us > 0 ? micro(row.saved_us) : "-"), right: true },
    { title: "kernel", of: (row) => row.kernel, show: (row) => el("span", "mono kernel", row.kernel) },
  ];
  const details = (row) => [
    ["problem", row.problem], ["config", row.config], ["why ATen", row.reason || "-"], ["device", row.device], ["table", row.table || "-"],
    ["in graphs", whole(row.count)],
  ];
  return grid("products", columns, details, { column: 1, down: true });
}

function workloadPage(main) {
  const rows = products();
  const devices = distinct(rows, (row) => row.device);
  heading("gemmdb workload", DATA.title, `${devices.join(", ") || "no device"}: ${pluralised(rows.length, "product")}. Times are what the tables expect of one call, times the recorded calls.`);
  const missed = rows.filter((row) => row.rung === "miss");
  const kernels = rows.filter((row) => !row.aten);
  const share = (some) => percent(some.reduce((sum, row) => sum + row.share, 0));
  main.append(tiles([
    [times(DATA.gain), "gain over ATen, weighted by time"],
    [micro(DATA.total_us), `in products, as served; ${micro(DATA.aten_us)} with ATen`],
    [share(kernels), `of the time runs a kernel of the tables (${pluralised(kernels.length, "product")})`],
    [share(missed), `of the time is missed (${pluralised(missed.length, "product")})`],
    [DATA.may_save_us ? `~${micro(DATA.may_save_us)}` : "-", "a build of the misses may save"],
  ]));
  const note = rows.length > MOST_TILES ? ` The ${MOST_TILES} largest are drawn.` : "";
  const charts = [
    ["Time by product", `Area: time as it is served. Boxes: the rungs that answer. Green: faster than ATen. A click on a box opens it.${note}`, chart("treemap", treemap, "tall"), "wide"],
    ["Before and after", "The time of all products with ATen alone, and as they are served, by the rung that answers.", chart("bars", beforeAfter), ""],
  ];
  const misses = buildList();
  const list = productGrid();
  const { bar, apply } = filters(rows, {
    noun: "product", search: (row) => row.words,
    choices: [
      { id: "op", label: "op", of: (row) => row.op }, { id: "dtype", label: "dtypes", of: (row) => row.dtype },
      { id: "rung", label: "rung", of: (row) => row.rung }, { id: "backend", label: "backend", of: (row) => row.backend },
      { id: "device", label: "device", of: (row) => row.device },
    ],
  }, (found) => {
    for (const [, , one] of charts) one.show(found);
    misses.show(found);
    list.show(found);
  });
  const cards = el("div", "cards", ...charts.map(([title, words, one, wide]) => card(title, words, one.place, wide)));
  cards.append(card("What a build would bring", "", misses.content, ""));
  cards.append(card("Products", "A click on a heading sorts. A click on a row shows the whole problem, its config and why ATen runs.", list.content, "wide"));
  if (DATA.uncovered.length) {
    const lines = DATA.uncovered.map((one) => [one.name, `${pluralised(one.count, "occurrence")}, ${pluralised(one.calls, "call")}`]);
    cards.append(card("Not steered", "Products that gemmdb does not steer. Their sizes are not recorded, so no share counts them.", facts(lines), "wide"));
  }
  main.append(bar, cards);
  apply();
}
