"use strict";
// The figures of a run: which lines, which statistic and which setting is shown is chosen in one place.

const SYMBOLS = {
  o: d3.symbolCircle, s: d3.symbolSquare, "^": d3.symbolTriangle, D: d3.symbolDiamond,
  v: { draw: (context, size) => downwards(context, size) },
  P: d3.symbolCross, X: d3.symbolTimes, "*": d3.symbolStar, x: d3.symbolTimes,
};
const OPEN = new Set(["x", "X"]);
const state = { hidden: new Set(), statistic: "p99", slice: 0, load: null, share: false };

function downwards(context, size) {
  const y = -Math.sqrt(size / (Math.sqrt(3) * 3));
  context.moveTo(0, -y * 2);
  context.lineTo(-Math.sqrt(3) * y, y);
  context.lineTo(Math.sqrt(3) * y, y);
  context.closePath();
}

const colourOf = (line) => `var(--line-${line.colour})`;
const allLines = () => data.slices[state.slice].lines;
const shownLines = () => allLines().filter((line) => !state.hidden.has(line.label));
const keyOf = (key) => key.replace("{s}", state.statistic);
const unitOf = (key) => data.fields[key]?.unit ?? "";
const nameOf = (key) => data.fields[key]?.name ?? key;
const titled = (name) => name.charAt(0).toUpperCase() + name.slice(1);
const isRatio = (key) => unitOf(key).startsWith("ratio");
const headed = (key) => titled(nameOf(key)) + (unitOf(key) && !isRatio(key) ? ` (${unitOf(key)})` : "");

/** A line's points with a value of `key`, over the horizontal axis or the metric `over`. */
function pointsOf(line, key, over) {
  const column = line.columns[key] ?? [];
  const { low = [], high = [] } = line.bounds[key] ?? {};
  return column.map((y, i) => ({
    x: over ? line.columns[over]?.[i] : line.x[i], y, low: low[i] ?? null, high: high[i] ?? null, at: line.at[i], line,
    said: said(line, key, y, low[i], high[i], line.at[i]),
  })).filter((point) => point.y !== null && point.x != null);
}

/** A value with the interval it lies in. */
const within = (y, low, high) => written(y) + (y !== null && low != null ? ` (${written(low)} to ${written(high)})` : "");

function said(line, key, y, low, high, at) {
  const unit = unitOf(key) && !isRatio(key) ? ` ${unitOf(key)}` : "";
  return `${line.label}\n${data.x.noun} ${at}\n${nameOf(key)}: ${within(y, low, high)}${unit}`;
}

/** A line of points with the band that each lies in: a bar where there are no neighbours along the load. */
function lineMarks(line, points, joined, over) {
  const colour = colourOf(line);
  const known = points.filter((point) => point.low !== null);
  const band = { x: "x", y1: "low", y2: "high", clip: true };
  const marks = [joined && !over && known.length > 1
    ? Plot.areaY(known, { ...band, fill: colour, fillOpacity: 0.16 })
    : Plot.ruleX(known, { ...band, stroke: colour, strokeOpacity: 0.55 })];
  if (joined) {
    marks.push(Plot.line(points, {
      x: "x", y: "y", stroke: colour, strokeWidth: 1.8, strokeDasharray: line.dashes || null,
    }));
  }
  marks.push(Plot.dot(points, {
    x: "x", y: "y", symbol: SYMBOLS[line.marker], r: 3.6, stroke: colour, strokeWidth: 1.5,
    fill: OPEN.has(line.marker) ? "none" : colour,
  }));
  return marks;
}

/** The horizontal scale: the tested values named, a doubling as wide everywhere where they span much. */
function loadScale() {
  const { values, numeric, log } = data.x;
  const label = log ? `${data.x.label}, log scale` : data.x.label;
  const every = Math.ceil(values.length / 12);
  const ticks = values.filter((_, i) => i % every === 0);
  if (!numeric) {
    const long = Math.max(...values.map((value) => value.length)) > 8;
    return { type: "point", domain: values, label, padding: 0.5, tickRotate: long ? -30 : 0 };
  }
  const scale = { label, labelAnchor: "center", labelArrow: "none", labelOffset: 34, tickFormat: written, inset: 8 };
  const places = ticks.map(Number), tested = values.map(Number);
  // of all that was tested: where a panel lacks some, its ticks would fall on each other
  const domain = values.length > 1 ? { domain: [Math.min(...tested), Math.max(...tested)] } : {};
  return log ? { ...scale, ...domain, type: "log", base: 2, ticks: places } : { ...scale, ...domain, ticks: places };
}

