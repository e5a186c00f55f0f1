// A uPlot canvas in a component: it follows its data, its width and the theme, and tells where the cursor is.
import { html, useEffect, useRef } from "../../vendor/ui.js";
import { uPlot } from "../../vendor/charts.js";
import { theme, token } from "./palette.js";

const HEIGHT = 170;
const FONT = "12px system-ui, sans-serif";
const DASH = [6, 4];
const LEAST_SECONDS = 600; // of the time axis: of a few points the clock would say the same minute again and again
const STEPS = [60, 120, 300, 600, 900, 1800, 3600]; // between two labels of the clock, in seconds
const shared = uPlot.sync("operations"); // one cursor for all charts: the same moment in each

// `data` is uPlot's: times in seconds, then the values of each series; `hidden` holds labels of hidden series;
// `top` is the end of the axis of values, where it has one.
export function Plot({ series, data, format, top, hidden, label, onCursor }) {
  const box = useRef(null);
  const plot = useRef(null);
  const drawnTheme = useRef(theme.value);
  useEffect(() => {
    const element = box.current; // the reference is empty when the observer is told of the end
    const chart = new uPlot(optionsOf({ series, format, top, width: element.clientWidth, onCursor }), data, element);
    plot.current = chart;
    const resized = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      chart.destroy();
    };
  }, []);
  useEffect(() => plot.current.setData(data), [data]);
  useEffect(() => {
    // Not as it is created: uPlot would forget which times it is about to show.
    if (drawnTheme.current !== theme.value) plot.current.redraw();
    drawnTheme.current = theme.value;
  }, [theme.value]);
  useEffect(() => showSeries(plot.current, series, hidden), [hidden]);
  return html`<div class="plot" role="img" aria-label=${label} ref=${box}></div>`;
}

function showSeries(chart, series, hidden) {
  series.forEach(({ label }, place) => {
    const show = !hidden.has(label);
    if (chart.series[place + 1].show !== show) chart.setSeries(place + 1, { show });
  });
}

function optionsOf({ series, format, top, width, onCursor }) {
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: shared.key }, points: { size: 7 } },
    scales: {
      x: { range: (_, first, last) => timeRange(first, last) },
      y: { range: (_, low, high) => [0, top ?? niceTop(high)] },
    },
    axes: [
      axis({ values: (_, times) => times.map(clock), incrs: STEPS, space: 70, size: 28 }),
      axis({ values: (_, values) => values.map(format), size: 58 }),
    ],
    series: [{}, ...series.map(seriesOptions)],
    hooks: { setCursor: [(chart) => onCursor(chart.cursor.idx ?? null)] },
  };
}

// Return the ends of the time axis, which is never shorter than ten minutes.
export const timeRange = (first, last) => [Math.min(first, last - LEAST_SECONDS), last];

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
  points: { show: false, size: 5, filter: (chart, place) => lonely(chart.data[place]) },
});

// Return the places of values between gaps, which no line would show.
export function lonely(values) {
  const isMissing = (value) => value === null || value === undefined;
  const places = values.map((_, place) => place);
  const alone = places.filter(
    (place) => !isMissing(values[place]) && isMissing(values[place - 1]) && isMissing(values[place + 1]),
  );
  return alone.length ? alone : null;
}

export const clock = (time) =>
  new Date(1000 * time).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
