// The charts of the last hour.
import { html } from "../../vendor/ui.js";
import { Chart } from "./chart.js";
import { points } from "./history.js";
import { brief, percent, seconds } from "./numbers.js";

const outcome = (label, color, isDashed = false) => ({
  label,
  color,
  isDashed,
  valueOf: (point) => point.per_minute[label],
});
const field = (name, label, color, isDashed = false) => ({ label, color, isDashed, valueOf: (point) => point[name] });
const used = (name, color, isDashed = false) => ({
  label: name,
  color,
  isDashed,
  valueOf: (point) => point.device_seconds?.[name] ?? (point.device_seconds ? 0 : null),
});

const CHARTS = [
  {
    title: "Throughput",
    unit: "jobs per minute",
    format: brief,
    series: [
      outcome("succeeded", "--series-1"),
      outcome("failed", "--series-2", true),
      outcome("canceled", "--series-3"),
      outcome("expired", "--series-4", true),
    ],
  },
  {
    title: "Latency",
    unit: "seconds",
    format: seconds,
    series: [
      field("queue_p50", "queue p50", "--series-1"),
      field("queue_p95", "queue p95", "--series-1", true),
      field("run_p50", "run p50", "--series-2"),
      field("run_p95", "run p95", "--series-2", true),
    ],
  },
  {
    title: "Queue",
    unit: "jobs",
    format: brief,
    series: [field("num_ready", "waiting", "--series-1"), field("num_running", "running", "--series-2", true)],
  },
  {
    title: "Batch size",
    unit: "requests per step",
    format: brief,
    series: [field("mean_batch_size", "mean", "--series-1")],
  },
  {
    title: "Useful device share",
    unit: "of device time",
    format: percent,
    top: 1,
    series: [field("useful_share", "useful", "--series-3")],
  },
  {
    title: "Device-seconds by outcome",
    unit: "in 5 min",
    format: brief,
    series: [
      used("succeeded", "--series-1"),
      used("denoised", "--series-3"),
      used("queued", "--series-4", true),
      used("failed", "--series-2", true),
      used("canceled", "--series-5"),
    ],
  },
];

export function Charts() {
  return html`
    <section aria-labelledby="charts-title">
      <h2 id="charts-title">Last hour</h2>
      <div class="charts">
        ${CHARTS.map((chart) => html`<${Chart} key=${chart.title} ...${chart} points=${points.value} />`)}
      </div>
    </section>
  `;
}
