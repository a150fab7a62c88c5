// The page of a workload.

const RUNGS = ["exact", "near", "epilogue", "sku", "model", "forced", "live", "miss"];
const RUNG_COLOURS = { exact: 2, near: 0, epilogue: 6, sku: 3, model: 4, live: 1, miss: 5 };
const rungColour = (rung) => colour(RUNG_COLOURS[rung] ?? 7);
const byRung = (a, b) => RUNGS.indexOf(a[0]) - RUNGS.indexOf(b[0]);
const MOST_TILES = 400;

function products() {
  return DATA.products.map((one) => {
    const ranges = Object.entries(one.ranges).map(([name, [low, high]]) => `${name} ${low}..${high ?? ""}`).join(", ");
    const name = ranges ? `${one.name} (${ranges})` : one.name;
    const row = { ...one, name, share: DATA.total_us ? one.total_us / DATA.total_us : 0, saved_us: one.aten_us - one.total_us };
    row.words = `${name} ${one.problem} ${one.config} ${one.rung} ${one.device} ${(one.origins || []).join(" ")}`.toLowerCase();
    return row;
  });
}

function aboutProduct(row) {
  const what = row.rung === "miss" ? row.alone || "no table answers: ATen" : `${row.kernel} by rung ${row.rung}, gain ${times(row.gain)}`;
  const build = row.may_save_us ? [`a build may save ${micro(row.may_save_us)}`] : [];
  return hover([row.name, what, `${pluralised(row.calls, "call")} of ${micro(row.us)}: ${percent(row.share)} of the time`, ...build]);
}

const SHADES = {
  light: { miss: "#f2d8a2", aten: "#e4e8ee", slower: "#e8a59d", faster: ["#d3ecdf", "#3da873"] },
  dark: { miss: "#69532a", aten: "#3a4453", slower: "#8c3a30", faster: ["#2f5547", "#239a68"] },
};

/** The colour of a GEMM: the greener, the larger its gain, up to 4x. */
function shade(row) {
  const of = SHADES[root.dataset.theme];
  if (row.rung === "miss") return of.miss;
  if (row.aten) return of.aten;
  if (row.gain < 1) return of.slower;
  const part = Math.min(Math.log2(row.gain) / 2, 1);
  const channel = (text, at) => parseInt(text.slice(1 + 2 * at, 3 + 2 * at), 16);
  const mixed = [0, 1, 2].map((at) => Math.round(channel(of.faster[0], at) * (1 - part) + channel(of.faster[1], at) * part));
  return `rgb(${mixed.join(",")})`;
}

/** A GEMM's name for a box: the op, its sizes, and the rest, each on a line. */
function lines(name) {
  const [op, ...rest] = name.split(" ");
  const sizes = rest.findIndex((word) => /^\d+x\d+x\d+$/.test(word)) + 1;
  return [op, rest.slice(0, sizes).join(" "), rest.slice(sizes).join(" ")].filter(Boolean).map(esc).join("<br>");
}

