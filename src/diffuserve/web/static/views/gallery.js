// The gallery: the caller's jobs, newest first, with filters that the address keeps.
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { isOperator, session } from "../session.js";
import { Problem } from "../components/problem.js";
import { Feed } from "./gallery/feed.js";
import { FilterBar, filtersFrom } from "./gallery/filters.js";
import { SelectionBar, afterClick } from "./gallery/selection.js";
import { Tile } from "./gallery/tile.js";

const LOOK_MS = 2000;
const AHEAD = "1000px"; // below the window, where the next page is already loaded

// The last feed is kept, so that the way back from a job leads to the same place.
let last = { key: null, feed: null, top: 0 };
let cameBack = false;
addEventListener("popstate", () => {
  cameBack = true;
});

export default function Gallery({ query }) {
  const filters = filtersFrom(query);
  const key = filters.toString();
  const feed = useFeed(key);
  const [selected, setSelected] = useState(new Set());
  const clicked = useRef(null);
  useEffect(() => setSelected(new Set()), [key]);
  const jobs = feed.jobs.value;
  const select = useCallback((id, event) => {
    const ids = feed.jobs.value.map((job) => job.id);
    const click = { id, last: clicked.current, isRange: event.shiftKey };
    setSelected((now) => afterClick(now, ids, click));
    clicked.current = id;
  }, [feed]);
  const forget = (ids) => {
    feed.remove(ids);
    setSelected((now) => new Set([...now].filter((id) => !ids.has(id))));
  };
  return html`
    <div class="gallery" onClickCapture=${keepPlace}>
      <h1>Gallery</h1>
      <${FilterBar} filters=${filters} />
      <ul class="gallery-grid" aria-label="Jobs" aria-busy=${feed.isLoading.value}>
        ${jobs.map((job) => html`
          <${Tile} key=${job.id} job=${job} isSelected=${selected.has(job.id)} onSelect=${select}
            showsTenant=${isOperator.value && !session.value.is_open} />`)}
      </ul>
      <${End} feed=${feed} isFiltered=${key !== ""} />
      <${SelectionBar} selected=${selected} onChange=${setSelected} onDeleted=${forget} />
    </div>`;
}

// Before a link is followed, which scrolls to the top.
const keepPlace = () => {
  last.top = scrollY;
};

function useFeed(key) {
  const feed = useMemo(() => (cameBack && last.key === key ? last.feed : new Feed(key)), [key]);
  useEffect(() => {
    if (!feed.hasLoaded) feed.loadMore();
    const look = () => !document.hidden && feed.look().catch(() => {});
    const timer = setInterval(look, LOOK_MS);
    document.addEventListener("visibilitychange", look);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [feed]);
  useLayoutEffect(() => {
    if (cameBack && last.feed === feed) scrollTo(0, last.top);
    cameBack = false;
    last = { key, feed, top: 0 };
  }, [feed]);
  return feed;
}

// Below the last tile: the next page loads when this comes near, or by its button.
function End({ feed, isFiltered }) {
  const mark = useRef(null);
  const { value: next } = feed.next;
  const { value: isLoading } = feed.isLoading;
  useEffect(() => {
    if (!next || isLoading) return undefined;
    const come = ([entry]) => entry.isIntersecting && feed.loadMore();
    const watch = new IntersectionObserver(come, { rootMargin: AHEAD });
    watch.observe(mark.current);
    return () => watch.disconnect();
  }, [feed, next, isLoading]);
  return html`
    <div class="gallery-end" ref=${mark}>
      <${Problem} error=${feed.error.value} />
      ${feed.error.value && html`<button type="button" onClick=${() => feed.loadMore()}>Try again</button>`}
      <p role="status">${words(feed, isFiltered)}</p>
      ${next && !isLoading && html`<button type="button" onClick=${() => feed.loadMore()}>Load more</button>`}
    </div>`;
}

function words(feed, isFiltered) {
  if (feed.error.value) return "";
  if (feed.isLoading.value) return feed.jobs.value.length ? "Loading more…" : "Loading…";
  if (feed.next.value) return feed.jobs.value.length ? "" : "Looking through older jobs…";
  if (feed.jobs.value.length) return "";
  return isFiltered ? "No job matches these filters." : "Nothing here yet: what you generate appears here.";
}