function metricScale(key, points) {
  const scale = valueScale(points.map((point) => point.x), []);
  return { ...scale, label: headed(key), labelAnchor: "center", labelArrow: "none", labelOffset: 34 };
}

function limitOf(key) {
  const match = /^p\d+_(\w+?)_ms$/.exec(key);
  return match ? data.limits[match[1]] : undefined;
}

/** Panels of lines over the load, one a metric. */
function linePanels(figure) {
  return figure.keys.map(keyOf).map((key) => {
    const ratio = figure.reference && isRatio(key);
    const lines = shownLines().filter((line) => !(ratio && line.baseline));
    const points = lines.flatMap((line) => pointsOf(line, key, figure.over));
    const limit = limitOf(key);
    const values = points.map((point) => point.y).concat(limit ?? []);
    const marks = [];
    if (ratio) marks.push(Plot.ruleY([figure.reference], { stroke: "currentColor" }));
    if (limit !== undefined) {
      marks.push(Plot.ruleY([limit], { stroke: "var(--quiet)", strokeWidth: 1.2 }));
      marks.push(Plot.text([limit], {
        y: (d) => d, text: (d) => `SLO ${written(d)} ms`, frameAnchor: "left", dx: 4, dy: -7,
        textAnchor: "start", fill: "var(--quiet)", stroke: "var(--ground)", strokeWidth: 4,
      }));
    }
    for (const line of lines) {
      marks.push(...lineMarks(line, points.filter((point) => point.line === line), data.x.numeric || figure.over, figure.over));
    }
    const x = figure.over ? metricScale(figure.over, points) : loadScale();
    const y = ratio ? ratioScale(figure) : valueScale(values, points.map((d) => d.high ?? d.y));
    return { title: headed(key) + (y.type === "log" ? ", log scale" : ""), marks, points, options: { x, y } };
  });
}

/** The gain and P99 over the load; below each, by line, where it pays, where it stops, and where it does not. */
function answerPanels(figure) {
  const lines = shownLines().filter((line) => !line.baseline);
  const short = (label) => (label.length > 9 ? `${label.slice(0, 8)}…` : label);
  return linePanels(figure).map((panel, i) => {
    const rows = lines.flatMap((line) => (line.verdicts[figure.questions[i]] ?? []).map(([x1, x2, verdict]) => ({
      x1, x2, y: line.label, verdict, colour: colourOf(line),
    })));
    const bar = { x1: "x1", x2: "x2", y: "y", insetTop: 3, insetBottom: 3 };
    const of = (verdict) => rows.filter((row) => row.verdict === verdict);
    const marks = [
      Plot.barX(of("does not"), { ...bar, fill: "var(--soft)", stroke: "var(--line)" }),
      Plot.barX(of("not settled"), { ...bar, fill: "colour", fillOpacity: 0.2, stroke: "colour", strokeDasharray: "3 2" }),
      Plot.barX(of("pays"), { ...bar, fill: "colour" }),
    ];
    const options = {
      height: 8 + 20 * lines.length, marginTop: 2, marginBottom: 6, x: { ...panel.options.x, axis: null },
      y: { type: "band", domain: lines.map((line) => line.label), label: null, tickFormat: short, tickSize: 0 },
      color: { type: "identity" },
    };
    return { ...panel, below: rows.length ? { title: figure.strips[i], marks, options } : null };
  });
}

/** One scale for all panels of ratios, around 1. */
function ratioScale(figure) {
  const all = allLines().filter((line) => !line.baseline);
  const values = all.flatMap((line) => figure.keys.filter(isRatio).flatMap((key) => line.columns[key] ?? []));
  const ratios = values.filter((value) => value !== null);
  const domain = [Math.min(0.7, Math.min(...ratios) - 0.05), Math.max(1.1, Math.max(...ratios) * 1.06)];
  return { domain, ticks: 6, label: null, grid: true };
}

/** One metric against another, a point a load. */
function pairPanels(figure) {
  const [across, up] = figure.keys;
  const points = shownLines().flatMap((line) => pointsOf(line, up, across));
  for (const point of points) point.said += `\n${nameOf(across)}: ${written(point.x)}`;
  const marks = shownLines().flatMap((line) => lineMarks(line, points.filter((d) => d.line === line), data.x.numeric, true));
  const last = shownLines().at(-1);
  marks.push(Plot.text(points.filter((point) => point.line === last), {
    x: "x", y: "y", text: "at", dx: 7, dy: -7, textAnchor: "start", fill: "var(--quiet)", stroke: "var(--ground)",
  }));
  const y = valueScale(points.map((point) => point.y), []);
  const x = metricScale(across, points);
  return [{ title: `${headed(up)} against ${nameOf(across)}`, marks, points, options: { x, y, height: 340 } }];
}