/** Area: time as it is served. Outer boxes: rungs. */
function treemap(rows) {
  const shown = [...rows].sort((a, b) => b.total_us - a.total_us).slice(0, MOST_TILES);
  const boxes = [];
  const sum = (some, name) => some.reduce((total, row) => total + row[name], 0);
  boxes.push({ id: "all", label: "\u00a0", parent: "", value: sum(shown, "total_us"), colour: variable("--card"), text: "", words: `${pluralised(shown.length, "GEMM")}` });
  for (const [rung, some] of [...groups(shown, (row) => row.rung)].sort(byRung)) {
    const total = sum(some, "total_us");
    const label = rung === "miss" ? "no table answers" : `rung ${rung}`;
    const words = hover([label, `${pluralised(some.length, "GEMM")}, ${micro(total)}`, `gain ${times(sum(some, "aten_us") / total)}`]);
    boxes.push({ id: `rung ${rung}`, label: esc(label), parent: "all", value: total, colour: variable("--faint"), text: "", words });
    some.forEach((row, at) => {
      const gain = row.rung === "miss" ? "miss" : row.aten ? "ATen" : times(row.gain);
      boxes.push({
        id: `${rung} ${at}`, label: lines(row.name), parent: `rung ${rung}`, value: row.total_us, colour: shade(row), text: `${gain}, ${percent(row.share)}`,
        words: aboutProduct(row),
      });
    });
  }
  const of = (name) => boxes.map((box) => box[name]);
  return {
    data: [{
      type: "treemap", ids: of("id"), labels: of("label"), parents: of("parent"), values: of("value"), text: of("text"), hovertext: of("words"),
      hoverinfo: "text", textinfo: "label+text", branchvalues: "total", textfont: { color: variable("--ink") }, tiling: { pad: 2 },
      marker: { colors: of("colour"), line: { width: 1, color: variable("--card") }, pad: { t: 22, l: 2, r: 2, b: 2 } }, pathbar: { visible: false },
    }],
    layout: { margin: { l: 0, r: 0, t: 0, b: 0 }, uniformtext: { minsize: 9, mode: "hide" } },
  };
}

/** The time with ATen and as it is served, by rung. */
function beforeAfter(rows) {
  const bars = ["as served", "ATen alone"];
  const [unit, us_per] = extent(rows.map((row) => row.aten_us))[1] > 1e5 ? ["seconds", 1e6] : ["milliseconds", 1e3];
  const data = [...groups(rows, (row) => row.rung)].sort(byRung).map(([rung, some]) => {
    const served = some.reduce((sum, row) => sum + row.total_us, 0);
    const aten = some.reduce((sum, row) => sum + row.aten_us, 0);
    return {
      type: "bar", orientation: "h", name: esc(rung), y: bars, x: [served / us_per, aten / us_per], marker: { color: rungColour(rung) }, textposition: "none",
      text: [served, aten].map((us, at) => hover([`${rung}, ${bars[at]}: ${micro(us)}`, `${pluralised(some.length, "GEMM")}`])), hoverinfo: "text",
    };
  });
  return { data, layout: { barmode: "stack", bargap: 0.45, xaxis: axis(`${unit}, all calls`), yaxis: axis("", { type: "category" }) } };
}

/** What a build of the misses may save, the most first. */
function buildList() {
  const body = el("tbody");
  const heads = [["", "GEMM that no table answers"], ["right", "may save"], ["barcell", ""], ["right", "share"], ["right", "calls"], ["right", "one call"]];
  const table = el("table", "", el("thead", "", el("tr", "", ...heads.map(([name, text]) => el("th", name, text)))), body);
  table.id = "misses";
  const words = el("p", "note");
  words.id = "missed";
  const show = (rows) => {
    const alone = rows.filter((row) => row.alone);
    const missed = rows.filter((row) => row.rung === "miss" && !row.alone).sort((a, b) => (b.may_save_us ?? 0) - (a.may_save_us ?? 0) || b.total_us - a.total_us);
    const known = missed.filter((row) => row.may_save_us !== null);
    const sum = known.reduce((total, row) => total + row.may_save_us, 0);
    const left = alone.length ? `${pluralised(alone.length, "GEMM")} that no build changes: ${distinct(alone, (row) => row.alone).join("; ")}.` : "";
    const build = missed.length === 0 ? (left ? "" : "The tables answer all of these GEMMs.")
      : known.length === 0 ? "What a build may save is not known for this device. To build them: gemmdb build --arch native --shapes WORKLOAD."
        : `A build of ${pluralised(missed.length, "GEMM")} may save about ${micro(sum)} of ${micro(DATA.total_us)}: gemmdb build --arch native --shapes WORKLOAD.`;
    words.textContent = [build, left].filter(Boolean).join(" ");
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
    { title: "GEMM", of: (row) => row.name, show: (row) => row.name, name: true },
    { title: "share", of: (row) => row.share, show: (row) => percent(row.share), right: true },
    { title: "gain", of: (row) => row.gain, show: (row) => el("span", row.gain > 1 ? "good" : "", row.aten ? "-" : times(row.gain)), right: true },
    { title: "rung", of: (row) => RUNGS.indexOf(row.rung), show: (row) => el("span", `nowrap ${row.rung === "miss" ? "bad" : ""}`, row.rung) },
    { title: "calls", of: (row) => row.calls, show: (row) => whole(row.calls), right: true },
    { title: "one call", of: (row) => row.us, show: (row) => `${row.rung === "miss" ? "~" : ""}${micro(row.us)}`, right: true },
    { title: "saved", of: (row) => row.saved_us, show: (row) => (row.saved_us > 0 ? micro(row.saved_us) : "-"), right: true },
    { title: "kernel", of: (row) => row.kernel, show: (row) => el("span", "mono kernel", row.kernel) },
  ];
  const details = (row) => [
    ["problem", row.problem], ["config", row.config], ["why ATen", row.reason || "-"], ["where", (row.origins || []).join("; ") || "-"], ["device", row.device], ["table", row.table || "-"],
    ["in graphs", whole(row.count)],
  ];
  return grid("products", columns, details, { column: 1, down: true });
}

