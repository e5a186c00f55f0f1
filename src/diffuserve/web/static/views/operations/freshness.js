// How old the view is: live, or since when the server has been silent.
import { computed, html } from "../../vendor/ui.js";
import { age, connection, isOld } from "./live.js";
import { seconds } from "./numbers.js";

const words = computed(() => {
  if (isOld.value) return `as of ${seconds(Math.round(age.value))} ago`;
  return connection.value === "open" ? "live" : "connecting";
});
const isAway = computed(() => connection.value !== "open" || isOld.value);

export const Freshness = () => html`
  <p class="freshness ${isAway.value ? "old" : "live"}">
    <span aria-hidden="true">${isAway.value ? "◌" : "●"}</span> ${words}
    ${isOld.value && html`<span class="hidden" role="status">The server is silent: what you see is old.</span>`}
  </p>
`;
