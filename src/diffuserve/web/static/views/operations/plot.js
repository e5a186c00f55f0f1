// A uPlot canvas in a component: it follows its data, its width and the theme, and tells where the cursor is.
import { html, useEffect, useRef } from "../../vendor/ui.js";
import { uPlot } from "../../vendor/charts.js";
import { theme, token } from "./palette.js";

const HEIGHT = 170;
const FONT = "12px system-ui, sans-serif";
const DASH = [6, 4];
const shared = uPlot.sync("operations"); // one cursor for all charts: the same moment in each

// `data` is uPlot's: times in seconds, then the values of each series; `hidden` holds labels of hidden series.
export function Plot({ series, data, format, hidden, label, onCursor }) {
  const box = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    const element = box.current; // the reference is empty when the observer is told of the end
    const chart = new uPlot(optionsOf(series, format, element.clientWidth, onCursor), data, element);
    plot.current = chart;
    const resized = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      chart.destroy();
    };
  }, []);
  useEffect(() => plot.current.setData(data), [data]);
  useEffect(() => plot.current.redraw(), [theme.value]);
  useEffect(() => showSeries(plot.current, series, hidden), [hidden]);
  return html`<div class="plot" role="img" aria-label=${label} ref=${box}></div>`;
}

function showSeries(chart, series, hidden) {
  series.forEach(({ label }, place) => {
    const show = !hidden.has(label);
    if (chart.series[place + 1].show !== show) chart.setSeries(place + 1, { show });
  });
}

function optionsOf(series, format, width, onCursor) {
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: shared.key }, points: { size: 7 } },
    scales: { y: { range: (_, low, high) => [0, niceTop(high)] } },
    axes: [axis({ values: (_, times) => times.map(clock), space: 70 }), axis({ values: (_, values) => values.map(format), size: 58 })],
    series: [{}, ...series.map(seriesOptions)],
    hooks: { setCursor: [(chart) => onCursor(chart.cursor.idx ?? null)] },
  };
}

const niceTop = (high) => (high > 0 ? high * 1.1 : 1);

const axis = (options) => ({
  stroke: () => token("--muted"),
  grid: { stroke: () => token("--line"), width: 1 },
  ticks: { show: false },
  font: FONT,
  ...options,
});

const seriesOptions = ({ label, color, isDashed }) => ({
  label,
  stroke: () => token(color),
  width: 2,
  dash: isDashed ? DASH : undefined,
  points: { show: false },
});

export const clock = (time) =>
  new Date(1000 * time).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
