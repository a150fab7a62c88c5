// The page of a workload.

const MOST_TILES = 400;

function products() {
  return DATA.products.map((one) => {
    const ranges = Object.entries(one.ranges).map(([name, [low, high]]) => `${name}\u00a0${low}..${high ?? ""}`).join(", ");
    const name = ranges ? `${one.name} (${ranges})` : one.name;
    const row = { ...one, name, share: DATA.total_us ? one.total_us / DATA.total_us : 0, saved_us: one.aten_us - one.total_us };
    row.words = `${name} ${one.problem} ${one.config} ${one.outcome} ${one.rung} ${one.device} ${(one.origins || []).join(" ")}`.toLowerCase();
    return row;
  });
}

const sum = (rows, of) => rows.reduce((total, row) => total + of(row), 0);

/** Whether a time is an estimate, since no table has one. */
const estimated = (row) => row.rung === "miss";
const oneCall = (row) => `${estimated(row) ? "~" : ""}${timed(row, micro(row.us))}`;

/** A gain; over the range of sizes if no size of a call is known. */
const gained = (row) => (row.gains ? row.gains.map(times).join(" to ") : times(row.gain));

function aboutProduct(row) {
  const what = row.aten ? row.outcome : `${row.outcome}: ${row.kernel}, gain ${gained(row)}`;
  const build = row.may_save_us ? [`a build may save ${micro(row.may_save_us)}`] : [];
  return hover([row.name, what, `${pluralised(row.calls, "call")} of ${oneCall(row)}: ${percent(row.share)} of the time`, ...build]);
}

const SHADES = {
  light: { [UNKNOWN]: "#f2d8a2", [REFUSED]: "#e3cfe8", [BEST]: "#e4e8ee", [PREDICTED]: "#bcd3f1", slower: "#e8a59d", faster: ["#d3ecdf", "#3da873"] },
  dark: { [UNKNOWN]: "#69532a", [REFUSED]: "#553c60", [BEST]: "#3a4453", [PREDICTED]: "#34507a", slower: "#8c3a30", faster: ["#2f5547", "#239a68"] },
};

/** The colour of a GEMM: ATen's by why it runs; a kernel's the greener, the larger its gain, up to 4x. */
function shade(row) {
  const of = SHADES[root.dataset.theme];
  if (row.aten) return of[row.outcome] ?? of[BEST];
  if (row.gain < 1) return of.slower;
  const part = Math.min(Math.log2(row.gain) / 2, 1);
  const channel = (text, at) => parseInt(text.slice(1 + 2 * at, 3 + 2 * at), 16);
  const mixed = [0, 1, 2].map((at) => Math.round(channel(of.faster[0], at) * (1 - part) + channel(of.faster[1], at) * part));
  return `rgb(${mixed.join(",")})`;
}

const OUTCOME_COLOURS = { [TABLE]: 2, [NEAR]: 0, [TUNED]: 1 };

/** The colour of an outcome in a bar: one of the palette for kernels, the shade of the boxes for ATen. */
const outcomeColour = (name) => (name in OUTCOME_COLOURS ? colour(OUTCOME_COLOURS[name]) : SHADES[root.dataset.theme][name] ?? colour(7));

/** A GEMM's name for a box: the op, its sizes, the rest, and the ranges, each on a line. */
function lines(name) {
  const [plain, ranges] = name.split(" (");
  const [op, ...rest] = plain.split(" ");
  const sizes = rest.findIndex((word) => /^\d+x\d+x\d+$/.test(word)) + 1;
  return [op, rest.slice(0, sizes).join(" "), rest.slice(sizes).join(" "), ranges && `(${ranges}`].filter(Boolean).map(esc).join("<br>");
}

