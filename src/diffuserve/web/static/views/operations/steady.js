// A computed list that keeps its identity while its elements stay the same, so that nothing renders in vain.
import { computed } from "../../vendor/ui.js";

export function steady(compute) {
  let last = [];
  return computed(() => {
    const next = compute();
    if (!isSame(last, next)) last = next;
    return last;
  });
}

const isSame = (first, second) =>
  first.length === second.length && first.every((element, place) => element === second[place]);
