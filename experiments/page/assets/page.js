"use strict";
// What the pages share: elements, tables that sort, and charts that can be read by mouse, finger and keyboard.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

/** Makes an element; children that are text stay text. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const plain = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 4 });

/** A number as people read it: 2,296 or 17.84; nothing where there is none. */
function written(value) {
  if (value == null) return "";
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-GB") : plain.format(value);
}

/** Sorts a table's rows by a column: numbers by their value, text by the alphabet, empty cells last. */
function sortTable(table, column, ascending) {
  const body = table.tBodies[0];
  const key = (row) => {
    const cell = row.cells[column];
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return cell.textContent === "" || cell.classList.contains("number") ? null : cell.textContent;
  };
  const order = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const less = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    return ascending ? less : -less;
  };
  const rows = [...body.rows].map((row) => ({ row, key: key(row) }));
  rows.sort((a, b) => order(a.key, b.key));
  body.append(...rows.map(({ row }) => row));
}

/** Gives the headings of a table buttons that sort it. */
function makeSortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  if (table.tBodies[0].rows.length < 2) return;
  headings.forEach((heading, column) => {
    if (!heading.textContent) return;
    const button = element("button", { type: "button" }, heading.textContent);
    button.addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sortTable(table, column, ascending);
    });
    heading.replaceChildren(button);
  });
}

/** Fills a place with a table of text, its first columns headings of their rows. */
function fillTable(host, caption, headings, rows, rowHeadings) {
  const cell = (value, place) => {
    const number = typeof value === "object" && value !== null;
    const text = number ? value.text : value;
    const attributes = number ? { class: "number", "data-value": value.value } : {};
    return place < rowHeadings
      ? element("th", { scope: "row", ...attributes }, text)
      : element("td", attributes, text);
  };
  const head = element("tr", {}, ...headings.map((text) => element("th", { scope: "col" }, text)));
  const body = rows.map((row) => element("tr", {}, ...row.map(cell)));
  const table = element(
    "table", { class: "sortable" },
    element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body),
  );
  makeSortable(table);
  host.replaceChildren(
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table),
  );
}

/** How many panels stand side by side. */
function columnsOf(count, width, least) {
  const fits = Math.max(1, Math.min(Math.floor(width / least), 4));
  if (count === 4 && fits === 3) return 2;
  return Math.min(count, fits);
}

/**
 * Draws panels side by side into a figure.
 * @param figure the element.
 * @param panels each {title, marks, points, options}: `points` are {x, y, said} in the chart's own units.
 * @param least pixels that a panel needs.
 */
function drawPanels(figure, panels, least) {
  const host = figure.querySelector(".panels");
  const width = host.clientWidth || figure.clientWidth || 640;
  const columns = columnsOf(panels.length, width, least);
  host.style.setProperty("--columns", columns);
  const each = Math.min(Math.floor((width - (columns - 1) * 24) / columns), 760);
  host.replaceChildren(...panels.map((panel) => panelOf(panel, each)));
}

function panelOf({ title, marks, points, options, below }, width) {
  const tips = Plot.tip(points, Plot.pointer({
    x: "x", y: "y", title: "said", fontSize: 12, fill: "var(--raised)", stroke: "var(--line)", pathFilter: "none",
  }));
  const chart = Plot.plot({
    width, height: 250, marginLeft: 54, marginBottom: 40, marginTop: 14, marginRight: 16,
    style: { background: "transparent", color: "inherit", fontSize: "11px", overflow: "visible" },
    ...options, marks: [...marks, ...(points.length ? [tips] : [])],
  });
  chart.setAttribute("aria-hidden", "true");
  const focusable = points.length > 0;
  const frame = element("div", {
    class: "plot", role: "img", tabindex: focusable ? "0" : null,
    "aria-label": `${title}. ${focusable ? "Arrow keys go from point to point." : ""}`,
  }, chart);
  if (focusable) frame.addEventListener("keydown", (event) => step(event, chart, points, frame));
  return element("div", { class: "panel" }, element("h4", {}, title), frame, ...(below ? stripOf(below, width) : []));
}

/** A strip of bars under a panel, on its horizontal scale. */
function stripOf({ title, marks, options }, width) {
  const chart = Plot.plot({
    width, marginLeft: 54, marginRight: 16, ...options, marks,
    style: { background: "transparent", color: "inherit", fontSize: "11px", overflow: "visible" },
  });
  chart.setAttribute("aria-hidden", "true");
  return [element("p", { class: "strip" }, title), element("div", { class: "plot" }, chart)];
}

/** Moves the tip to the next or previous point, and says it. */
function step(event, chart, points, frame) {
  const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") chart.dispatchEvent(new PointerEvent("pointerleave"));
  if (!move) return;
  event.preventDefault();
  const last = frame.dataset.point === undefined ? (move > 0 ? -1 : 0) : Number(frame.dataset.point);
  const now = (last + move + points.length) % points.length;
  frame.dataset.point = now;
  const place = (name) => {
    const scale = chart.scale(name);
    return scale.apply(points[now][name]) + (scale.bandwidth ?? 0) / 2;
  };
  const box = chart.getBoundingClientRect();
  const zoom = box.width / Number(chart.getAttribute("width"));
  chart.dispatchEvent(new PointerEvent("pointermove", {
    clientX: box.left + zoom * place("x"), clientY: box.top + zoom * place("y"), pointerType: "mouse",
  }));
  byId("said").textContent = points[now].said.replaceAll("\n", ", ");
}

/** Ticks at 1, 2 and 5 times powers of ten, or at the powers alone where those are many. */
function decades([low, high]) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const digit of [1, 2, 5]) ticks.push(Number(`${digit}e${power}`));
  }
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  return inside.length > 9 ? inside.filter((tick) => String(tick).replace(/[.0]/g, "") === "1") : inside;
}

/** The scale of values: logarithmic where they span twenty times and more, else from zero. */
function valueScale(values, tops) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const top = high > 0 ? Math.min(Math.max(high, ...tops), 1.4 * high) : 1;
  if (low > 0 && high / low >= 20) {
    const domain = [low / 1.25, top * 1.25];
    return { type: "log", domain, ticks: decades(domain), tickFormat: written, label: null, grid: true };
  }
  return { domain: [Math.min(0, low), top * 1.05], ticks: 5, tickFormat: written, label: null, grid: true };
}

/** Draws again when the width changes, at most once a frame. */
function onWidth(draw) {
  let width = 0;
  let waiting = false;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now === width || waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      width = Math.round(byId("main").clientWidth);
      draw();
    });
  }).observe(byId("main"));
}

document.querySelectorAll("table.sortable").forEach(makeSortable);
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details[data-print]").forEach((details) => { details.open = true; });
});
