// What to do next with a run: its settings again, other seeds, its image as the input of another.
import { urlOf } from "../../router.js";
import { randomSeed } from "./job_request.js";
import { idOf } from "./fields.js";
import { submit } from "./runs.js";
import { NO_INPUTS, addImage, change, inputs, model, refusal, reuse } from "./state.js";
import { refusalOf } from "./refusals.js";

const NUM_VARIATIONS = 4;

export function focusPrompt() {
  const area = document.getElementById(idOf("prompt"));
  area.focus();
  area.select();
  area.scrollIntoView({ block: "center", behavior: "smooth" });
}

export function reuseSettings(job) {
  reuse(job);
  focusPrompt();
}

export function sameSeed(job, seed) {
  reuse(job, { seed, num_images: null });
  focusPrompt();
}

// Submit jobs as one run; what is refused stands in the form.
export async function submitAll(bodies) {
  try {
    refusal.value = null;
    await submit(bodies);
  } catch (error) {
    refusal.value = { ...refusalOf(error), at: Date.now() };
    requestAnimationFrame(() => document.querySelector('.playground [aria-invalid="true"]')?.focus());
    return;
  }
  requestAnimationFrame(showNewest);
}

// On a narrow screen the results are below the form.
function showNewest() {
  const newest = document.querySelector(".playground .run");
  const { top } = newest.getBoundingClientRect();
  if (top < 0 || top > innerHeight / 4) newest.scrollIntoView();
}

// Draw the same request with four seeds, each a job of its own with its preview.
export function vary(body) {
  const seeds = Array.from({ length: NUM_VARIATIONS }, randomSeed);
  const { num_images: _, ...input } = body.input;
  return submitAll(seeds.map((seed) => ({ ...body, input: { ...input, seed } })));
}

// Take a finished image as the input of the next job.
export async function editImage(job, artifact) {
  const response = await fetch(urlOf(`v1/jobs/${job.id}/result?index=${artifact.index}`)).catch(() => null);
  if (!response?.ok) {
    refusal.value = {
      fields: { image: "The image cannot be read from here: download it, and drop it here." },
      summary: null,
      seconds: null,
    };
    return;
  }
  const blob = await response.blob();
  inputs.value = NO_INPUTS;
  await addImage(new File([blob], artifact.name, { type: blob.type }));
  change({ width: null, height: null });
  focusPrompt();
}

export const takesImages = () => (model.value?.limits.max_input_images ?? 0) > 0;

// Return the body that a job was submitted with, as far as the job tells it.
export const bodyOf = (run, job) => ({ ...run.body, input: { ...run.body.input, seed: job.input.seed } });
