// One question before what cannot be taken back: `ask` opens it, `Confirm` shows it.
import { html, signal, useEffect, useRef, useSignal } from "../../vendor/ui.js";

// { title, text, label, act }: `act` returns a promise, and is called if the answer is yes.
const question = signal(null);

export const ask = (asked) => (question.value = asked);

export const Confirm = () => question.value && html`<${Question} key=${question.value.title} ...${question.value} />`;

function Question({ title, text, label, act }) {
  const dialog = useRef(null);
  const isBusy = useSignal(false);
  const problem = useSignal("");
  useEffect(() => dialog.current.showModal(), []);
  const close = () => (question.value = null);
  const confirm = async () => {
    isBusy.value = true;
    try {
      await act();
      close();
    } catch (error) {
      problem.value = error.message;
      isBusy.value = false;
    }
  };
  return html`
    <dialog ref=${dialog} class="question" aria-labelledby="question-title" onClose=${close}>
      <h2 id="question-title">${title}</h2>
      <p>${text}</p>
      ${problem.value && html`<p class="problem" role="alert">${problem.value}</p>`}
      <div class="buttons">
        <button onClick=${close} disabled=${isBusy.value}>Keep it</button>
        <button class="primary" onClick=${confirm} disabled=${isBusy.value}>${label}</button>
      </div>
    </dialog>
  `;
}
