// The page of a table.

/** The verdicts as objects; `words` is what the search looks in. The interval follows from the gain and the spread. */
function verdicts() {
  const { columns, encoded, texts, roofs: ways } = DATA;
  const names = Object.keys(columns);
  return (columns.m ?? []).map((_, at) => {
    const row = Object.fromEntries(names.map((name) => [name, columns[name][at]]));
    for (const name of encoded) row[name] = texts[row[name]];
    row.ties = row.ties.map((place) => texts[place]);
    [row.computes, row.peak] = ways[row.roof];
    const sizes = `${row.m}x${row.n}x${row.k}${row.rest}`;
    row.name = row.op === "bmm" ? `bmm ${row.batch} of ${sizes}` : `${row.op} ${sizes}`;
    row.problem = `${row.op}${row.op === "bmm" ? ` batch=${row.batch}` : ""} m=${row.m} n=${row.n} k=${row.k} ${row.family}`;
    row.source = source(row.pick);
    row.low = row.source === "ATen" ? 1 : row.gain / (1 + row.spread);
    row.high = row.source === "ATen" ? 1 : row.gain / Math.max(1 - row.spread, 0.01);
    row.aten_us = row.us * row.gain;
    row.ofRoof = row.us / row.floor_us;
    row.words = `${row.name} ${row.problem} ${row.pick} ${row.device} ${row.l2}`.toLowerCase();
    return row;
  });
}

/** The picks furthest from the roofline, as rows with bars. */
function slowest() {
  const least = el("select");
  least.id = "least-floor";
  for (const us of [0, 2, 5, 20, 100]) {
    const option = el("option", "", us ? `${us} us` : "any time");
    option.value = us;
    option.selected = us === 5;
    least.append(option);
  }
  const { table, fill } = plainTable("slowest", [
    { title: "GEMM", name: true }, { title: "of roofline", right: true }, { title: "", bar: true }, { title: "time", right: true },
    { title: "roofline", right: true }, { title: "pick" },
  ]);
  const nothing = el("p", "note", "None of these GEMMs has such a time.");
  let last = [];
  const show = (rows) => {
    last = rows;
    const worst = rows.filter((row) => row.floor_us >= Number(least.value)).sort((a, b) => b.ofRoof - a.ofRoof).slice(0, 12);
    fill(worst.map((row) => [row.name, times(row.ofRoof), bar(row.ofRoof / worst[0].ofRoof), timed(row, micro(row.us)), micro(row.floor_us), kernelNames(row.kernel)]));
    table.hidden = worst.length === 0;
    nothing.hidden = worst.length > 0;
  };
  least.addEventListener("change", () => show(last));
  const label = el("label", "small soft control", "with a roofline time of at least ", least);
  return { content: el("div", "", label, nothing, el("div", "scroll", table)), show };
}

function problemGrid(several) {
  const columns = [
    { title: "GEMM", of: (row) => row.name, show: (row) => row.name, name: true },
    { title: "gain", of: (row) => row.gain, show: (row) => el("span", row.low > 1 ? "good" : "", times(row.gain)), right: true },
    { title: "95% interval", of: (row) => row.low, show: (row) => el("span", "nowrap", row.source === "ATen" ? "ATen itself" : `${times(row.low)} to ${times(row.high)}`), right: true },
    { title: "time", of: (row) => row.us, show: (row) => timed(row, micro(row.us)), right: true },
    { title: "ATen", of: (row) => row.aten_us, show: (row) => micro(row.aten_us), right: true },
    { title: "of roofline", of: (row) => row.ofRoof, show: (row) => times(row.ofRoof), right: true },
    { title: "ties", of: (row) => row.tied, show: (row) => whole(row.tied), right: true },
    { title: "pick", of: (row) => row.kernel, show: (row) => kernelNames(row.kernel) },
  ];
  if (several) columns.push({ title: "device", of: (row) => row.device, show: (row) => row.device });
  const details = (row) => [
    ["problem", row.problem], ["pick", row.pick],
    ["ties", row.ties.length ? row.ties.join("; ") + (row.tied > row.ties.length + 1 ? `; and ${row.tied - row.ties.length - 1} more` : "") : "none"],
    ["spread", `${percent(row.spread)} over ${pluralised(row.runs, "run")}`], ["device", row.device], ["measured with", row.protocol],
    ...(row.busy ? [["busy", BUSY.slice(2)]] : []),
  ];
  return grid("problems", columns, details, { column: 1, down: true });
}

/** The devices; then the runs, alike ones together; then what each run recorded of itself, closed. */
function provenance() {
  const pairs = [["digest", DATA.digest]];
  for (const one of DATA.devices) {
    const peaks = `${whole(one.gb_per_s)} GB/s, ${one.tflops.toPrecision(3)} TFLOP/s in 16 bits${one.estimated ? " (estimated)" : ""}`;
    pairs.push(["device", `${one.name}, ${one.arch}, ${pluralised(one.units, "unit")}, ${one.origin}; limits: ${peaks}`]);
  }
  const { table, fill } = plainTable("runs", [{ title: "day" }, { title: "runs", right: true }, { title: "measured" }, { title: "effort" }, { title: "versions" }]);
  const alike = [...groups(DATA.runs, (run) => `${run.day}\n${run.versions}`).values()];
  const listed = (runs, of) => distinct(runs, of).filter(Boolean).join(", ") || "not recorded";
  fill(alike.map((runs) => [el("span", "nowrap", runs[0].day || "unknown"), whole(runs.length), listed(runs, (run) => run.shapes), listed(runs, (run) => run.effort), runs[0].versions || "not recorded"]));
  const content = el("div", "", facts(pairs), el("div", "scroll", table));
  const told = DATA.runs.filter((run) => run.text);
  if (told.length) {
    const texts = told.map((run) => el("pre", "", run.text));
    content.append(el("details", "", el("summary", "", `What ${pluralised(told.length, "run")} recorded, in full`), ...texts));
  }
  if (DATA.more_runs) content.append(el("p", "soft", `${pluralised(DATA.more_runs, "more run")} in the table.`));
  return content;
}