function workloadPage(main) {
  const rows = products();
  const devices = distinct(rows, (row) => row.device);
  const smaller = DATA.smaller ? ` ${pluralised(DATA.smaller, "GEMM")} of less time are left out; the sums hold them.` : "";
  heading("gemmdb workload", DATA.title, `${devices.join(", ") || "no device"}: ${pluralised(rows.length, "GEMM")}. Times are what the tables expect of one call, times the recorded calls.${smaller}`);
  const missed = rows.filter((row) => row.rung === "miss");
  const kernels = rows.filter((row) => !row.aten);
  const share = (some) => percent(some.reduce((sum, row) => sum + row.share, 0));
  main.append(tiles([
    [times(DATA.gain), "gain over ATen, weighted by time"],
    [micro(DATA.total_us), `in GEMMs, as served; ${micro(DATA.aten_us)} with ATen`],
    [share(kernels), `of the time runs a kernel of the tables (${pluralised(kernels.length, "GEMM")})`],
    [share(missed), `of the time is missed (${pluralised(missed.length, "GEMM")})`],
    [DATA.may_save_us ? `~${micro(DATA.may_save_us)}` : "-", "a build of the misses may save"],
  ]));
  const note = rows.length > MOST_TILES ? ` The ${MOST_TILES} largest are drawn.` : "";
  const charts = [
    ["Time by GEMM", `Area: time as it is served. Boxes: the rungs that answer. Green: faster than ATen, the stronger the more. Grey: ATen. Amber: no table answers. A click on a box opens it.${note}`, chart("treemap", treemap, "tall"), "wide"],
    ["Before and after", "The time of all GEMMs with ATen alone, and as they are served, by the rung that answers.", chart("bars", beforeAfter, "low"), "wide"],
  ];
  const misses = buildList();
  const list = productGrid();
  const { bar, apply } = filters(rows, {
    noun: "GEMM", search: (row) => row.words,
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
  cards.append(card("What a build would bring", "", misses.content, "wide"));
  cards.append(card("GEMMs", "A click on a heading sorts. A click on a row shows the whole problem, its config and why ATen runs.", list.content, "wide"));
  if (DATA.uncovered.length) {
    const lines = DATA.uncovered.map((one) => [one.name, `${pluralised(one.count, "occurrence")}, ${pluralised(one.calls, "call")}`]);
    cards.append(card("Not handled", "GEMMs that gemmdb does not handle. Their sizes are not recorded, so no share counts them.", facts(lines), "wide"));
  }
  main.append(bar, cards);
  apply();
}
