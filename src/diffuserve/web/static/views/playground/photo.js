// Pictures as the server takes them: photos of phones are turned and scaled down before they are sent.

const SENT_AS_IS = ["image/png", "image/jpeg", "image/webp"];
const HEIC = /\.hei[cf]$/i;
const MOST_BYTES = 4 * 2 ** 20; // of a file that is sent as it is, where its sides are no longer than wanted
const LEAST_SIDE = 1024; // to which a longer picture is scaled at most, whatever the model draws

const isHeic = ({ type, name }) => /^image\/hei[cf]/.test(type) || HEIC.test(name ?? "");

// Browsers that know no HEIC give such files no type.
export const isPicture = (file) => file.type.startsWith("image/") || isHeic(file);

export const HEIC_REMEDY =
  "This browser cannot read HEIC photos. Choose a JPEG: on an iPhone, Settings › Camera › Formats › Most Compatible, or share the photo as JPEG.";

// Return the file to upload for a picture: itself, where it is one that the server reads and no larger than the
// model's `longest` side is worth; else a smaller copy. What no browser reads is left to the server's refusal.
export async function sendable(file, longest) {
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" }).catch(() => null);
  if (!bitmap && isHeic(file)) throw new Error(HEIC_REMEDY);
  if (!bitmap) return file;
  const size = fitted(bitmap, Math.max(longest, LEAST_SIDE));
  const isFine = SENT_AS_IS.includes(file.type) && file.size <= MOST_BYTES && size.width === bitmap.width;
  const smaller = isFine ? file : await copyOf(bitmap, size, file);
  bitmap.close();
  return smaller;
}

// Return the size of a picture whose longer side is at most `longest`.
export function fitted({ width, height }, longest) {
  const scale = Math.min(1, longest / Math.max(width, height));
  return { width: Math.round(width * scale), height: Math.round(height * scale) };
}

// A photo becomes a JPEG; what may be transparent, or has hard edges, stays a PNG.
function copyOf(bitmap, size, file) {
  const canvas = Object.assign(document.createElement("canvas"), size);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, size.width, size.height);
  const type = ["image/png", "image/webp", "image/gif"].includes(file.type) ? "image/png" : "image/jpeg";
  const name = (file.name ?? "image").replace(/\.[^.]*$/, "") + (type === "image/png" ? ".png" : ".jpg");
  return new Promise((resolve) =>
    canvas.toBlob((blob) => resolve(blob ? new File([blob], name, { type }) : file), type, 0.92),
  );
}