/** Area: time as it is served. Outer boxes: outcomes. */
function treemap(rows) {
  const shown = [...rows].sort((a, b) => b.total_us - a.total_us).slice(0, MOST_TILES);
  const total = sum(shown, (row) => row.total_us), of = SHADES[root.dataset.theme];
  const boxes = [{ id: "all", label: "\u00a0", parent: "", value: total, colour: variable("--card"), text: "", words: pluralised(shown.length, "GEMM") }];
  for (const [outcome, some] of [...groups(shown, (row) => row.outcome)].sort(byOutcome)) {
    const us = sum(some, (row) => row.total_us);
    const words = hover([outcome, `${pluralised(some.length, "GEMM")}, ${micro(us)}`, `gain ${times(sum(some, (row) => row.aten_us) / us)}`]);
    boxes.push({ id: outcome, label: `${esc(outcome)}, ${percent(us / total)}`, parent: "all", value: us, colour: of[outcome] ?? of.faster[0], text: "", words });
    some.forEach((row, at) => boxes.push({
      id: `${outcome} ${at}`, label: lines(row.name), parent: outcome, value: row.total_us, colour: shade(row),
      text: `${row.aten ? "ATen" : gained(row)}${narrow() ? "<br>" : ", "}${percent(row.share)}`, words: aboutProduct(row),
    }));
  }
  const each = (name) => boxes.map((box) => box[name]);
  return {
    data: [{
      type: "treemap", ids: each("id"), labels: each("label"), parents: each("parent"), values: each("value"), text: each("text"), hovertext: each("words"),
      hoverinfo: "text", textinfo: "label+text", branchvalues: "total", textfont: { color: variable("--ink") }, tiling: { pad: 2 },
      marker: { colors: each("colour"), line: { width: 1, color: variable("--card") }, pad: { t: 22, l: 2, r: 2, b: 2 } }, pathbar: { visible: false },
    }],
    layout: { margin: { l: 0, r: 0, t: 0, b: 0 }, uniformtext: { minsize: narrow() ? 10 : 9, mode: "hide" } },
    legend: legendOf(rows),
  };
}

function legendOf(rows) {
  const of = SHADES[root.dataset.theme];
  const found = rows.some((row) => !row.aten) ? [{ name: "faster than ATen, the greener the more", colour: of.faster[1], mark: "square" }] : [];
  if (rows.some((row) => !row.aten && row.gain < 1)) found.push({ name: "slower", colour: of.slower, mark: "square" });
  for (const name of [BEST, PREDICTED, UNKNOWN, REFUSED]) if (rows.some((row) => row.outcome === name)) found.push({ name, colour: of[name], mark: "square" });
  return found;
}

/** The time with ATen and as it is served, by outcome. */
function beforeAfter(rows) {
  const bars = ["with gemmdb", "ATen alone"];
  const [unit, us_per] = sum(rows, (row) => row.aten_us) > 1e6 ? ["seconds", 1e6] : ["milliseconds", 1e3];
  const parts = [...groups(rows, (row) => row.outcome)].sort(byOutcome);
  const data = parts.map(([name, some]) => {
    const us = [sum(some, (row) => row.total_us), sum(some, (row) => row.aten_us)];
    return {
      type: "bar", orientation: "h", y: bars, x: us.map((one) => one / us_per), textposition: "none", hoverinfo: "text",
      marker: { color: outcomeColour(name), line: { width: 1, color: variable("--card") } },
      text: us.map((one, at) => hover([`${name}, ${bars[at]}: ${micro(one)}`, pluralised(some.length, "GEMM")])),
    };
  });
  return {
    data, layout: { barmode: "stack", bargap: 0.4, xaxis: axis(`${unit}, all calls`), yaxis: axis("", { type: "category" }) },
    legend: parts.map(([name]) => ({ name, colour: outcomeColour(name), mark: "square" })),
  };
}

/** The command that measures what no table knows. A title that a shell could read as more than one word is left out. */
function buildCommand() {
  const plainly = /^[\w./ =:-]+$/.test(DATA.title);
  if (DATA.title.endsWith(".jsonl")) return `gemmdb build --arch native --shapes ${plainly && !DATA.title.includes(" ") ? DATA.title : "WORKLOAD"}`;
  return `gemmdb tune -- ${plainly && DATA.title.includes(" ") ? DATA.title : "python PROGRAM"}`;
}

/** Where a build has to run for some GEMMs. */
const on = (rows) => (rows.length ? `, on ${distinct(rows, (row) => row.device).join(" and ")}` : "");

