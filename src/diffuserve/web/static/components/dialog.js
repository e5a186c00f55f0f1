// Dialog({ isOpen, title, onClose, children }): a native modal dialog; Escape, its cross and a click beside it
// call onClose. Confirm({ isOpen, title, action, onConfirm, onClose, children }): one with a button that does
// it. `onConfirm` may return a promise: the dialog shows its refusal, and closes when it is fulfilled.
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { Problem } from "./problem.js";

export function Dialog({ isOpen, title, onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (isOpen && !dialog.current.open) dialog.current.showModal();
    if (!isOpen && dialog.current.open) dialog.current.close();
  }, [isOpen]);
  return html`
    <dialog ref=${dialog} aria-label=${title} onClose=${onClose}
      onClick=${(event) => event.target === dialog.current && onClose()}>
      <div class="dialog">
        <header>
          <h2>${title}</h2>
          <button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button>
        </header>
        ${isOpen && children}
      </div>
    </dialog>`;
}

export function Confirm({ isOpen, title, action, onConfirm, onClose, children }) {
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const confirm = async () => {
    setBusy(true);
    setError(null);
    try {
      await onConfirm();
      onClose();
    } catch (refusal) {
      setError(refusal);
    }
    setBusy(false);
  };
  return html`
    <${Dialog} isOpen=${isOpen} title=${title} onClose=${onClose}>
      ${children}
      <${Problem} error=${error} />
      <footer>
        <button type="button" onClick=${onClose}>Keep</button>
        <button type="button" class="danger" disabled=${isBusy} onClick=${confirm}>${action}</button>
      </footer>
    <//>`;
}
