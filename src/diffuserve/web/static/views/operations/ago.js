// How long ago something was, by the server's clock; the text ticks without rendering its row.
import { html, useComputed, useSignal } from "../../vendor/ui.js";
import { serverNow } from "./live.js";
import { seconds } from "./numbers.js";

export const sinceText = (past) => (past < 1 ? "now" : `${seconds(Math.round(past))} ago`);

export function Ago({ at }) {
  const time = useSignal(at);
  if (time.peek() !== at) time.value = at;
  const text = useComputed(() => sinceText(serverNow.value - Date.parse(time.value) / 1000));
  return html`<time datetime=${at} title=${at}>${text}</time>`;
}
