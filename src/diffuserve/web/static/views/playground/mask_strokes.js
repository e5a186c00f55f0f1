// Strokes of a mask: { radius, erases, points }, with the radius in parts of the image's width and points in
// parts of its sides.

export const NO_STROKES = [];
export const CLEARED = { clears: true };
const TINT = "#e0218a"; // seen on light pictures and on dark ones
const STEP = 0.02; // of an arrow key, in parts of a side

// Return whether anything is painted; what erases alone leaves nothing.
export const isPainted = (strokes) =>
  strokes.slice(strokes.lastIndexOf(CLEARED) + 1).some(({ erases }) => !erases);

export const moved = ({ x, y }, [across, down]) => ({ x: within(x + STEP * across), y: within(y + STEP * down) });

const within = (part) => Math.min(1, Math.max(0, part));

// Draw all strokes anew.
export function draw(canvas, strokes) {
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  for (const stroke of strokes.slice(strokes.lastIndexOf(CLEARED) + 1))
    stroke.points.forEach((point, place) =>
      drawSegment(canvas, { ...stroke, points: stroke.points.slice(Math.max(0, place - 1), place) }, point),
    );
}

// Draw a stroke from its last point to the next one.
export function drawSegment(canvas, { radius, erases, points }, next) {
  const { width, height } = canvas;
  const context = canvas.getContext("2d");
  const from = points.at(-1) ?? next;
  context.globalCompositeOperation = erases ? "destination-out" : "source-over";
  Object.assign(context, { strokeStyle: TINT, lineCap: "round", lineWidth: 2 * radius * width });
  context.beginPath();
  context.moveTo(from.x * width, from.y * height);
  context.lineTo(next.x * width + 0.01, next.y * height); // a click is a dot
  context.stroke();
}

// Return a canvas with the mask: white, which is what changes, on black.
export function maskOf(canvas) {
  const { width, height } = canvas;
  const whole = Object.assign(document.createElement("canvas"), { width, height });
  const context = whole.getContext("2d");
  const fill = (fillStyle, globalCompositeOperation) => {
    Object.assign(context, { fillStyle, globalCompositeOperation });
    context.fillRect(0, 0, width, height);
  };
  context.drawImage(canvas, 0, 0);
  fill("white", "source-in");
  fill("black", "destination-over");
  return whole;
}
