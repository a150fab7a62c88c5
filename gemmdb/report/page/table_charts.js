// The charts of a table's page.

const between = (row) => (row.source === "ATen" ? "ATen itself" : `${times(row.gain)} (${times(row.low)} to ${times(row.high)})`);

function about(row) {
  return hover([row.name, `${row.kernel}: ${timed(row, micro(row.us))}, ATen ${micro(row.aten_us)}`, `gain ${between(row)}`]);
}

/** The geometric mean per op and octave of M as lines, over all results. */
function gainByM(rows, opColour) {
  const ops = [...groups(rows, (row) => row.op)].sort();
  const lines = ops.map(([op, some]) => {
    const octave = [...groups(some, (row) => Math.round(Math.log2(row.m)))].filter(([, list]) => list.length >= 3).sort((a, b) => a[0] - b[0]);
    return {
      type: "scatter", mode: "lines+markers", x: octave.map(([power]) => 2 ** power), y: octave.map(([, list]) => geomean(list.map((row) => row.gain))),
      text: octave.map(([power, list]) => hover([`${op}, M near ${whole(2 ** power)}`,
        `geometric mean ${times(geomean(list.map((row) => row.gain)))} of ${pluralised(list.length, "result")}`])),
      hoverinfo: "text", line: { color: opColour(op), width: 2.5, shape: "spline", smoothing: 0.4 }, marker: { size: 6 },
    };
  });
  const behind = cloud(rows, (row) => row.m, (row) => row.gain, about, opColour);
  const [low, high] = extent(rows.map((row) => row.gain));
  const ticks = [0.5, 1, 1.5, 2, 3, 4, 6, 10, 20, 50, 100].filter((x) => x <= high * 1.3 && x >= low / 1.3);
  return {
    data: [...behind.data, ...lines],
    layout: {
      xaxis: octaves("M, rows of the activation", rows.map((row) => row.m)),
      yaxis: axis("gain over ATen", { type: "log", tickvals: ticks, ticktext: ticks.map((x) => `${x}x`) }),
    },
    legend: [...ops.map(([op]) => ({ name: op, colour: opColour(op), mark: "line" })), ...(rows.length > MOST_POINTS ? behind.legend : [])],
  };
}

const DASHES = ["solid", "dash", "dot", "dashdot"];

/** A line for each way of computing that occurs, for the device of most rows. */
function roofs(rows, span) {
  const counted = [...groups(rows, (row) => row.device)].sort((a, b) => b[1].length - a[1].length)[0][0];
  const device = DATA.devices.find((one) => one.name === counted) ?? DATA.devices[0];
  const ways = new Map(rows.filter((row) => row.device === counted).map((row) => [row.computes, row.peak]));
  return [...ways].sort((a, b) => b[1] - a[1]).map(([way, peak], place) => {
    const ridge = (peak * 1e3) / device.gb_per_s;
    const x = [Math.min(span[0], ridge), ridge, Math.max(span[1], ridge)];
    return {
      type: "scatter", mode: "lines", name: way, x, y: x.map((at) => Math.min((at * device.gb_per_s) / 1e3, peak)),
      text: x.map(() => hover([`${device.name}: ${whole(device.gb_per_s)} GB/s, ${peak.toPrecision(3)} TFLOP/s, ${way}`])),
      hoverinfo: "text", line: { color: variable("--soft"), width: 1.6, dash: DASHES[place % 4] },
    };
  });
}

function roofline(rows, opColour) {
  const intensity = (row) => row.flops / row.bytes;
  const rate = (row) => row.flops / row.us / 1e6;
  const words = (row) => `${about(row)}<br>${rate(row).toPrecision(3)} TFLOP/s, ${times(row.ofRoof)} the roofline`;
  const { data, legend } = cloud(rows, intensity, rate, words, opColour);
  const limits = roofs(rows, extent(rows.map(intensity)));
  return {
    data: [...data, ...limits],
    layout: { xaxis: decades("operations per byte"), yaxis: decades("TFLOP/s of the pick") },
    legend: [...legend, ...limits.map((line, place) => ({ name: `limit, ${line.name}`, colour: variable("--soft"), mark: `line ${DASHES[place % 4]}` }))],
  };
}

