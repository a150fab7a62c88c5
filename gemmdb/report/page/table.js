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

const between = (row) => (row.backend === "aten" ? "1.00x" : `${times(row.gain)} (${times(row.low)} to ${times(row.high)})`);

function about(row) {
  return hover([row.name, `${row.kernel}: ${micro(row.us)}, ATen ${micro(row.aten_us)}`, `gain ${between(row)}`]);
}

/** Points per op, with the geometric mean per octave of M as a line. */
function gainByM(rows, opColour) {
  const data = [];
  const lines = [];
  for (const [op, some] of [...groups(rows, (row) => row.op)].sort()) {
    data.push(points(op, some.map((row) => row.m), some.map((row) => row.gain), some.map(about), opColour(op), 0.3));
    const octave = [...groups(some, (row) => Math.round(Math.log2(row.m)))].filter(([, list]) => list.length >= 3).sort((a, b) => a[0] - b[0]);
    lines.push({
      type: "scatter", mode: "lines+markers", name: esc(op), legendgroup: esc(op), showlegend: true,
      x: octave.map(([power]) => 2 ** power), y: octave.map(([, list]) => geomean(list.map((row) => row.gain))),
      text: octave.map(([power, list]) => hover([`${op}, M near ${whole(2 ** power)}`,
        `geometric mean ${times(geomean(list.map((row) => row.gain)))} of ${pluralised(list.length, "problem")}`])),
      hoverinfo: "text", line: { color: opColour(op), width: 2.5, shape: "spline", smoothing: 0.4 }, marker: { size: 6 },
    });
  }
  const [low, high] = extent(rows.map((row) => row.gain));
  const ticks = [0.5, 1, 1.2, 1.5, 2, 3, 4, 6, 8, 10, 20, 50, 100].filter((x) => x <= high * 1.3 && x >= low / 1.3);
  const y = axis("gain over ATen", { type: "log", tickvals: ticks, ticktext: ticks.map((x) => `${x}x`) });
  return { data: [...data, ...lines], layout: { xaxis: octaves("M, rows of the activation", rows.map((row) => row.m)), yaxis: y } };
}

/** A line for each way of computing that occurs, for the device of most rows. */
function roofs(rows, span) {
  const counted = [...groups(rows, (row) => row.device)].sort((a, b) => b[1].length - a[1].length)[0][0];
  const device = DATA.devices.find((one) => one.name === counted) ?? DATA.devices[0];
  const ways = new Map(rows.filter((row) => row.device === counted).map((row) => [row.computes, row.peak]));
  return [...ways].sort((a, b) => b[1] - a[1]).map(([way, peak], place) => {
    const ridge = (peak * 1e3) / device.gb_per_s;
    const x = [Math.min(span[0], ridge), ridge, Math.max(span[1], ridge)];
    return {
      type: "scatter", mode: "lines", name: esc(`limit, ${way}`), x, y: x.map((at) => Math.min((at * device.gb_per_s) / 1e3, peak)),
      text: x.map(() => hover([`${device.name}: ${whole(device.gb_per_s)} GB/s, ${peak.toPrecision(3)} TFLOP/s, ${way}`])),
      hoverinfo: "text", line: { color: variable("--soft"), width: 1.6, dash: ["solid", "dash", "dot", "dashdot"][place % 4] },
    };
  });
}

function roofline(rows, opColour) {
  const intensity = (row) => row.flops / row.bytes;
  const rate = (row) => row.flops / row.us / 1e6;
  const words = (row) => `${about(row)}<br>${rate(row).toPrecision(3)} TFLOP/s, ${times(row.ofFloor)} the floor`;
  const ops = [...groups(rows, (row) => row.op)].sort();
  const data = ops.map(([op, some]) => points(op, some.map(intensity), some.map(rate), some.map(words), opColour(op), 0.45));
  data.push(...legend(ops.map(([op]) => op), opColour), ...roofs(rows, extent(rows.map(intensity))));
  return { data, layout: { xaxis: decades("operations per byte"), yaxis: decades("TFLOP/s of the pick") } };
}