/** Tokens of a step against its time, a panel a line. */
function sidePanels(figure) {
  const lines = shownLines().filter((line) => line.columns.gain);
  const rows = lines.map((line) => line.x.map((x, i) => ({
    x, at: line.at[i], tokens: line.columns.tokens_per_step[i], gain: line.columns.gain[i],
    step: 1 + line.columns.verify_overhead[i] + line.columns.draft_overhead[i],
  })).filter((row) => row.gain !== null).map((row) => ({ ...row, ...whole(figure, line, row) })));
  const top = Math.max(1.1, ...rows.flat().map((row) => Math.max(row.tokens, row.time, row.step))) * 1.12;
  return lines.map((line, i) => {
    const points = rows[i].flatMap((row) => [
      { x: row.x, y: row.tokens, said: `${data.x.noun} ${row.at}\n${written(row.tokens)} tokens per step\ngain ${written(row.gain)}` },
      { x: row.x, y: row.time, said: `${data.x.noun} ${row.at}\n${written(row.time)} times plain, all told; ${written(row.step)} for a step of the same batch\ngain ${written(row.gain)}` },
    ]);
    return { title: line.label, marks: sideMarks(rows[i]), points, options: {
      x: loadScale(), y: { domain: [Math.min(1, ...rows.flat().map((row) => row.time)) - 0.05, top], ticks: 5, label: null, grid: true },
    } };
  });
}

/** The gain of the whole run and the time it leaves for a step; of a step alone where nothing is compared. */
function whole(figure, line, row) {
  const ratio = figure.whole ? line.columns[figure.whole]?.[line.x.indexOf(row.x)] ?? null : null;
  return ratio === null ? { time: row.step } : { gain: ratio, time: row.tokens / ratio };
}

function sideMarks(rows) {
  const tokens = { x: "x", y: "tokens", stroke: "var(--line-0)" };
  const time = { x: "x", y: "time", stroke: "var(--line-1)" };
  const filled = data.x.numeric ? [Plot.differenceY(rows, {
    x: "x", y1: "time", y2: "tokens", stroke: "none",
    positiveFill: "var(--wins)", negativeFill: "var(--loses)", positiveFillOpacity: 1, negativeFillOpacity: 1,
  })] : [];
  const joined = data.x.numeric
    ? [
      Plot.line(rows, { ...tokens, strokeWidth: 1.8 }), Plot.line(rows, { ...time, strokeWidth: 1.8 }),
      Plot.line(rows, { ...time, y: "step", strokeWidth: 1.2, strokeDasharray: "3 3" }),
    ]
    : [];
  return [
    ...filled, ...joined,
    Plot.dot(rows, { ...tokens, r: 3.4, fill: "var(--line-0)" }),
    Plot.dot(rows, { ...time, r: 3.4, fill: "var(--line-1)", symbol: d3.symbolTriangle }),
    Plot.text(rows.length > 10 ? [] : rows, {
      x: "x", frameAnchor: "top", dy: 2, fontSize: 10, text: (d) => d.gain.toFixed(2),
      fill: (d) => (d.gain >= 1 ? "var(--line-0)" : "var(--line-1)"),
    }),
  ];
}

const fillOf = (part) => (part.hatch ? `url(#hatch-${part.hatch})` : part.colour);

/** Bars of a step's parts, a panel a line. */
function stackPanels(figure) {
  const parts = figure.parts.filter((part) => shownLines().some((line) => line.columns[part.key]?.some((v) => v)));
  const lines = shownLines().filter((line) => line.columns[figure.keys[0]]);
  const totals = lines.map((line) => line.x.map((_, i) => parts.reduce((sum, p) => sum + (line.columns[p.key]?.[i] ?? 0), 0)));
  const top = state.share ? 100 : Math.max(...totals.flat()) * 1.05;
  return lines.map((line, l) => {
    const cells = line.x.flatMap((_, i) => {
      let sum = 0;
      return parts.map((part) => {
        const value = line.columns[part.key]?.[i] ?? 0;
        const height = state.share ? (100 * value) / totals[l][i] : value;
        sum += height;
        return {
          x: line.at[i], y: sum - height / 2, y1: sum - height, y2: sum, fill: fillOf(part),
          said: `${line.label}\n${data.x.noun} ${line.at[i]}\n${part.name}: ${written(value)} ms of ${written(totals[l][i])}`,
        };
      });
    });
    const marks = [Plot.barY(cells, {
      x: "x", y1: "y1", y2: "y2", fill: "fill", stroke: "var(--edge)", strokeWidth: 0.5, insetLeft: 0.5, insetRight: 0.5,
    })];
    const x = { type: "band", domain: data.x.values.length ? data.x.values : [""], label: data.x.label || null,
      labelAnchor: "center", labelArrow: "none", labelOffset: 34, padding: 0.12, tickRotate: longNames() ? -30 : 0 };
    const y = { domain: [0, top], ticks: 5, label: null, grid: true, tickFormat: written };
    const title = `${line.label} (${state.share ? "% of the step" : "ms"})`;
    return { title, marks, points: cells.filter((cell) => cell.y2 > cell.y1), options: { x, y, color: { type: "identity" } } };
  });
}

