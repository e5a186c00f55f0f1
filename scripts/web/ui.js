// What the page's modules import as "vendor/ui.js": components, templates, state.
export { Component, Fragment, h, render } from "preact";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "@preact/signals";

import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
