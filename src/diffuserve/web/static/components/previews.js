// Previews of a job's images while they are drawn: by the place of the image, the newest of each.
import { html } from "../vendor/ui.js";
import { urlOf } from "../router.js";

// Return the previews with that of an event of the type `preview`.
export const withPreview = (previews, { image = 0, b64 }) => ({
  ...previews,
  [image]: `data:image/png;base64,${b64}`,
});

// The clip itself, growing while it is decoded.
export const LiveClip = ({ job }) => html`
  <video class="preview" src=${urlOf(`v1/jobs/${job.id}/live`)} autoplay muted playsinline
    aria-label="The clip so far" />`;
