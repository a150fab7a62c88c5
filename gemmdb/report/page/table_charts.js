// The charts of a table's page.

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
