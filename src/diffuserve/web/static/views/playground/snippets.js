// The request of a job as programs send it. Each snippet runs as it is; the key is read from the environment.
import { AUDIO, VIDEO } from "./job_request.js";

export const KEY_VARIABLE = "DIFFUSERVE_API_KEY";

const IMAGE_MADE = { name: "image", format: "png", role: "image" };
const MADE = {
  [VIDEO]: { name: "clip", format: "mp4", role: "video" },
  [AUDIO]: { name: "sound", format: "wav", role: "audio" },
};

// Return [{ name, language, text }] for a body of POST /v1/jobs. `server` has no slash at its end.
export function snippetsOf(body, { server, needsKey, defaults }) {
  const { num_previews: _, live: __, ...request } = body; // previews are for those who watch
  const options = { server, needsKey, defaults, isClip: body.kind === VIDEO, made: MADE[body.kind] ?? IMAGE_MADE };
  const own = [
    { name: "curl", text: curl(request, options) },
    { name: "Python", text: python(request, options) },
  ];
  if (body.kind === AUDIO) return own; // OpenAI's API has no such thing
  return [...own, { name: "OpenAI client", text: openai(request, options) }];
}

function curl(request, { server, needsKey, made }) {
  const key = needsKey ? `  -H "authorization: Bearer $${KEY_VARIABLE}" \\\n` : "";
  const shortKey = needsKey ? ` -H "authorization: Bearer $${KEY_VARIABLE}"` : "";
  const file = `${made.name}.${request.output_format ?? made.format}`;
  return `job=$(curl -sS --fail-with-body ${server}/v1/jobs \\
${key}  -H 'content-type: application/json' --data-binary @- <<'JSON' \\
  | grep -o '"id":"job_[^"]*"' | head -n 1 | cut -d '"' -f 4
${JSON.stringify(request, null, 2)}
JSON
)
curl -sSN${shortKey} "${server}/v1/jobs/$job/events"  # follow it to its end
curl -sSL --fail${shortKey} -o ${file} "${server}/v1/jobs/$job/result"
`;
}

function python(request, { server, needsKey, made }) {
  const headers = needsKey
    ? `,\n    headers={"authorization": f"Bearer {os.environ['${KEY_VARIABLE}']}"}`
    : "";
  return `${needsKey ? "import os\n" : ""}from pathlib import Path

import httpx

client = httpx.Client(base_url=${literal(server)}, timeout=90${headers})
request = ${literal(request)}
job = client.post("/v1/jobs", json=request).raise_for_status().json()
while job["status"] not in ("succeeded", "failed", "canceled", "expired"):
    job = client.get(f"/v1/jobs/{job['id']}", params={"wait": 60}).raise_for_status().json()
if job["status"] != "succeeded":
    raise SystemExit(f"{job['status']}: {job['error']}")
for artifact in job["result"]["artifacts"]:
    if artifact["role"] == "${made.role}":
        response = httpx.get(artifact["url"], follow_redirects=True, timeout=90)
        Path(artifact["name"]).write_bytes(response.raise_for_status().content)
        print(artifact["name"], artifact["seed"])
`;
}

function openai(request, options) {
  if (options.isClip) return openaiClip(request, options);
  const { prompt, width, height, num_images, image, mask, ...extra } = request.input;
  const { output_format: format } = request;
  const given = {
    model: request.model,
    prompt,
    n: num_images ?? 1,
    ...sizeOf(width, height, image ? {} : options.defaults),
    ...(format ? { output_format: format } : {}),
    response_format: "b64_json",
  };
  const body = { ...extra, ...(request.expand_prompt ? { expand_prompt: true } : {}) };
  const call = image ? "edit" : "generate";
  return `import base64
import os
from pathlib import Path

from openai import OpenAI

${client(options)}
response = client.images.${call}(
${image ? images([image].flat(), mask) : ""}${argumentsOf(given)}${extraBody(body)})
for number, image in enumerate(response.data):
    Path(f"image-{number}.${format ?? "png"}").write_bytes(base64.b64decode(image.b64_json))
`;
}

function openaiClip(request, options) {
  const { prompt, width, height, num_frames, image, mask: _, ...extra } = request.input;
  const fps = extra.fps ?? options.defaults.fps;
  const seconds = (num_frames ?? options.defaults.num_frames) / fps;
  const given = {
    model: request.model,
    prompt,
    seconds: String(Number(seconds.toFixed(3))),
    ...sizeOf(width, height, image ? {} : options.defaults),
  };
  const frame = image
    ? `    input_reference=("first.png", client.files.content(${literal(image)}).content),\n`
    : "";
  const { output_format: format } = request;
  const body = {
    ...extra,
    ...(format ? { output_format: format } : {}),
    ...(request.expand_prompt ? { expand_prompt: true } : {}),
  };
  return `import os

from openai import OpenAI

${client(options)}
video = client.videos.create_and_poll(
${frame}${argumentsOf(given)}${extraBody(body)})
if video.status != "completed":
    raise SystemExit(video.error)
client.videos.download_content(video.id).write_to_file("clip.${format ?? "mp4"}")
`;
}

const client = ({ server, needsKey }) =>
  `client = OpenAI(base_url=${literal(`${server}/v1`)}, api_key=` +
  (needsKey ? `os.environ["${KEY_VARIABLE}"])` : `os.environ.get("${KEY_VARIABLE}", "none"))`);

const fileOf = (id, name) => `("${name}.png", client.files.content(${literal(id)}).content)`;

function images(ids, mask) {
  const files = ids.map((id, number) => fileOf(id, `image-${number}`));
  const given = files.length === 1 ? files[0] : `[${files.join(", ")}]`;
  return `    image=${given},\n${mask ? `    mask=${fileOf(mask, "mask")},\n` : ""}`;
}

function sizeOf(width, height, defaults) {
  const [across, down] = [width ?? defaults.width, height ?? defaults.height];
  return across && down ? { size: `${across}x${down}` } : {};
}

const argumentsOf = (given) =>
  Object.entries(given)
    .map(([name, value]) => `    ${name}=${literal(value)},\n`)
    .join("");

const extraBody = (body) => (Object.keys(body).length ? `    extra_body=${literal(body, 1)},\n` : "");

// Return a value as Python writes it. JSON's strings are Python's as well.
export function literal(value, depth = 0) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const indent = "    ".repeat(depth + 1);
  const end = "    ".repeat(depth);
  if (Array.isArray(value)) return `[${value.map((item) => literal(item, depth)).join(", ")}]`;
  const items = Object.entries(value).map(
    ([name, item]) => `${indent}${JSON.stringify(name)}: ${literal(item, depth + 1)},\n`,
  );
  return `{\n${items.join("")}${end}}`;
}
