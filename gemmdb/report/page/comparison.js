// The page of a comparison.

const NOISE = 1.01;
const MOST_NAMED = 7;

/** Two bars of the program's time; each GEMM with a known time is a part of them. */
function programBars(rows) {
  const bars = ["with gemmdb", "default"];
  const known = rows.filter((row) => row.us !== null && row.aten_us !== null);
  const shade = (row, at) => (row.aten ? colour(7) : colour(at % 7));
  const data = known.map((row, at) => ({
    type: "bar", orientation: "h", y: bars, x: [row.us * row.count, row.aten_us * row.count],
    marker: { color: shade(row, at), line: { width: 1, color: variable("--card") } }, textposition: "none", hoverinfo: "text",
    text: [[row.us, row.kernel], [row.aten_us, "ATen"]].map(([us, kernel]) => hover([row.name, `${whole(row.count)} times ${micro(us)}: ${kernel}`])),
  }));
  const rest = (total, of) => Math.max(total - known.reduce((sum, row) => sum + of(row) * row.count, 0), 0);
  const others = [rest(DATA.gemmdb_us, (row) => row.us), rest(DATA.default_us, (row) => row.aten_us)];
  data.push({
    type: "bar", orientation: "h", y: bars, x: others, marker: { color: variable("--line") }, textposition: "none",
    text: others.map((us) => hover(["everything else", micro(us)])), hoverinfo: "text",
  });
  const named = known.map((row, at) => ({ name: row.name, colour: shade(row, at), mark: "square", aten: row.aten })).filter((one) => !one.aten);
  const legend = named.slice(0, MOST_NAMED);
  if (known.some((row) => row.aten)) legend.push({ name: "GEMMs that ATen runs on both sides", colour: colour(7), mark: "square" });
  legend.push({ name: "everything else", colour: variable("--line"), mark: "square" });
  return { data, legend, layout: { barmode: "stack", bargap: 0.4, xaxis: axis("microseconds per call"), yaxis: axis("", { type: "category" }) } };
}

/** Two bars for each GEMM. */
function productBars(rows) {
  const known = rows.filter((row) => row.us !== null && row.aten_us !== null).slice(0, 15).reverse();
  if (!known.length) return null;
  const cut = narrow() ? 24 : 44;
  const labels = known.map((row, at) => `${esc(row.name.length > cut ? `${row.name.slice(0, cut - 1)}\u2026` : row.name)}${"\u200b".repeat(at)}`);
  const series = [["with gemmdb", (row) => row.us, colour(0)], ["ATen", (row) => row.aten_us, colour(7)]];
  const data = series.map(([name, of, shade]) => ({
    type: "bar", orientation: "h", y: labels, x: known.map((row) => of(row) * row.count), marker: { color: shade }, textposition: "none",
    text: known.map((row) => hover([row.name, `${name}: ${whole(row.count)} times ${micro(of(row))}`, `gain ${times(row.aten_us / row.us)}`])), hoverinfo: "text",
  }));
  return {
    data, layout: { barmode: "group", xaxis: axis("microseconds per call"), yaxis: axis("", { type: "category", tickfont: { size: 11 } }) },
    legend: series.map(([name, , shade]) => ({ name, colour: shade, mark: "square" })),
  };
}

function comparedGrid() {
  const gain = (row) => (row.us && row.aten_us ? row.aten_us / row.us : null);
  const columns = [
    { title: "GEMM", of: (row) => row.name, show: (row) => row.name, name: true },
    { title: "times", of: (row) => row.count, show: (row) => whole(row.count), right: true },
    { title: "before", of: (row) => row.aten_us, show: (row) => micro(row.aten_us), right: true },
    { title: "after", of: (row) => row.us, show: (row) => micro(row.us), right: true },
    { title: "gain", of: gain, show: (row) => (row.aten ? "same kernel" : times(gain(row))), right: true },
    { title: "lost", of: (row) => row.lost_us, show: (row) => el("span", row.lost_us ? "bad" : "", row.lost_us ? micro(row.lost_us) : "-"), right: true },
    { title: "outcome", of: (row) => OUTCOMES.indexOf(row.outcome), show: (row) => el("span", "nowrap", row.outcome || "-") },
    { title: "kernel", of: (row) => row.kernel, show: (row) => kernelNames(row.kernel) },
  ];
  const details = (row) => [["problem", row.problem], ["config", row.config], ["note", row.note || "-"]];
  return grid("compared", columns, details, { column: 2, down: true });
}

