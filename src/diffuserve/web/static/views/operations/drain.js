// Drain a worker: it takes no more jobs, finishes those that it holds, and ends.
import { request } from "../../api.js";
import { ask } from "./confirm.js";
import { plural } from "./numbers.js";

export function askToDrain({ id, name, num_leases: held }) {
  const first = held ? `It finishes its ${plural(held, "job")} and ends.` : "It ends at once, since it holds no job.";
  ask({
    title: `Drain ${name || id}?`,
    text: `${first} It takes no more jobs; only a new worker does.`,
    label: "Drain the worker",
    act: () => request("POST", `v1/workers/${id}/drain`),
  });
}
