// Draws the page of the document's kind.
{
  const main = document.getElementById("main");
  main.replaceChildren();
  ({ table: tablePage, workload: workloadPage, comparison: comparisonPage })[DATA.kind](main);
  document.getElementById("footer").textContent = `Made by gemmdb report${DATA.version ? ` ${DATA.version}` : ""}. The charts are drawn by plotly.js. This page loads nothing from elsewhere.`;
}
