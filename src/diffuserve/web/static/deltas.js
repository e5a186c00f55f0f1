// Changes of snapshots, as the module diffuserve.domain.deltas makes and describes them.

// Return what `old` has become. Parts without a change stay the same values, so that views skip them.
export function apply(change, old) {
  return Array.isArray(old) ? applyToList(change, old) : applyToObject(change, old);
}

function applyToObject({ set = {}, removed = [], in: nested = {} }, old) {
  const kept = Object.entries(old)
    .filter(([name]) => !removed.includes(name))
    .map(([name, value]) => [name, changed(nested, name, value)]);
  return { ...Object.fromEntries(kept), ...set };
}

function applyToList({ removed = [], in: nested = {}, order, added = [] }, old) {
  const gone = new Set(removed);
  const kept = old.filter(({ id }) => !gone.has(id)).map((item) => changed(nested, item.id, item));
  const items = order ? inOrder(kept, order) : kept;
  for (const [place, item] of added) items.splice(place, 0, item);
  return items;
}

// Names come from tenants: one may be called like a property that every object has.
function changed(nested, name, value) {
  return Object.hasOwn(nested, name) ? apply(nested[name], value) : value;
}

function inOrder(items, ids) {
  const byId = new Map(items.map((item) => [item.id, item]));
  return ids.map((id) => byId.get(id));
}
