// One question before what cannot be taken back: `ask` opens it, `Question` shows it.
import { html, signal } from "../../vendor/ui.js";
import { Confirm } from "../../components/dialog.js";

// { title, text, label, act }: `act` returns a promise, and is called if the answer is yes.
const question = signal(null);

export const ask = (asked) => (question.value = asked);

export function Question() {
  const { title = "", text = "", label = "", act } = question.value ?? {};
  return html`
    <${Confirm} isOpen=${question.value !== null} title=${title} action=${label} onConfirm=${act}
      onClose=${() => (question.value = null)}>
      <p>${text}</p>
    <//>
  `;
}
