// The traces that gemmdb/report/page draws. Scatter belongs to the core.
const Plotly = require("plotly.js/lib/core");

Plotly.register([require("plotly.js/lib/bar"), require("plotly.js/lib/heatmap"), require("plotly.js/lib/treemap")]);

module.exports = Plotly;