/** What a build may save, the most first; and what no build changes. */
function buildList() {
  const { table, fill } = plainTable("misses", [
    { title: "GEMM that no table answers", name: true }, { title: "may save", right: true }, { title: "", bar: true }, { title: "share", right: true },
    { title: "calls", right: true }, { title: "one call", right: true },
  ]);
  const words = el("p", "note");
  const command = el("pre", "", buildCommand());
  const left = el("ul", "note");
  words.id = "missed";
  left.id = "refused";
  const show = (rows) => {
    const missed = rows.filter((row) => row.outcome === UNKNOWN).sort((a, b) => (b.may_save_us ?? 0) - (a.may_save_us ?? 0) || b.total_us - a.total_us);
    const known = missed.filter((row) => row.may_save_us !== null);
    const us = sum(known, (row) => row.may_save_us);
    const guessed = rows.filter((row) => row.outcome === PREDICTED);
    const there = on(missed.length ? missed : guessed);
    words.textContent = missed.length === 0 ? (guessed.length ? `A build makes predictions certain${there}:` : "A build changes none of these GEMMs.")
      : known.length === 0 ? `No table answers ${pluralised(missed.length, "GEMM")}. What a build may save is not known for this device. To measure them${there}:`
        : `No table answers ${pluralised(missed.length, "GEMM")}. A build may save about ${micro(us)} of ${micro(DATA.total_us)}. To measure them${there}:`;
    const refused = [...groups(rows.filter((row) => row.outcome === REFUSED), (row) => row.why)];
    const certain = guessed.length ? [el("li", "", `ATen is predicted to be the best kernel for ${pluralised(guessed.length, "GEMM")}, ${percent(sum(guessed, (row) => row.share))} of the time.`)] : [];
    left.replaceChildren(...certain, ...refused.map(([why, some]) => el("li", "", `ATen runs ${pluralised(some.length, "GEMM")}, ${percent(sum(some, (row) => row.share))} of the time: ${why}.`)));
    table.hidden = missed.length === 0;
    command.hidden = missed.length + guessed.length === 0;
    fill(missed.slice(0, 15).map((row) => [
      row.name, row.may_save_us === null ? "unknown" : micro(row.may_save_us), bar((row.may_save_us ?? 0) / (missed[0].may_save_us || 1)), percent(row.share),
      whole(row.calls), oneCall(row),
    ]));
  };
  return { content: el("div", "", words, command, left, el("div", "scroll", table)), show };
}

function productGrid() {
  const columns = [
    { title: "GEMM", of: (row) => row.name, show: (row) => row.name, name: true },
    { title: "share", of: (row) => row.share, show: (row) => percent(row.share), right: true },
    { title: "gain", of: (row) => row.gain, show: (row) => el("span", row.gain > 1 ? "good" : "", row.aten ? "-" : gained(row)), right: true },
    { title: "outcome", of: (row) => OUTCOMES.indexOf(row.outcome), show: (row) => el("span", "nowrap", row.outcome) },
    { title: "calls", of: (row) => row.calls, show: (row) => whole(row.calls), right: true },
    { title: "one call", of: (row) => row.us, show: oneCall, right: true },
    { title: "saved", of: (row) => row.saved_us, show: (row) => (row.saved_us > 0 ? micro(row.saved_us) : "-"), right: true },
    { title: "kernel", of: (row) => row.kernel, show: (row) => kernelNames(row.kernel) },
  ];
  const details = (row) => [
    ["problem", row.problem], ["config", row.config], ["outcome", row.why ? `${row.outcome}: ${row.why}` : row.outcome],
    ...(row.reason && row.reason !== row.why ? [["lookup", row.reason]] : []),
    ...((row.origins || []).length ? [["where", row.origins.join("; ")]] : []), ["device", row.device], ["rung", estimated(row) ? "none" : row.rung],
    ...(row.table ? [["table", row.table]] : []), ["in graphs", whole(row.count)], ...(row.busy ? [["busy", BUSY.slice(2)]] : []),
  ];
  return grid("products", columns, details, { column: 1, down: true });
}