const LARGE = 1.1;

/** What a difference means where ATen runs every GEMM on both sides. */
function sameKernels() {
  const ratio = Math.max(DATA.speedup, 1 / DATA.speedup);
  const why = ratio > LARGE ? ` gemmdb does not explain a difference of ${times(ratio)}: look for another cause, such as a busy machine, and compare again.` : " A difference of the times is noise.";
  return `ATen runs every GEMM on both sides.${why}`;
}

/** The largest difference of the outputs, as a figure with its label. */
function outputs(alike) {
  if (DATA.error === 0) return ["identical", "outputs of both sides"];
  const both = alike ? ": ATen runs on both sides, so default mode differs from itself" : "";
  return [DATA.error === null ? "not finite" : DATA.error.toExponential(1), `largest difference of the outputs, relative${both}`];
}

function comparisonPage(main) {
  const rows = DATA.products.map((row) => ({ ...row, words: `${row.name} ${row.problem} ${row.config}`.toLowerCase() }));
  const alike = rows.every((row) => row.aten);
  const said = {
    "cannot tell": "The machine was busy, or the times of default mode were unsteady: these times do not tell.",
    "no difference": "The interval of the gain contains 1, or nearly does: that is no difference.",
  };
  const verdict = said[DATA.verdict] ? said[DATA.verdict] : alike ? sameKernels()
    : DATA.speedup > NOISE ? "The program is faster with gemmdb." : DATA.speedup < 1 / NOISE ? "The program is slower with gemmdb." : "The two differ by no more than 1%, which is noise.";
  heading("gemmdb compare", DATA.title, verdict);
  const other = rows.filter((row) => !row.aten);
  main.append(tiles([
    [micro(DATA.default_us), "one call in Inductor's default mode"],
    [micro(DATA.gemmdb_us), "one call with gemmdb"],
    [times(DATA.speedup), DATA.interval ? `speedup, between ${times(DATA.interval[0])} and ${times(DATA.interval[1])}` : "speedup"],
    [`${other.length} of ${rows.length}`, "GEMMs run another kernel than ATen's"],
    outputs(alike),
  ]));
  const charts = [
    ["The program's time", "Measured: the length of each bar. Its parts are what the tables expect of each GEMM.", chart("program", programBars, "low"), "wide"],
    ["GEMM by GEMM", "What the tables expect of a GEMM with ATen and with its kernel, all its occurrences together. The 15 largest.", chart("parts", productBars, "tall", "No table expects a time of any of these GEMMs."), "wide"],
  ];
  const list = comparedGrid();
  const { bar: controls, apply } = filters(rows, {
    noun: "GEMM", search: (row) => row.words,
    choices: [{ id: "outcome", label: "outcome", of: (row) => row.outcome || "-" }, { id: "kernel", label: "kernel", of: (row) => row.config.split(" ")[0] }],
  }, (found) => {
    charts[1][2].show(found);
    list.show(found);
  });
  const cards = el("div", "cards", ...charts.map(([title, note, one, wide]) => card(title, note, one.place, wide)));
  const lost = DATA.together_us ? ` All kernels together lose ${micro(DATA.together_us)}.` : "";
  cards.append(card("GEMMs", `Lost: what the program gains when this GEMM goes back to ATen.${lost}`, list.content, "wide long"));
  main.append(controls, cards);
  charts[0][2].show(rows.length ? rows : [{ us: null, aten_us: null }]);
  apply();
}