/** Which source wins most results of each octave of M and N; of two octaves on a phone, where numbers need the room. */
function winners(rows) {
  const step = narrow() ? 2 : 1;
  const octave = (x) => Math.round(Math.log2(x) / step) * step;
  const cells = groups(rows, (row) => `${octave(row.m)} ${octave(row.n)}`);
  const ms = [...new Set(rows.map((row) => octave(row.m)))].sort((a, b) => a - b);
  const ns = [...new Set(rows.map((row) => octave(row.n)))].sort((a, b) => a - b);
  const known = Object.keys(SOURCES).filter((name) => rows.some((row) => row.source === name));
  known.push(...distinct(rows, (row) => row.source).filter((name) => !known.includes(name)));
  const cell = (m, n) => {
    const some = cells.get(`${m} ${n}`);
    if (!some) return { z: null, label: "", text: "" };
    const parts = [...groups(some, (row) => row.source)].sort((a, b) => b[1].length - a[1].length);
    const [first, won] = parts[0];
    const mean = (list) => geomean(list.map((row) => row.gain));
    const words = ([name, list]) => `${name}: ${percent(list.length / some.length)}${name === "ATen" ? "" : `, gain ${times(mean(list))}`}`;
    return {
      z: known.indexOf(first), label: first === "ATen" ? "" : mean(won).toFixed(mean(won) < 10 ? 1 : 0),
      text: hover([`M near ${whole(2 ** m)}, N near ${whole(2 ** n)}: ${pluralised(some.length, "result")}`, ...parts.map(words)]),
    };
  };
  const grid = ns.map((n) => ms.map((m) => cell(m, n)));
  const share = 1 / known.length;
  const scale = known.flatMap((name, at) => [[at * share, sourceColour(name)], [(at + 1) * share, sourceColour(name)]]);
  const heat = {
    type: "heatmap", x: ms.map((m) => binary(2 ** m)), y: ns.map((n) => binary(2 ** n)), z: grid.map((line) => line.map((one) => one.z)),
    hovertext: grid.map((line) => line.map((one) => one.text)), hoverinfo: "text", colorscale: scale, zmin: -0.5, zmax: known.length - 0.5,
    showscale: false, xgap: 2, ygap: 2, hoverongaps: false,
    text: grid.map((line) => line.map((one) => one.label)), texttemplate: "%{text}", textfont: { size: narrow() ? 11 : 12, color: variable("--card") },
  };
  const category = { type: "category", showgrid: false, tickangle: 0, nticks: 24 };
  return {
    data: [heat],
    layout: {
      xaxis: axis("M", { ...category, categoryorder: "array", categoryarray: heat.x }),
      yaxis: axis("N", { ...category, categoryorder: "array", categoryarray: heat.y }),
    },
    legend: known.map((name) => ({ name, colour: sourceColour(name), mark: "square" })),
  };
}

function spreads(rows, opColour) {
  const words = (row) => `${about(row)}<br>spread ${percent(row.spread)}, ${pluralised(row.runs, "run")}`;
  const { data, legend } = cloud(rows, (row) => row.us, (row) => Math.max(100 * row.spread, 0.01), words, opColour);
  const ticks = [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100];
  const y = axis("spread of the pick", { type: "log", tickvals: ticks, ticktext: ticks.map((x) => `${x}%`) });
  return { data, layout: { xaxis: decades("time of the pick, microseconds"), yaxis: y }, legend };
}

const TIES = [["1, no tie", 1], ["2", 2], ["3 to 4", 4], ["5 to 8", 8], ["9 to 16", 16], ["more", Infinity]];

function tieBars(rows) {
  const labels = TIES.map(([label]) => label);
  const sources = [...groups(rows, (row) => row.source)].sort();
  const data = sources.map(([name, some]) => {
    const counts = TIES.map(() => 0);
    for (const row of some) counts[TIES.findIndex(([, most]) => row.tied <= most)] += 1;
    return {
      type: "bar", x: labels, y: counts, marker: { color: sourceColour(name) },
      text: counts.map((count, at) => hover([`${pluralised(count, "result")} with a tie set of ${labels[at]}`, `pick: ${name}`])),
      hoverinfo: "text", textposition: "none",
    };
  });
  return {
    data, layout: { barmode: "stack", xaxis: axis("configs as good as the best", { type: "category" }), yaxis: axis("results") },
    legend: sources.map(([name]) => ({ name, colour: sourceColour(name), mark: "square" })),
  };
}
