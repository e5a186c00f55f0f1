// A brush that paints the part of an image that is to change.
import { html, useRef, useState } from "../../vendor/ui.js";

// `onDone` receives the mask as a PNG of the image's size, white where it was painted, or null.
export function MaskBrush({ image, onDone }) {
  const canvas = useRef(null);
  const last = useRef(null);
  const [size, setSize] = useState(image.width ? { width: image.width, height: image.height } : null);
  const [radius, setRadius] = useState(6);
  const paint = (event) => {
    if (!last.current) return;
    const next = placeOf(event, canvas.current);
    stroke(canvas.current, last.current, next, radius / 100);
    last.current = next;
  };
  const start = (event) => {
    canvas.current.setPointerCapture(event.pointerId);
    last.current = placeOf(event, canvas.current);
    paint(event);
  };
  const finish = () => onBlack(canvas.current).toBlob(onDone, "image/png");
  const measured = ({ target }) =>
    size ?? setSize({ width: target.naturalWidth, height: target.naturalHeight });
  return html`
    <div class="brush">
      <div class="brush-stage">
        <img src=${image.url} alt="" onLoad=${measured} />
        ${
          size &&
          html`<canvas ref=${canvas} ...${size} role="img" aria-label="Mask: paint what is to change"
          onPointerDown=${start} onPointerMove=${paint} onPointerUp=${() => (last.current = null)} />`
        }
      </div>
      <label class="brush-size">Brush
        <input type="range" min="2" max="20" value=${radius}
          onInput=${({ target }) => setRadius(Number(target.value))} />
      </label>
      <div class="row">
        <button type="button" class="primary" onClick=${finish}>Use this mask</button>
        <button type="button" onClick=${() => onDone(null)}>Cancel</button>
      </div>
    </div>`;
}

function placeOf(event, canvas) {
  const shown = canvas.getBoundingClientRect();
  const x = ((event.clientX - shown.left) / shown.width) * canvas.width;
  const y = ((event.clientY - shown.top) / shown.height) * canvas.height;
  return { x, y };
}

function stroke(canvas, from, to, part) {
  const context = canvas.getContext("2d");
  Object.assign(context, { strokeStyle: "white", lineCap: "round", lineWidth: 2 * part * canvas.width });
  context.beginPath();
  context.moveTo(from.x, from.y);
  context.lineTo(to.x + 0.01, to.y); // a click is a dot
  context.stroke();
}

// The server stores what is transparent as white, and white is what changes.
function onBlack(canvas) {
  const whole = Object.assign(document.createElement("canvas"), {
    width: canvas.width,
    height: canvas.height,
  });
  const context = whole.getContext("2d");
  context.fillRect(0, 0, whole.width, whole.height);
  context.drawImage(canvas, 0, 0);
  return whole;
}
