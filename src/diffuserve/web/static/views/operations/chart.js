// A chart with its title, a legend whose entries hide series, and the same values as a table.
import { html, useMemo, useSignal } from "../../vendor/ui.js";
import { ChartTable } from "./chart_table.js";
import { Plot } from "./plot.js";

// `points` are the history's, oldest first; `series` are { label, color, isDashed, valueOf(point) }.
export function Chart({ title, unit, series, points, format, top }) {
  const hidden = useSignal(new Set());
  const cursor = useSignal(null);
  const isTable = useSignal(false);
  const data = useMemo(() => dataOf(series, points), [points]);
  const place = cursor.value ?? points.length - 1;
  return html`
    <figure class="chart">
      <figcaption>
        <h3>${title}</h3> <span class="unit">${unit}</span>
        <button class="small" aria-pressed=${String(isTable.value)} aria-label=${`${title} as a table`}
          onClick=${() => (isTable.value = !isTable.value)}>Table</button>
      </figcaption>
      ${isTable.value
        ? html`<${ChartTable} title=${`${title}, ${unit}`} series=${series} points=${points} format=${format} />`
        : hasValues(data)
          ? html`<${Plot} series=${series} data=${data} format=${format} top=${top} hidden=${hidden.value}
              label=${summaryOf(title, unit, series, points, format)} onCursor=${(index) => (cursor.value = index)} />`
          : html`<p class="empty">No values yet</p>`}
      <${Legend} series=${series} point=${points[place]} format=${format} hidden=${hidden} />
    </figure>
  `;
}

const dataOf = (series, points) => [
  points.map((point) => point.time),
  ...series.map(({ valueOf }) => points.map((point) => valueOf(point) ?? null)),
];

const hasValues = ([, ...lines]) => lines.some((values) => values.some((value) => value !== null));

function summaryOf(title, unit, series, points, format) {
  const values = series.map(({ label, valueOf }) => `${label} ${format(valueOf(points.at(-1)))}`);
  return `${title} in the last hour, ${unit}. Now: ${values.join(", ")}`;
}

function Legend({ series, point, format, hidden }) {
  const toggle = (label) => {
    const next = new Set(hidden.value);
    if (!next.delete(label)) next.add(label);
    hidden.value = next;
  };
  return html`
    <ul class="legend">
      ${series.map(
        ({ label, color, isDashed, valueOf }) => html`
          <li key=${label}>
            <button class="plain" aria-pressed=${String(!hidden.value.has(label))} onClick=${() => toggle(label)}>
              <span class=${isDashed ? "line dashed" : "line"} style=${{ borderColor: `var(${color})` }}></span>
              ${label} <b>${point ? format(valueOf(point)) : "–"}</b>
            </button>
          </li>
        `,
      )}
    </ul>
  `;
}
