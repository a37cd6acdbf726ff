// words light up where their weights are not zero, and the small pictures choose the head
const weightsOf = (map) => {
  if (map.codes) return map.info;
  map.info = JSON.parse(map.dataset.map);
  map.codes = new Int16Array(Uint8Array.from(atob(map.info.weights), (letter) => letter.charCodeAt(0)).buffer);
  return map.info;
};

const light = (map, side, index) => {
  const { queries, keys, unit } = weightsOf(map), rows = queries.length, columns = keys.length;
  const code = (row, column) => map.codes[(Number(map.dataset.head) * rows + row) * columns + column];
  const [own, others] = side === "q" ? [queries, keys] : [keys, queries];
  const row = others.map((_, other) => (side === "q" ? code(index, other) : code(other, index)));
  const largest = Math.max(1, ...row.map(Math.abs));
  dim(map);
  map.querySelectorAll(`[data-${side}="${index}"]`).forEach((word) => word.classList.add("chosen"));
  map.querySelectorAll(side === "q" ? "[data-k]" : "[data-q]").forEach((word) => {
    const value = row[word.dataset[side === "q" ? "k" : "q"]];
    if (value) word.style.setProperty("--lit", 0.15 + (0.6 * Math.abs(value)) / largest);
  });
  const nonzero = row.map((value, other) => [value, others[other]]).filter(([value]) => value);
  nonzero.sort((one, two) => Math.abs(two[0]) - Math.abs(one[0]));
  const shown = nonzero.slice(0, 3).map(([value, word]) => `${word} ${(value * unit).toPrecision(2)}`).join(", ");
  const zeros = row.length - nonzero.length;
  map.querySelector("output").textContent = `${own[index]} ${side === "q" ? "←" : "→"} ${shown || "∅ nothing"}` +
    (zeros ? ` · ${zeros} of ${row.length} exactly zero` : "");
};

const dim = (map) => map.querySelectorAll(".word").forEach((word) => {
  word.classList.remove("chosen");
  word.style.removeProperty("--lit");
});

const point = (event) => {
  const map = event.target.closest?.(".map");
  if (!map?.dataset.map) return;
  const word = event.target.closest(".word");
  if (word) return light(map, ...(word.dataset.q ? ["q", Number(word.dataset.q)] : ["k", Number(word.dataset.k)]));
  if (event.target.matches(".large")) {
    const rows = weightsOf(map).queries.length;
    light(map, "q", Math.min(rows - 1, Math.floor((event.offsetY / event.target.clientHeight) * rows)));
  }
};

for (const kind of ["pointerover", "pointermove", "focusin"]) element.addEventListener(kind, point);

element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-head]"), map = event.target.closest(".map");
  if (!button) return;
  map.dataset.head = button.dataset.head;
  for (const other of map.querySelectorAll("button[data-head]")) other.ariaPressed = String(other === button);
  const [small, large] = [button.querySelector("img:last-child"), map.querySelector(".large")];
  [large.src, large.alt] = [small.src, small.alt];
  if (map.dataset.map) dim(map);
});
