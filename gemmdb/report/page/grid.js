// A table of items that can be sorted, in pages; a click on a row opens its details.

const PAGE = 25;
const PRINTED = 100;

/** `columns`: {title, of(item) for sorting, show(item): text or element, right, name}; `details(item)`: pairs. */
function grid(id, columns, details, order) {
  const table = el("table");
  table.id = id;
  const body = el("tbody");
  const heads = el("tr");
  const state = { items: [], page: 0, column: order.column, down: order.down, printing: false };
  columns.forEach((column, place) => {
    const button = el("button", "", column.title);
    button.type = "button";
    button.addEventListener("click", () => {
      state.down = state.column === place ? !state.down : Boolean(column.right);
      state.column = place;
      state.page = 0;
      sort();
      show();
    });
    heads.append(el("th", column.right ? "right" : "", button));
  });
  table.append(el("thead", "", heads), body);
  const place = el("span");
  const back = el("button", "", "Back");
  const on = el("button", "", "Next");
  for (const [button, step] of [[back, -1], [on, 1]]) {
    button.type = "button";
    button.addEventListener("click", () => {
      state.page += step;
      show();
    });
  }
  const sort = () => {
    const { of } = columns[state.column];
    const sign = state.down ? -1 : 1;
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (a ?? -Infinity) - (b ?? -Infinity));
    state.items.sort((a, b) => sign * compare(of(a), of(b)));
    [...heads.children].forEach((head, at) => {
      const mark = at === state.column ? (state.down ? " \u25be" : " \u25b4") : "";
      head.firstChild.textContent = columns[at].title + mark;
      head.setAttribute("aria-sort", at !== state.column ? "none" : state.down ? "descending" : "ascending");
    });
  };
  const line = (item) => {
    const row = el("tr", "row");
    row.tabIndex = 0;
    for (const column of columns) {
      row.append(labelled(el("td", `${column.right ? "right" : ""} ${column.name ? "name" : ""}`, column.show(item)), column.title));
    }
    const open = () => {
      if (row.nextSibling?.classList.contains("detail")) {
        row.nextSibling.remove();
        return;
      }
      const list = el("dl");
      for (const [name, value] of details(item)) list.append(el("dt", "", name), el("dd", "mono", value));
      const cell = el("td", "", list);
      cell.colSpan = columns.length;
      row.after(el("tr", "detail", cell));
    };
    row.addEventListener("click", open);
    row.addEventListener("keydown", (event) => {
      if (event.key === "Enter") open();
    });
    return row;
  };
  const show = () => {
    const size = state.printing ? PRINTED : PAGE;
    const pages = Math.max(1, Math.ceil(state.items.length / size));
    const from = state.printing ? 0 : state.page * size;
    body.replaceChildren(...state.items.slice(from, from + size).map(line));
    place.textContent = state.items.length
      ? `${whole(from + 1)} to ${whole(Math.min(from + size, state.items.length))} of ${whole(state.items.length)}`
      : "Nothing fits the filters.";
    back.disabled = state.page === 0;
    on.disabled = state.page >= pages - 1;
  };
  printed.push((printing) => {
    state.printing = printing;
    show();
  });
  const content = el("div", "", el("div", "scroll", table), el("div", "pager", place, back, on));
  return {
    content,
    show(items) {
      Object.assign(state, { items: [...items], page: 0 });
      sort();
      show();
    },
  };
}
