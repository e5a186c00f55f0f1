// Five figures of the moment: queue, throughput, latency, device share, failures.
import { html } from "../../vendor/ui.js";
import { part } from "./live.js";
import { Meter } from "./meter.js";
import { brief, count, percent, plural, seconds } from "./numbers.js";

const queue = part("queue");
const throughput = part("throughput");
const latency = part("latency");
const batch = part("batch");
const failures = part("failures");

export const Tiles = () => html`
  <dl class="tiles">
    <${QueueTile} /><${ThroughputTile} /><${LatencyTile} /><${DeviceTile} /><${FailuresTile} />
  </dl>
`;

const Tile = ({ title, value, unit, children, tone = "" }) => html`
  <div class="tile ${tone}">
    <dt>${title}</dt>
    <dd><b>${value}</b> <span>${unit}</span></dd>
    <dd class="detail">${children}</dd>
  </div>
`;

function QueueTile() {
  const { num_ready: ready, num_running: running, num_delayed: delayed, work_seconds: work } = queue.value;
  const later = delayed ? `, ${count(delayed)} retried later` : "";
  return html`
    <${Tile} title="Queue" value=${count(ready)} unit=${ready === 1 ? "job waits" : "jobs wait"}>
      ${ready ? `${seconds(work)} of work, ` : ""}${count(running)} running${later}
    <//>
  `;
}

function ThroughputTile() {
  const { succeeded, ...others } = throughput.value.per_minute;
  const rest = Object.entries(others).filter(([, number]) => number > 0);
  return html`
    <${Tile} title="Throughput" value=${brief(succeeded)} unit="jobs/min">
      ${rest.length ? rest.map(([name, number]) => `${brief(number)} ${name}`).join(", ") : "none failed in the last minute"}
    <//>
  `;
}

function LatencyTile() {
  const { queue_p50: queued, run_p50: run, run_p95: slow, num_jobs: number } = latency.value;
  return html`
    <${Tile} title="Latency" value=${seconds(run)} unit="to run">
      ${number ? `95% within ${seconds(slow)}; median wait ${seconds(queued)}` : "no job succeeded in the last 5 min"}
    <//>
  `;
}

function DeviceTile() {
  const { useful_share: share, mean_batch_size: size, mean_step_seconds: step } = batch.value;
  return html`
    <${Tile} title="Useful device share" value=${percent(share)} unit="of device time">
      ${share !== null && html`<${Meter} share=${share} />`}
      ${size === null ? "no steps lately" : `batches of ${brief(size)}, ${seconds(step)} a step`}
    <//>
  `;
}

function FailuresTile() {
  const number = failures.value.reduce((sum, group) => sum + group.count, 0);
  const codes = failures.value.length;
  return html`
    <${Tile} title="Failures" value=${count(number)} unit="in the last hour" tone=${number ? "warning" : ""}>
      ${number ? `with ${plural(codes, "error code")}` : "none"}
    <//>
  `;
}