const longNames = () => data.x.values.some((value) => value.length > 8);

/** Bars of the parts of a request's time per token, a panel a line, at the chosen load. */
function splitPanels(figure) {
  const quantiles = { p50: "median", p90: "P90", p99: "P99" };
  const rows = shownLines().map((line) => ({ line, split: line.splits[Math.max(line.at.indexOf(state.load ?? ""), 0)] }))
    .filter((row) => row.split);
  const drawn = rows.map(({ line, split }) => splitCells(figure, line, split, quantiles));
  const ends = drawn.flat().flatMap((cell) => [cell.x1, cell.x2]);
  const domain = [Math.min(0, ...ends) * 1.02, Math.max(1, ...ends) * 1.04];
  return rows.map(({ line }, i) => ({
    title: `${line.label} (ms per token)`,
    marks: [
      Plot.barX(drawn[i], { x1: "x1", x2: "x2", y: "y", fill: "fill", stroke: "var(--edge)", strokeWidth: 0.5 }),
      Plot.ruleX([0], { stroke: "currentColor" }),
    ],
    points: drawn[i],
    options: {
      height: 150, marginLeft: 54, x: { domain, grid: true, label: null, ticks: 5 },
      y: { type: "band", domain: Object.values(quantiles), label: null, padding: 0.2 }, color: { type: "identity" },
    },
  }));
}

function splitCells(figure, line, split, quantiles) {
  return Object.entries(quantiles).flatMap(([quantile, name]) => {
    let [left, right] = [0, 0];
    return figure.parts.flatMap((part) => {
      const value = split[quantile][part.key];
      if (!value) return [];
      const [x1, x2] = value > 0 ? [right, right + value] : [left + value, left];
      if (value > 0) right = x2;
      else left = x1;
      return [{ x1, x2, x: (x1 + x2) / 2, y: name, fill: fillOf(part),
        said: `${line.label}, ${name} request: ${written(split[quantile].tpot_ms)} ms\n${part.name}: ${written(value)} ms` }];
    });
  });
}

const KINDS = {
  answer: { panels: answerPanels, least: 360 },
  lines: { panels: linePanels, least: 300 },
  pairs: { panels: pairPanels, least: 300 },
  sides: { panels: sidePanels, least: 260 },
  stack: { panels: stackPanels, least: Math.max(260, 70 + 30 * data.x.values.length) },
  split: { panels: splitPanels, least: 330 },
};

/** The values of a figure as a table, of the lines shown. */
function valuesOf(figure, host) {
  const keys = figure.keys.map(keyOf).filter((key) => shownLines().some((line) => line.columns[key]));
  if (figure.kind === "split") return splitValues(figure, host);
  const rows = shownLines().flatMap((line) => line.at.map((at, i) => [
    line.label, { text: at, value: data.x.numeric ? Number(at) : null },
    ...keys.map((key) => {
      const value = line.columns[key]?.[i] ?? null;
      const { low, high } = line.bounds[key] ?? {};
      return { text: within(value, low?.[i], high?.[i]), value };
    }),
  ]));
  return fillTable(host, `${headOf(figure)}: values`, ["line", data.x.noun, ...keys.map(headed)], rows, 2);
}

function splitValues(figure, host) {
  const rows = shownLines().flatMap((line) => line.splits.flatMap((split, i) => split === null ? [] :
    Object.keys(split).map((quantile) => [
      line.label, { text: line.at[i], value: data.x.numeric ? Number(line.at[i]) : null }, quantile.toUpperCase(),
      ...figure.parts.map(({ key }) => ({ text: written(split[quantile][key]), value: split[quantile][key] })),
    ])));
  const headings = ["line", data.x.noun, "request", ...figure.parts.map((part) => part.name)];
  return fillTable(host, `${headOf(figure)}: milliseconds per token`, headings, rows, 3);
}

