// The mask painter: the image as large as the window has room for, and a brush that paints what is to change.
import { html, useEffect, useRef, useState } from "../../vendor/ui.js";
import { CLEARED, NO_STROKES, draw, drawSegment, isPainted, maskOf, moved } from "./mask_strokes.js";

const RADII = { min: 1, max: 25, usual: 6 }; // percent of the image's width
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const HELP = "Arrows move the brush, Space paints, Shift with arrows paints along, [ and ] change its size.";

// `onDone` receives { blob, strokes }, with a PNG of the image's size that is white where it was painted, or
// null. With the `strokes` of an earlier mask one goes on from there.
export function MaskEditor({ image, strokes: earlier, onDone }) {
  const dialog = useRef(null);
  const canvas = useRef(null);
  const [size, setSize] = useState(image.width ? { width: image.width, height: image.height } : null);
  const [strokes, setStrokes] = useState(earlier ?? NO_STROKES);
  const [radius, setRadius] = useState(RADII.usual);
  const [erases, setErases] = useState(false);
  useEffect(() => dialog.current.showModal(), []);
  useEffect(() => size && draw(canvas.current, strokes), [strokes, size]);
  const measured = ({ target }) => size ?? setSize({ width: target.naturalWidth, height: target.naturalHeight });
  const add = (stroke) => setStrokes((before) => [...before, stroke]);
  const undo = () => setStrokes((before) => before.slice(0, -1));
  const grow = (by) => setRadius((before) => Math.min(RADII.max, Math.max(RADII.min, before + by)));
  // A button that is disabled by its own click would take the keys with it.
  const painting = (act) => () => {
    act();
    canvas.current.focus();
  };
  const finish = () => maskOf(canvas.current).toBlob((blob) => onDone({ blob, strokes }), "image/png");
  const press = (event) => {
    const isUndo = event.key === "z" && (event.ctrlKey || event.metaKey);
    if (isUndo) undo();
    else if (event.key === "[" || event.key === "]") grow(event.key === "]" ? 1 : -1);
    else return;
    event.preventDefault();
  };
  const isEmpty = !isPainted(strokes);
  return html`
    <dialog class="mask-editor" ref=${dialog} aria-label="Paint a mask" onClose=${() => onDone(null)} onKeyDown=${press}>
      <p class="hint" id="mask-help">Paint over what is to change. <span class="keys">${HELP}</span></p>
      <div class="mask-stage">
        <div class="mask-image" style=${size && fitting(size)}>
          <img src=${image.url} alt="" onLoad=${measured} />
          ${size && html`<${Surface} canvas=${canvas} size=${size} brush=${{ radius: radius / 100, erases }} onStroke=${add} />`}
        </div>
      </div>
      <div class="mask-tools">
        <label class="brush-size">Brush
          <input type="range" min=${RADII.min} max=${RADII.max} value=${radius}
            onInput=${({ target }) => setRadius(Number(target.value))} />
        </label>
        <button type="button" aria-pressed=${String(erases)} onClick=${() => setErases(!erases)}>Erase</button>
        <button type="button" disabled=${!strokes.length} onClick=${painting(undo)}>Undo</button>
        <button type="button" disabled=${isEmpty} onClick=${painting(() => add(CLEARED))}>Clear</button>
        <span class="mask-ends">
          <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
          <button type="button" class="primary" disabled=${isEmpty} onClick=${finish}>Use this mask</button>
        </span>
      </div>
    </dialog>`;
}

// As large as the stage allows, in the image's proportions.
const fitting = ({ width, height }) => ({
  aspectRatio: `${width} / ${height}`,
  width: `min(100cqw, calc(100cqh * ${width} / ${height}))`,
});

// What is painted on: a stroke is drawn while it is made, and added when the pointer is lifted.
function Surface({ canvas, size, brush, onStroke }) {
  const stroke = useRef(null);
  const [cursor, setCursor] = useState({ x: 0.5, y: 0.5 });
  useEffect(() => canvas.current.focus(), []);
  const advance = (place) => {
    setCursor(place);
    if (!stroke.current) return;
    drawSegment(canvas.current, stroke.current, place);
    stroke.current = { ...stroke.current, points: [...stroke.current.points, place] };
  };
  const begin = (event) => {
    event.currentTarget.setPointerCapture(event.pointerId);
    stroke.current = { ...brush, points: [] };
    advance(placeOf(event));
  };
  const end = () => {
    if (stroke.current) onStroke(stroke.current);
    stroke.current = null;
  };
  const press = (event) => {
    const step = MOVES[event.key];
    if (!step && event.key !== " ") return;
    event.preventDefault();
    const next = step ? moved(cursor, step) : cursor;
    if (event.key === " ") onStroke({ ...brush, points: [cursor] });
    else if (event.shiftKey) onStroke({ ...brush, points: [cursor, next] });
    setCursor(next);
  };
  return html`
    <canvas ref=${canvas} ...${size} tabindex="0" role="application" aria-label="Mask: paint what is to change"
      aria-describedby="mask-help" onPointerDown=${begin} onPointerMove=${(event) => advance(placeOf(event))}
      onPointerUp=${end} onPointerCancel=${end} onKeyDown=${press} />
    <i class="brush-ring ${brush.erases ? "erases" : ""}" aria-hidden="true" style=${ringOf(cursor, brush.radius)} />`;
}

const ringOf = ({ x, y }, radius) => ({ left: `${100 * x}%`, top: `${100 * y}%`, width: `${200 * radius}%` });

// Places are parts of the image's width and height.
function placeOf({ clientX, clientY, currentTarget }) {
  const { left, top, width, height } = currentTarget.getBoundingClientRect();
  return { x: (clientX - left) / width, y: (clientY - top) / height };
}