/** Which backend wins most problems of each octave of M and N. */
function winners(rows) {
  const octave = (x) => Math.round(Math.log2(x));
  const cells = groups(rows, (row) => `${octave(row.m)} ${octave(row.n)}`);
  const ms = [...new Set(rows.map((row) => octave(row.m)))].sort((a, b) => a - b);
  const ns = [...new Set(rows.map((row) => octave(row.n)))].sort((a, b) => a - b);
  const known = distinct(rows, (row) => row.backend);
  const cell = (m, n) => {
    const some = cells.get(`${m} ${n}`);
    if (!some) return { z: null, label: "", text: "" };
    const counts = [...groups(some, (row) => row.backend)].map(([name, list]) => [name, list.length]).sort((a, b) => b[1] - a[1]);
    const gain = geomean(some.map((row) => row.gain));
    return {
      z: known.indexOf(counts[0][0]), label: gain >= 1.005 ? gain.toFixed(gain < 10 ? 1 : 0) : "",
      text: hover([`M near ${whole(2 ** m)}, N near ${whole(2 ** n)}: ${pluralised(some.length, "problem")}`,
        counts.map(([name, count]) => `${name} ${percent(count / some.length)}`).join(", "), `geometric mean gain ${times(gain)}`]),
    };
  };
  const grid = ns.map((n) => ms.map((m) => cell(m, n)));
  const share = 1 / known.length;
  const scale = known.flatMap((name, at) => [[at * share, backendColour(name)], [(at + 1) * share, backendColour(name)]]);
  const heat = {
    type: "heatmap", x: ms.map((m) => binary(2 ** m)), y: ns.map((n) => binary(2 ** n)), z: grid.map((line) => line.map((one) => one.z)),
    hovertext: grid.map((line) => line.map((one) => one.text)), hoverinfo: "text", colorscale: scale, zmin: -0.5, zmax: known.length - 0.5,
    showscale: false, xgap: 2, ygap: 2, hoverongaps: false,
  };
  if (!narrow()) {
    Object.assign(heat, { text: grid.map((line) => line.map((one) => one.label)), texttemplate: "%{text}", textfont: { size: 11, color: variable("--card") } });
  }
  const category = { type: "category", showgrid: false, tickangle: 0, nticks: narrow() ? 6 : 24 };
  return {
    data: [heat, ...legend(known, backendColour, { symbol: "square", size: 11 })],
    layout: {
      xaxis: axis("M", { ...category, categoryorder: "array", categoryarray: heat.x }),
      yaxis: axis("N", { ...category, categoryorder: "array", categoryarray: heat.y }),
    },
  };
}

function spreads(rows, opColour) {
  const words = (row) => `${about(row)}<br>spread ${percent(row.spread)}, ${pluralised(row.runs, "run")}`;
  const ops = [...groups(rows, (row) => row.op)].sort();
  const data = ops.map(([op, some]) => points(op, some.map((row) => row.us), some.map((row) => Math.max(100 * row.spread, 0.01)),
    some.map(words), opColour(op), 0.35));
  data.push(...legend(ops.map(([op]) => op), opColour));
  const ticks = [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100];
  const y = axis("spread of the pick", { type: "log", tickvals: ticks, ticktext: ticks.map((x) => `${x}%`) });
  return { data, layout: { xaxis: decades("time of the pick, microseconds"), yaxis: y } };
}

const TIES = [["1, no tie", 1], ["2", 2], ["3 to 4", 4], ["5 to 8", 8], ["9 to 16", 16], ["more", Infinity]];

function tieBars(rows) {
  const labels = TIES.map(([label]) => label);
  const data = [...groups(rows, (row) => row.backend)].sort().map(([backend, some]) => {
    const counts = TIES.map(() => 0);
    for (const row of some) counts[TIES.findIndex(([, most]) => row.tied <= most)] += 1;
    return {
      type: "bar", name: esc(backend), x: labels, y: counts, marker: { color: backendColour(backend) },
      text: counts.map((count, at) => hover([`${pluralised(count, "problem")} with a tie set of ${labels[at]}`, `pick: ${backend}`])),
      hoverinfo: "text", textposition: "none",
    };
  });
  return { data, layout: { barmode: "stack", xaxis: axis("configs as good as the best", { type: "category" }), yaxis: axis("problems") } };
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
