// Predicted seconds in words. Pure.
import { duration } from "../../components/time.js";

const SLOW_SECONDS = 3;

// True of what is worth telling before it begins, and while it runs.
export const isSlow = (seconds) => seconds >= SLOW_SECONDS;

// They are predictions: below ten seconds to the half second.
export const about = (seconds) => `about ${duration(seconds < 10 ? Math.ceil(2 * seconds) / 2 : seconds)}`;
