// The values of a chart as a table, for those who do not see the canvas: a row a minute, the newest first.
import { html } from "../../vendor/ui.js";
import { clock } from "./plot.js";

export function ChartTable({ title, series, points, format }) {
  return html`
    <div class="scroll" role="region" aria-label=${title} tabindex="0">
      <table>
        <thead>
          <tr><th scope="col">Time</th>${series.map(({ label }) => html`<th scope="col">${label}</th>`)}</tr>
        </thead>
        <tbody>
          ${eachMinute(points).map(
            (point) => html`
              <tr key=${point.time}>
                <th scope="row">${clock(point.time)}</th>
                ${series.map(({ valueOf }) => html`<td>${format(valueOf(point))}</td>`)}
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}

// Return the last point of each minute, the newest first.
function eachMinute(points) {
  const last = new Map(points.map((point) => [Math.floor(point.time / 60), point]));
  return [...last.values()].reverse();
}
