"use strict";
// The difference between two runs, a panel a latency, with intervals.

const state = { statistic: "mean", unit: "percent" };
const metrics = [...new Set(data.rows.map((row) => row.metric))];
const names = [...new Set(data.rows.map((row) => row.point))];
const verdict = (row) => row.verdict;
const COLOURS = { "B faster": "var(--line-0)", "B slower": "var(--line-1)", "not settled": "var(--quiet)", identical: "var(--quiet)" };
const SYMBOLS = { "B faster": d3.symbolCircle, "B slower": d3.symbolTriangle, "not settled": d3.symbolCircle, identical: d3.symbolCircle };

/** Panels of differences, one a latency, the same scale in each where it is per cent. */
function panels(width) {
  const scaled = (row, value) => (state.unit === "percent" ? (row.a ? (100 * value) / row.a : 0) : value);
  const chosen = data.rows.filter((row) => row.statistic === state.statistic).map((row) => ({
    ...row, x: scaled(row, row.b - row.a), y: row.point, left: scaled(row, row.low), right: scaled(row, row.high),
  }));
  const unit = state.unit === "percent" ? "%" : "ms";
  for (const row of chosen) {
    row.said = `${row.point}\n${row.name}: A ${written(row.a)}, B ${written(row.b)} ms\n` +
      `B - A: ${written(row.x)} ${unit} (${written(row.left)} to ${written(row.right)})\n${verdict(row)}`;
  }
  const wide = Math.max(...names.map((name) => name.length));
  const margin = 6.4 * wide + 14;
  const beside = names.length > 1 && margin < 0.5 * width;
  return metrics.map((metric) => {
    const rows = chosen.filter((row) => row.metric === metric);
    const pool = state.unit === "percent" ? chosen : rows;
    return {
      title: `${rows[0].name.charAt(0).toUpperCase()}${rows[0].name.slice(1)} (${state.unit === "percent" ? "% of A" : "ms"})`,
      marks: [...differenceMarks(rows), ...(names.length > 1 && !beside ? [aboveMarks()] : [])], points: rows,
      options: {
        height: 70 + (beside || names.length === 1 ? 22 : 36) * names.length, marginLeft: beside ? margin : 16,
        x: { domain: domainOf(pool), ticks: 5, label: null, grid: true, tickFormat: written },
        y: { type: "point", domain: names, label: null, padding: 0.8, axis: beside ? "left" : null },
      },
    };
  });
}

/** The points' names over their rows, where there is no room beside them. */
function aboveMarks() {
  return Plot.text(names, {
    y: (name) => name, text: (name) => name, frameAnchor: "left", dy: -14, textAnchor: "start", fill: "var(--quiet)",
    stroke: "var(--ground)", strokeWidth: 4,
  });
}

function domainOf(rows) {
  const ends = rows.flatMap((row) => [row.left, row.right, row.x, 0]);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const beyond = 0.06 * (high - low) || 1;
  return [low - beyond, high + beyond];
}

function differenceMarks(rows) {
  const groups = Object.keys(COLOURS).map((said) => rows.filter((row) => verdict(row) === said)).filter((g) => g.length);
  return [
    Plot.ruleX([0], { stroke: "currentColor" }),
    ...groups.flatMap((group) => {
      const said = verdict(group[0]);
      return [
        Plot.ruleY(group, { y: "y", x1: "left", x2: "right", stroke: COLOURS[said], strokeWidth: 2, strokeOpacity: 0.7 }),
        Plot.dot(group, {
          x: "x", y: "y", r: 4.2, symbol: SYMBOLS[said], stroke: COLOURS[said], strokeWidth: 1.6,
          fill: said === "not settled" || said === "identical" ? "var(--ground)" : COLOURS[said],
        }),
      ];
    }),
  ];
}

function drawAll() {
  const host = byId("fig-differences");
  const width = host.clientWidth;
  const least = names.length > 1 ? 460 : 300;
  drawPanels(host, panels(width / columnsOf(metrics.length, width, least)), least);
}

for (const name of ["statistic", "unit"]) {
  document.querySelectorAll(`input[name=${name}]`).forEach((input) => {
    input.addEventListener("change", () => { state[name] = input.value; drawAll(); });
  });
}
byId("controls").hidden = false;
byId("controls").addEventListener("submit", (event) => event.preventDefault());
onWidth(drawAll);
