// Errors that no view has shown: promises that failed, and faults of the page. The frame shows the latest.
import { capitalized } from "./sentence.js";
import { signal } from "./vendor/ui.js";

// The text of the latest notice, null for none.
export const notice = signal(null);

export const tell = (text) => {
  notice.value = text;
};

export function startNotices() {
  addEventListener("unhandledrejection", (event) => {
    const error = event.reason;
    if (error?.name === "ServerAway" || error?.name === "AbortError") return event.preventDefault(); // the banner tells
    if (error?.problem) event.preventDefault(); // a refusal, which is no fault of the page
    return tell(capitalized(error?.message ?? String(error)));
  });
  addEventListener("error", (event) => {
    if (event.message) tell(`The page has a fault: ${event.message}`);
  });
}
