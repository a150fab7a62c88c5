// The elements with text that is too small, or that stands out too little from its ground (WCAG AA: 4.5).
() => {
  const parts = (text) => text.match(/[\d.]+/g).map(Number);
  const light = (text) => {
    const [r, g, b] = parts(text).map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = getComputedStyle(at).backgroundColor;
      const alpha = parts(found)[3];
      if (alpha === undefined || alpha > 0) return found;
    }
    return "rgb(255,255,255)";
  };
  const bad = [];
  for (const element of document.querySelectorAll("h1,h2,p,td,th button,label,summary,dt,dd,.label,.figure,.count,footer,button")) {
    if (!element.textContent.trim() || !element.getClientRects().length || element.disabled) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(style.color), light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5 || parseFloat(style.fontSize) < 11) bad.push([element.tagName, element.className, ratio, style.fontSize]);
  }
  return bad;
}
