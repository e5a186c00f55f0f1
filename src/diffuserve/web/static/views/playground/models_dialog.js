// The menu of models for operators: what each worker can have, with size, license and state, and to have it.
import { html, signal, useEffect, useState } from "../../vendor/ui.js";
import { request } from "../../api.js";
import { Dialog } from "../../components/dialog.js";
import { Problem } from "../../components/problem.js";
import { ProgressBar } from "../../components/progress_bar.js";
import { bytes } from "../operations/numbers.js";
import { chooseModel, loadServer } from "./state.js";

const LOOK_MS = 1500;
const ENDS = ["loaded", "failed", "canceled"];

const workers = signal(null); // those that are there, with the orders that are kept for them

export function ModelsMenu() {
  const [isOpen, open] = useState(false);
  useEffect(() => {
    if (!isOpen) return undefined;
    look();
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  }, [isOpen]);
  const close = () => {
    open(false);
    loadServer().catch(() => null); // the banner tells
  };
  return html`
    <button type="button" class="small models-button" onClick=${() => open(true)}>More models…</button>
    ${
      isOpen &&
      html`
      <${Dialog} isOpen title="Models" onClose=${close}>
        <div class="models">${workers.value && html`<${Workers} onChoose=${close} />`}</div>
      <//>`
    }`;
}

const look = () =>
  request("GET", "v1/workers")
    .then(({ data }) => Promise.all(data.filter(({ state }) => state !== "lost").map(withKept)))
    .then((found) => (workers.value = found), () => null);

const withKept = async (worker) => {
  const { data } = worker.report.orders ? await request("GET", `v1/workers/${worker.id}/order`) : { data: [] };
  return { ...worker, kept: data.map(({ model }) => model) };
};

function Workers({ onChoose }) {
  const takers = workers.value.filter(({ report }) => report.orders);
  if (!takers.length)
    return html`<p>No worker takes orders of models. Start one with <code>--model-orders</code>, and it can
      fetch and load other models from here.</p>`;
  return takers.map((worker) => html`<${Worker} key=${worker.id} worker=${worker} onChoose=${onChoose} />`);
}

function Worker({ worker, onChoose }) {
  const { models, room_bytes: room, progress } = worker.report.orders;
  const [error, setError] = useState(null);
  const [ordered, setOrdered] = useState(null); // until the worker tells of it, at its next heartbeat
  useEffect(() => {
    setError(null);
    setOrdered(null);
  }, [progress?.id, progress?.state]);
  const isTold = ordered === null || ordered.id === progress?.id;
  const shown = isTold ? progress : { ...ordered, state: "ordered" };
  const isBusy = shown !== null && !ENDS.includes(shown.state);
  const act = (method, body, query = "") => {
    setError(null);
    return request(method, `v1/workers/${worker.id}/order${query}`, body).then((given) => {
      setOrdered(given); // null once it is canceled
      return look();
    }, setError);
  };
  const [asked, ask] = useState(null); // whose license has to be accepted
  const order = (model) => {
    if (model.needs_consent && !model.is_here && asked !== model) return ask(model);
    ask(null);
    return act("POST", { model: model.name, accept_license: asked === model });
  };
  return html`
    <section aria-label=${`Models of ${worker.name || worker.id}`}>
      <h3>${worker.name || worker.id}</h3>
      ${room !== null && html`<p class="hint">Its models may have ${bytes(room)} of memory together.</p>`}
      ${shown && html`<${Progress} progress=${shown} onCancel=${isBusy ? () => act("DELETE") : null} />`}
      <${Problem} error=${error} />
      ${
        asked &&
        html`
        <div class="order" role="alert">
          <p>${asked.name} is under the ${asked.license}, which restricts what images may be used for.</p>
          <button type="button" class="small" onClick=${() => order(asked)}>Accept and fetch</button>
          <button type="button" class="small" onClick=${() => ask(null)}>Leave it</button>
        </div>`
      }
      <ul>
        ${models.map(
          (model) => html`
          <${Model} key=${model.name} model=${model} worker=${worker} isBusy=${isBusy}
            onOrder=${() => order(model)} onChoose=${onChoose}
            onForget=${() => act("DELETE", undefined, `?model=${encodeURIComponent(model.name)}`)} />`,
        )}
      </ul>
    </section>`;
}

function Progress({ progress: { model, state, bytes_read: read, bytes_total: total, reason }, onCancel }) {
  const told = total ? `Fetching ${model}: ${bytes(read)} of ${bytes(total)}` : `Fetching ${model}`;
  const words = { ordered: `Ordered ${model}`, fetching: told, loading: `Loading ${model}`, loaded: `${model} is loaded`, canceled: `${model}: canceled` };
  return html`
    <div class="order" role="status">
      ${onCancel
        ? html`<${ProgressBar} label="Progress of the order" fraction=${total ? read / total : null} text=${words[state]} />`
        : html`<p class=${state === "failed" ? "problem" : ""}>${words[state] ?? `${model}: ${reason}`}</p>`}
      ${onCancel && html`<button type="button" class="small" onClick=${onCancel}>Cancel</button>`}
    </div>`;
}

function Model({ model, worker, isBusy, onOrder, onChoose, onForget }) {
  const { room_bytes: room } = worker.report.orders;
  const names = [model.name, model.hub_id.split("/").at(-1)]; // what it is served as
  const served = worker.models.find((name) => names.includes(name));
  const isResident = served !== undefined && worker.report.resident_models.includes(served);
  const isTooLarge = model.num_bytes !== null && room !== null && model.num_bytes > room;
  const size = model.num_bytes === null ? "size not known yet" : bytes(model.num_bytes);
  const misfit = `does not fit here: ${size}, and models here may have ${bytes(room)}`;
  const state = isResident ? "in memory" : isTooLarge ? misfit : model.is_here ? "on disk" : "not fetched yet";
  const isKept = worker.kept.includes(model.name);
  const choose = () => {
    chooseModel(served);
    onChoose();
  };
  return html`
    <li>
      <div>
        <b>${model.name}</b>
        <p class="hint">${model.makes} · ${size} · ${model.license} · ${state}${isKept && " · loaded again after a restart"}</p>
      </div>
      ${served && html`<button type="button" class="small" onClick=${choose} aria-label=${`Use ${model.name}`}>Use</button>`}
      ${isKept && html`<button type="button" class="small" onClick=${onForget} aria-label=${`Do not load ${model.name} again`}>Forget</button>`}
      ${
        !isResident &&
        html`<button type="button" class="small" disabled=${isBusy || isTooLarge} onClick=${onOrder}
          aria-label=${`${verbOf(model)} ${model.name}`}>${verbOf(model)}</button>`
      }
    </li>`;
}

const verbOf = ({ is_here: isHere }) => (isHere ? "Load" : "Fetch and load");