/** The figures about the rows that are shown. */
function tableTiles(rows) {
  const beaten = rows.filter((row) => row.low > 1);
  const gain = (some) => (some.length ? times(geomean(some.map((row) => row.gain))) : "-");
  return tiles([
    [whole(rows.length), rows.length === 1 ? "result shown" : "results shown"],
    [gain(rows), "gain over ATen, geometric mean of all"],
    [rows.length ? percent(beaten.length / rows.length) : "-", "of them are faster than ATen beyond the noise"],
    [gain(beaten), "gain over ATen of those"],
    [rows.length ? times(median(rows.map((row) => row.ofRoof))) : "-", "the time of the roofline, median"],
    [rows.length ? percent(median(rows.map((row) => row.spread))) : "-", "spread of a pick, median"],
  ]);
}

/** What the table holds, in one line. The results of a GEMM with a cold and with a hot cache count as two. */
function tableLead(rows) {
  const names = DATA.devices.map((one) => (one.origin === "modelled" ? `${one.name} (modelled, nothing was measured)` : one.name)).join(", ");
  const decided = DATA.partial ? DATA.problems : new Set(rows.map((row) => `${row.device} ${row.problem}`)).size;
  const rest = DATA.problems - decided;
  const parts = [pluralised(decided, "GEMM")];
  if (rows.length > decided) parts.push(`${whole(rows.length)} results (cold and hot cache)`);
  parts.push(pluralised(DATA.measurements, "timing"));
  const more = DATA.partial ? ` This page shows ${whole(rows.length)} results, a random part of the table.`
    : rest > 0 ? ` ${pluralised(rest, "GEMM")} more ${rest === 1 ? "has" : "have"} timings, but no result.` : "";
  const busy = DATA.busy ? ` ${pluralised(DATA.busy, "result")} rest${DATA.busy === 1 ? "s" : ""} on a busy machine's times, marked *.` : "";
  return `${names || "no device"}: ${parts.join(", ")}.${more}${busy}`;
}

function tablePage(main) {
  const rows = verdicts();
  const several = DATA.devices.length > 1;
  heading("gemmdb table", DATA.title, tableLead(rows));
  const opColour = colours(distinct(rows, (row) => row.op));
  const charts = [
    ["Gain over ATen by M", "How many times faster than ATen a pick is. Lines: geometric means by op. Darker cells hold more results. Where ATen itself is the pick, the gain is 1x.",
      chart("gain", (some) => gainByM(some, opColour)), ""],
    ["Roofline", "How fast the pick computes for each byte that it must move. Lines: the device's limits.",
      chart("roofline", (some) => roofline(some, opColour)), ""],
    ["Which source wins where", "Each cell holds the results whose M and N are nearest to these sizes. Colour: the source that wins most of them. Number: its mean gain over ATen where it wins.",
      chart("winners", winners, "tall"), "wide"],
    ["Spread of the picks", "Half the 95% interval of a pick's time, relative. Short times vary more from process to process.",
      chart("spreads", (some) => spreads(some, opColour)), ""],
    ["Ties", "How many configs are as good as the best one, within their spreads. Of these gemmdb picks ATen, then the cheapest to compile.",
      chart("ties", tieBars), ""],
  ];
  const figures = el("div");
  const worst = slowest();
  const list = problemGrid(several);
  const { bar: controls, apply } = filters(rows, {
    noun: "result", search: (row) => row.words, ranges: [{ id: "m", label: "M", of: (row) => row.m }],
    choices: [
      { id: "op", label: "op", of: (row) => row.op }, { id: "dtype", label: "dtypes", of: (row) => row.dtype },
      { id: "source", label: "source", of: (row) => row.source }, { id: "device", label: "device", of: (row) => row.device },
      { id: "l2", label: "cache", of: (row) => row.l2 },
    ],
  }, (found) => {
    figures.replaceChildren(tableTiles(found));
    for (const [, , one] of charts) one.show(found);
    worst.show(found);
    list.show(found);
  });
  const cards = el("div", "cards", ...charts.map(([title, note, one, wide]) => card(title, note, one.place, wide)));
  cards.append(
    card("Slowest relative to the roofline", "The roofline is the time for moving the bytes once or doing the operations, whichever is longer. These picks leave most to gain.", worst.content, "wide"),
    card("GEMMs", "A heading sorts. A row opens the whole problem, its config and its ties.", list.content, "wide long"),
    card("Provenance", "The runs that measured the table.", provenance(), "wide long"),
  );
  main.append(figures, controls, cards);
  apply();
}