/** What gemmdb does for the workload, in one sentence. */
function workloadLead(rows) {
  const devices = distinct(rows, (row) => row.device);
  const kernels = rows.filter((row) => !row.aten);
  const does = !rows.length ? "gemmdb handles no GEMM of it." : kernels.length ? `gemmdb runs another kernel than ATen's for ${whole(kernels.length)} of ${pluralised(rows.length, "GEMM")}.`
    : rows.length === 1 ? "ATen runs its GEMM." : `ATen runs all ${whole(rows.length)} GEMMs.`;
  const smaller = DATA.smaller ? ` ${pluralised(DATA.smaller, "GEMM")} of less time ${DATA.smaller === 1 ? "is" : "are"} not listed; the sums contain them.` : "";
  const marks = [rows.some(estimated) && "~ Estimated: no table has a time.", rows.some((row) => row.busy) && BUSY].filter(Boolean).map((mark) => ` ${mark}`);
  return `${devices.join(", ") || "no device"}: ${does} Times are expected times of one call, multiplied by the recorded calls.${smaller}${marks.join("")}`;
}

function workloadPage(main) {
  const rows = products();
  heading("gemmdb workload", DATA.title, workloadLead(rows));
  const of = (outcome) => rows.filter((row) => row.outcome === outcome);
  const share = (some, words) => [percent(sum(some, (row) => row.share)), `of the time: ${words}, ${pluralised(some.length, "GEMM")}`];
  const nothing = rows.every((row) => row.aten) && DATA.gain === 1;
  main.append(tiles([
    nothing ? ["none", `gain over ATen${rows.length ? ", which runs every GEMM" : ""}`] : [times(DATA.gain), `gain over ATen, all GEMMs weighted by time${DATA.ranged ? `: at the recorded sizes, ${DATA.interval.map(times).join(" to ")} over their ranges` : ""}`],
    share(rows.filter((row) => !row.aten), "another kernel than ATen's"),
    ...[BEST, PREDICTED, UNKNOWN, REFUSED].filter((outcome) => of(outcome).length).map((outcome) => share(of(outcome), outcome)),
    [DATA.may_save_us ? `~${micro(DATA.may_save_us)}` : "-", "more that a build may save"],
  ]));
  const note = rows.length > MOST_TILES ? ` The ${MOST_TILES} largest are drawn.` : "";
  const charts = [
    ["Time by GEMM", `Area: time with gemmdb. A box opens with a click or a tap.${note}`, chart("treemap", treemap, "tall"), "wide"],
    ["Before and after", "The time of all GEMMs with ATen alone, and with gemmdb, by what serves them.", chart("bars", beforeAfter, "low"), "wide"],
  ];
  const misses = buildList();
  const list = productGrid();
  const { bar: controls, apply } = filters(rows, {
    noun: "GEMM", search: (row) => row.words,
    choices: [
      { id: "op", label: "op", of: (row) => row.op }, { id: "dtype", label: "dtypes", of: (row) => row.dtype },
      { id: "outcome", label: "outcome", of: (row) => row.outcome }, { id: "backend", label: "backend", of: (row) => row.backend },
      { id: "device", label: "device", of: (row) => row.device },
    ],
  }, (found) => {
    for (const [, , one] of charts) one.show(found);
    misses.show(found);
    list.show(found);
  });
  const cards = el("div", "cards", ...charts.map(([title, words, one, wide]) => card(title, words, one.place, wide)));
  cards.append(card("What a build would bring", "", misses.content, "wide"));
  cards.append(card("GEMMs", "A heading sorts. A row opens the whole problem, its config and why ATen runs.", list.content, "wide long"));
  if (DATA.uncovered.length) {
    const named = DATA.uncovered.map((one) => [one.name, `${pluralised(one.count, "occurrence")}, ${pluralised(one.calls, "call")}`]);
    cards.append(card("Not handled", "GEMMs that gemmdb leaves to Inductor. Their sizes are not recorded, so no share counts them.", facts(named), "wide"));
  }
  main.append(controls, cards);
  apply();
}
