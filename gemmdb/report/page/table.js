// The page of a table.

/** The verdicts as objects; `words` is what the search looks in. */
function verdicts() {
  const { columns, texts } = DATA;
  const names = Object.keys(columns);
  return (columns.m ?? []).map((_, at) => {
    const row = Object.fromEntries(names.map((name) => [name, columns[name][at]]));
    for (const name of ["family", "device", "pick", "kernel", "protocol"]) row[name] = texts[row[name]];
    row.ties = row.ties.map((place) => texts[place]);
    const batch = row.op === "bmm" ? ` batch=${row.batch}` : "";
    row.problem = `${row.op}${batch} m=${row.m} n=${row.n} k=${row.k} ${row.family}`;
    row.ofFloor = row.us / row.floor_us;
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
  const body = el("tbody");
  const heads = [["", "problem"], ["right", "of floor"], ["barcell", ""], ["right", "time"], ["right", "floor"], ["", "pick"]];
  const head = el("thead", "", el("tr", "", ...heads.map(([name, text]) => el("th", name, text))));
  const table = el("table", "", head, body);
  table.id = "slowest";
  let last = [];
  const show = (rows) => {
    last = rows;
    const worst = rows.filter((row) => row.floor_us >= Number(least.value)).sort((a, b) => b.ofFloor - a.ofFloor).slice(0, 12);
    body.replaceChildren(...worst.map((row) => {
      const bar = el("span", "bar");
      bar.style.width = `${(100 * row.ofFloor) / worst[0].ofFloor}%`;
      return el("tr", "", el("td", "name", row.name), el("td", "right", times(row.ofFloor)), el("td", "barcell", bar),
        el("td", "right", micro(row.us)), el("td", "right", micro(row.floor_us)), el("td", "mono kernel", row.kernel));
    }));
    if (!worst.length) body.append(el("tr", "", el("td", "soft", "No problem of these has such a floor.")));
  };
  least.addEventListener("change", () => show(last));
  const label = el("label", "small soft", "with a floor of at least ", least);
  return { content: el("div", "", label, el("div", "scroll", table)), show };
}

function problemGrid(several) {
  const columns = [
    { title: "problem", of: (row) => row.name, show: (row) => row.name, name: true },
    { title: "gain", of: (row) => row.gain, show: (row) => el("span", row.low > 1 ? "good" : "", times(row.gain)), right: true },
    { title: "95% interval", of: (row) => row.low, show: (row) => (row.backend === "aten" ? "-" : `${times(row.low)} to ${times(row.high)}`), right: true },
    { title: "time", of: (row) => row.us, show: (row) => micro(row.us), right: true },
    { title: "ATen", of: (row) => row.aten_us, show: (row) => micro(row.aten_us), right: true },
    { title: "of floor", of: (row) => row.ofFloor, show: (row) => times(row.ofFloor), right: true },
    { title: "ties", of: (row) => row.tied, show: (row) => whole(row.tied), right: true },
    { title: "pick", of: (row) => row.kernel, show: (row) => el("span", "mono kernel", row.kernel) },
  ];
  if (several) columns.push({ title: "device", of: (row) => row.device, show: (row) => row.device });
  const details = (row) => [
    ["problem", row.problem], ["pick", row.pick],
    ["ties", row.ties.length ? row.ties.join("; ") + (row.tied > row.ties.length + 1 ? `; and ${row.tied - row.ties.length - 1} more` : "") : "none"],
    ["spread", `${percent(row.spread)} over ${pluralised(row.runs, "run")}`], ["device", row.device], ["measured with", row.protocol],
  ];
  return grid("problems", columns, details, { column: 1, down: true });
}

function provenance() {
  const content = el("div");
  const pairs = [["digest", DATA.digest]];
  for (const one of DATA.devices) {
    const peaks = `${whole(one.gb_per_s)} GB/s, ${one.tflops.toPrecision(3)} TFLOP/s in 16 bits${one.estimated ? " (estimated)" : ""}`;
    pairs.push(["device", `${one.name}, ${one.arch}, ${pluralised(one.units, "unit")}, ${one.origin}; roof: ${peaks}`]);
  }
  content.append(facts(pairs));
  for (const run of DATA.runs) {
    const title = [run.started.slice(0, 10) || run.run, run.shapes && `shapes ${run.shapes}`, run.command].filter(Boolean).join(" \u00b7 ");
    content.append(el("details", "", el("summary", "", title), el("pre", "", run.text)));
  }
  if (DATA.more_runs) content.append(el("p", "soft", `${pluralised(DATA.more_runs, "more run")} are in the table.`));
  return content;
}

/** The four figures about the rows that are shown. */
function tableTiles(rows) {
  const beaten = rows.filter((row) => row.low > 1);
  const gain = (some) => (some.length ? times(geomean(some.map((row) => row.gain))) : "-");
  return tiles([
    [whole(rows.length), rows.length === 1 ? "problem shown" : "problems shown"],
    [gain(rows), "gain over ATen, geometric mean of all"],
    [rows.length ? percent(beaten.length / rows.length) : "-", "of them beat ATen beyond their spread"],
    [gain(beaten), "gain over ATen where it is beaten"],
    [rows.length ? times(median(rows.map((row) => row.ofFloor))) : "-", "the time of the floor, median"],
    [rows.length ? percent(median(rows.map((row) => row.spread))) : "-", "median spread of a pick"],
  ]);
}

function tablePage(main) {
  const rows = verdicts();
  const several = DATA.devices.length > 1;
  const names = DATA.devices.map((one) => (one.origin === "modelled" ? `${one.name} (modelled, nothing was measured)` : one.name)).join(", ");
  const part = DATA.partial ? ` This page holds ${whole(DATA.verdicts)} verdicts, a random part of them.` : "";
  heading("gemmdb table", DATA.title,
    `${names || "no device"}: ${pluralised(DATA.problems, "problem")}, ${pluralised(DATA.measurements, "row")}.${part}`);
  const opColour = colours(distinct(rows, (row) => row.op));
  const charts = [
    ["Gain over ATen by M", "One point is one problem: how many times faster than ATen its pick is. Lines are geometric means. A pick of ATen is at 1.",
      chart("gain", (some) => gainByM(some, opColour)), ""],
    ["Roofline", "How fast the pick computes for each byte that it must move. Lines are the device's limits; the distance to them is what no kernel of the table reached.",
      chart("roofline", (some) => roofline(some, opColour)), ""],
    ["Which backend wins where", "Each cell holds the problems whose M and N are nearest to these powers of two. Colour: the backend that wins most of them. Number: their mean gain.",
      chart("winners", winners, "tall"), "wide"],
    ["Spread of the picks", "Half the 95% interval of a pick's time, relative. Small times vary more from process to process.",
      chart("spreads", (some) => spreads(some, opColour)), ""],
    ["Ties", "How many configs are as good as the best one, within their spreads. Of these gemmdb picks ATen, then the cheapest to compile.",
      chart("ties", tieBars), ""],
  ];
  const figures = el("div");
  const worst = slowest();
  const list = problemGrid(several);
  const { bar, apply } = filters(rows, {
    noun: "problem", search: (row) => row.words, ranges: [{ id: "m", label: "M", of: (row) => row.m }],
    choices: [
      { id: "op", label: "op", of: (row) => row.op }, { id: "dtype", label: "dtypes", of: (row) => row.dtype },
      { id: "backend", label: "backend", of: (row) => row.backend }, { id: "device", label: "device", of: (row) => row.device },
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
    card("Slowest relative to the floor", "The floor is the time for moving the bytes once or doing the operations, whichever is longer. These picks leave most to gain.", worst.content, "wide"),
    card("Problems", "A click on a heading sorts. A click on a row shows the whole problem, its config and its ties.", list.content, "wide"),
    card("Provenance", "What the runs that measured the table recorded of themselves.", provenance(), "wide long"),
  );
  main.append(figures, bar, cards);
  apply();
}
