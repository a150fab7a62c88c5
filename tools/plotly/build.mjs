// Writes gemmdb/report/page/plotly/{plotly.min.js,LICENSES.txt}: npm ci && npm run build

import { build } from "esbuild";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const target = "../../gemmdb/report/page/plotly";
const { version } = JSON.parse(readFileSync("node_modules/plotly.js/package.json", "utf8"));

const made = await build({
  entryPoints: ["traces.js"], bundle: true, minify: true, format: "iife", globalName: "Plotly", target: "es2020",
  define: { global: "window" }, legalComments: "none", metafile: true, write: false, outdir: "out",
});
const code = made.outputFiles.find((one) => one.path.endsWith(".js")).text;
const head = `/* plotly.js ${version}: scatter, bar, heatmap, treemap. MIT; see LICENSES.txt. Made by tools/plotly. */\n`;
writeFileSync(join(target, "plotly.min.js"), head + code);

// The licences of all packages whose code is in the bundle.
const folders = new Set(
  Object.entries(made.metafile.outputs).filter(([name]) => name.endsWith(".js"))
    .flatMap(([, output]) => Object.entries(output.inputs).filter(([, part]) => part.bytesInOutput > 0))
    .map(([name]) => name.match(/^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//)?.[1]).filter(Boolean),
);
const texts = [...folders].sort().map((folder) => {
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
  const text = file && existsSync(join(folder, file)) ? readFileSync(join(folder, file), "utf8").trim() : "";
  return `${about.name} ${about.version} (${about.license})\n\n${text || `See its package.json: ${about.license}.`}\n`;
});
writeFileSync(join(target, "LICENSES.txt"), texts.join(`\n${"-".repeat(80)}\n\n`));
console.log(`${head.length + code.length} bytes, ${folders.size} packages`);