const headOf = (figure) => figure.title.replace(/[?:].*/, "");

/** Draws one figure, and its table where it is unfolded. */
function draw(figure) {
  const host = byId(`fig-${figure.id}`);
  const { panels, least } = KINDS[figure.kind];
  const made = panels(figure);
  if (made.length && (figure.kind === "stack" || figure.kind === "split" || made.some((p) => p.points.length))) {
    drawPanels(host, made, least);
  } else {
    host.querySelector(".panels").replaceChildren(element("p", { class: "none" }, "No line with a value here is chosen."));
  }
  if (host.querySelector("details").open) valuesOf(figure, host.querySelector(".values"));
}

const drawAll = () => data.figures.forEach(draw);

/** A bit of the line as it looks in the figures. */
function swatch(line) {
  const svg = d3.create("svg").attr("width", 34).attr("height", 14).attr("viewBox", "-17 -7 34 14").attr("aria-hidden", "true");
  const open = OPEN.has(line.marker);
  svg.append("line").attr("x1", -16).attr("x2", 16).attr("stroke-dasharray", line.dashes || null)
    .attr("stroke", colourOf(line)).attr("stroke-width", 1.8);
  svg.append("path").attr("d", d3.symbol(SYMBOLS[line.marker], 42)()).attr("stroke", colourOf(line))
    .attr("stroke-width", 1.5).attr("fill", open ? "none" : colourOf(line));
  return svg.node();
}

/** A box in the fill of a part. */
function box(part) {
  const svg = d3.create("svg").attr("width", 16).attr("height", 12).attr("aria-hidden", "true");
  svg.append("rect").attr("x", 0.5).attr("y", 0.5).attr("width", 15).attr("height", 11)
    .attr("style", `fill: ${fillOf(part)}; stroke: var(--edge)`);
  return svg.node();
}

function lineChoices() {
  if (!byId("lines")) return;
  const choices = data.slices[0].lines.map((line) => {
    const input = element("input", { type: "checkbox", checked: true, value: line.label });
    input.addEventListener("change", () => {
      state.hidden[input.checked ? "delete" : "add"](line.label);
      drawAll();
    });
    return element("label", {}, input, swatch(line), line.label);
  });
  byId("lines").replaceChildren(...choices);
  byId("show-all").addEventListener("click", () => {
    state.hidden.clear();
    byId("lines").querySelectorAll("input").forEach((input) => { input.checked = true; });
    drawAll();
  });
}

/** What only one figure has: the names of its parts, and its own switch. */
function ownKeys(figure) {
  const keys = byId(`fig-${figure.id}`).querySelector(".keys");
  if (figure.parts) {
    const has = (line, { key }) => (figure.kind === "split"
      ? line.splits.some((split) => split && Object.values(split).some((parts) => parts[key]))
      : line.columns[key]?.some((value) => value));
    const used = figure.parts.filter((part) => data.slices.some(({ lines }) => lines.some((line) => has(line, part))));
    keys.append(...used.map((part) => element("span", { class: "key" }, box(part), part.name)));
  }
  if (figure.kind === "stack") {
    const input = element("input", { type: "checkbox" });
    input.addEventListener("change", () => { state.share = input.checked; draw(figure); });
    keys.append(element("label", { class: "switch" }, input, "as shares"));
  }
  if (figure.kind === "split" && data.x.values.length > 1) {
    const has = data.x.values.filter((value) =>
      data.slices.some(({ lines }) => lines.some((line) => line.splits[line.at.indexOf(value)])));
    const select = element("select", {}, ...has.map((value) => element("option", { value }, value)));
    state.load = has.at(-1);
    select.value = state.load;
    select.addEventListener("change", () => { state.load = select.value; draw(figure); });
    keys.append(element("label", { class: "switch" }, `${data.x.noun} `, select));
  }
}

lineChoices();
data.figures.forEach(ownKeys);
data.figures.forEach((figure) => {
  const details = byId(`fig-${figure.id}`).querySelector("details");
  details.addEventListener("toggle", () => {
    if (details.open) valuesOf(figure, details.querySelector(".values"));
  });
});
byId("controls").hidden = byId("controls").childElementCount === 0;
byId("controls").addEventListener("submit", (event) => event.preventDefault());
document.querySelectorAll("input[name=statistic]").forEach((input) => {
  input.addEventListener("change", () => { state.statistic = input.value; drawAll(); });
});
byId("slice")?.addEventListener("change", (event) => { state.slice = Number(event.target.value); drawAll(); });
onWidth(drawAll);
