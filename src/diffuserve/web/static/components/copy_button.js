// CopyButton({ text, label }): a button that puts a text into the clipboard, and says that it has.
import { html, useState } from "../vendor/ui.js";

const TOLD_MS = 2000;

export function CopyButton({ text, label = "Copy" }) {
  const [state, setState] = useState(label);
  const tell = (words) => {
    setState(words);
    setTimeout(() => setState(label), TOLD_MS);
  };
  const copy = () => copied(text).then(() => tell("Copied"), () => tell("Not copied"));
  return html`<button type="button" onClick=${copy}><span aria-live="polite">${state}</span></button>`;
}

// Browsers give the clipboard to secure pages alone; the older way works on others.
export async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  field.setAttribute("aria-hidden", "true");
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  if (!isDone) throw new Error("the browser did not copy");
  return undefined;
}
