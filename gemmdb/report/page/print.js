// Paper: light colours, charts of its width, and more rows of each list than a screen shows.

const PAPER = 660;
const printed = [];
let before = "";

window.addEventListener("beforeprint", () => {
  [before, paper] = [root.dataset.theme, true];
  theme("light");
  for (const one of printed) one(true);
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    Plotly.relayout(plot, { width: PAPER, height: plot.classList.contains("low") ? 190 : 340 });
  }
});

window.addEventListener("afterprint", () => {
  paper = false;
  theme(before);
  for (const one of printed) one(false);
  for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { width: null, height: null, autosize: true });
});
