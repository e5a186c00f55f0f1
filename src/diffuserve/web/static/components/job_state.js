// The states of a job, and which of two readings of one is the newer. Pure.
export const FINAL = ["succeeded", "failed", "canceled", "expired"];
export const isFinal = (job) => FINAL.includes(job.status);

// Return what is known of a job after it was read, since a response may be older than what its stream told.
export function newer(known, read) {
  if (known && isFinal(known) && !isFinal(read)) return known;
  const isSame = read.status === "running" && known?.attempt === read.attempt;
  const isBehind = isSame && read.progress.step < known.progress.step;
  return isBehind ? { ...read, phase: known.phase, progress: known.progress } : read;
}
