// the page: one section for each model that page.json names
import { Classifier, Translator, fetchBytes, loadRuntime } from "./models.js";

const $ = (selector, within = document) => within.querySelector(selector);
const make = (name, fields = {}, ...children) => {
  const element = Object.assign(document.createElement(name), fields);
  element.append(...children);
  return element;
};
const status = $("#status"), progress = $("#progress");
const milliseconds = (start) => `${Math.round(performance.now() - start)} ms`;
const percent = (share) => (share > 0 && share < 0.01 ? "under 1 %" : share > 0.99 && share < 1 ? "over 99 %" : `${Math.round(100 * share)} %`);
const kinds = { translation: [Translator, "#text", textSection], "image-classification": [Classifier, "#image", imageSection] };

async function main() {
  const start = performance.now();
  const page = JSON.parse(new TextDecoder().decode(await fetchBytes("page.json")));
  let loaded = 0;
  const advance = (bytes) => {
    loaded += bytes;
    progress.value = loaded / page.bytes;
    status.textContent = `Loading: ${(loaded / 1e6).toFixed(1)} of ${(page.bytes / 1e6).toFixed(1)} MB`;
  };
  const runtime = await loadRuntime(page.runtime, advance);
  for (const entry of page.models) {
    const [Model, template, section] = kinds[entry.task];
    const model = await Model.open(runtime, entry, advance);
    const part = $(template).content.cloneNode(true).firstElementChild;
    $("h2", part).textContent = entry.title;
    $(".about", part).textContent = entry.about;
    section(part, model, entry);
    $("#models").append(part);
  }
  progress.hidden = true;
  status.textContent = `Ready in ${((performance.now() - start) / 1000).toFixed(1)} s`;
  document.documentElement.dataset.ready = "true";
  if ("serviceWorker" in navigator && isSecureContext) {
    await navigator.serviceWorker.register("worker.js");
    await navigator.serviceWorker.ready;
    document.documentElement.dataset.offline = "true";
  }
}

/** Run what a visitor asked for, one thing at a time, and say what went wrong. */
function guarded(part, work) {
  return async (event) => {
    event.preventDefault?.();
    const said = $(".said", part), button = $("button[type=submit]", part);
    if (button) button.disabled = true;
    try {
      await work(event);
    } catch (error) {
      said.textContent = error.message;
    } finally {
      if (button) button.disabled = false;
    }
  };
}

const countZeros = (layers, isVisible = () => true) => {
  let zeros = 0, all = 0;
  for (const layer of layers) for (const head of layer) head.forEach((row, query) => row.forEach((weight, key) => {
    if (!isVisible(query, key)) return;
    all++;
    zeros += weight === 0;
  }));
  return { zeros, all };
};

const mean = (layer) => layer[0].map((row, query) => row.map((_, key) => layer.reduce((sum, head) => sum + head[query][key], 0) / layer.length));

function fillChoices(part, layers, first = 0) {
  const fill = (select, names, chosen) => {
    const before = select.value || chosen;
    select.replaceChildren(...names.map(([value, text]) => make("option", { value, textContent: text })));
    if (names.some(([value]) => value === before)) select.value = before;
  };
  fill($(".layer", part), layers.map((_, layer) => [String(layer), String(layer + 1)]), String(first));
  fill($(".head", part), [["mean", "mean of all"], ...layers[0].map((_, head) => [String(head), String(head + 1)])], "mean");
}

const chosenWeights = (part, layers) => {
  const layer = layers[Number($(".layer", part).value)] ?? layers[0], head = $(".head", part).value;
  return head === "mean" ? mean(layer) : layer[Number(head)];
};

const colour = (cell, share) => {
  cell.className = share > 0.6 ? "some strong" : "some";
  cell.style.setProperty("--share", 0.12 + 0.88 * Math.min(share, 1));
};

function textSection(part, model, entry) {
  const form = $("form", part), text = $("textarea", part);
  let shown = null;
  text.lang = entry.languages?.[0] ?? "";
  $(".answer", part).lang = entry.languages?.[1] ?? "";
  text.value = entry.examples[0] ?? "";
  for (const example of entry.examples)
    $(".examples", part).append(make("button", { type: "button", textContent: example, onclick: () => {
      text.value = example;
      form.requestSubmit();
    } }));

  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("button[type=submit]", form).click(); // which is disabled while it translates
  });
  form.addEventListener("submit", guarded(part, async () => {
    const said = $(".said", part), start = performance.now();
    said.textContent = "Translating…";
    await new Promise((next) => setTimeout(next)); // so that this is said
    const translation = await model.translate(text.value, Number(new FormData(form).get("beams")));
    const time = milliseconds(start);
    const weights = await model.attend(translation);
    shown = { translation, weights };
    const unknown = model.unknownCharacters(text.value);
    const invented = unknown.length ? `; the model does not know ${unknown.join(" ")}: what it writes for that is invented` : "";
    said.textContent = `Translated in ${time}${invented}`;
    $(".alignment", part).replaceChildren(...model.align(translation, weights).map(({ target, source, share }) =>
      make("li", {}, make("b", { textContent: target }), source === null ? " ← ∅ nothing" : ` ← ${source} ${percent(share)}`)));
    $(".result", part).hidden = false;
    $(".answer", part).textContent = translation.text;
    draw();
    document.documentElement.dataset.answered = String(Number(document.documentElement.dataset.answered ?? 0) + 1);
  }));

  const draw = () => {
    const site = $(".site", part).value, layers = shown.weights[site], isDecoder = site === "decoder";
    fillChoices(part, layers, model.config.alignment_layer ?? Math.max(layers.length - 2, 0));
    const isVisible = (query, key) => !isDecoder || key <= query;
    const { zeros, all } = countZeros(layers, isVisible);
    $(".share", part).textContent = percent(zeros / all);
    $(".of", part).textContent = `of ${all} ${site} weights, over all layers and heads, are exactly zero.`;
    const source = model.pieces(model.source, shown.translation.source), target = shown.translation.target;
    const written = model.pieces(model.target, target.slice(1)), given = model.pieces(model.target, target.slice(0, -1));
    const [rows, columns] = site === "encoder" ? [source, source] : [written, isDecoder ? given : source];
    const head = make("tr", {}, make("td", { textContent: "" }), ...columns.map((piece) => make("th", { scope: "col", textContent: piece })));
    const weights = chosenWeights(part, layers);
    const body = rows.map((piece, query) => {
      const row = weights[query], sum = row.reduce((one, other) => one + Math.abs(other), 0);
      return make("tr", {}, make("th", { scope: "row", textContent: piece }), ...columns.map((_, key) => {
        if (!isVisible(query, key)) return make("td", { textContent: "·" });
        if (row[key] === 0) return make("td");
        const share = Math.abs(row[key]) / sum, cell = make("td", { title: `weight ${row[key].toPrecision(3)}` });
        cell.textContent = share < 0.005 ? "<1" : String(Math.round(100 * share));
        colour(cell, share);
        return cell;
      }));
    });
    $(".scroll table", part).replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  };
  for (const name of [".site", ".layer", ".head"]) $(name, part).addEventListener("change", draw);
}

function imageSection(part, model, entry) {
  const pad = $(".pad", part), pen = pad.getContext("2d", { willReadFrequently: true });
  const cursor = { x: 0.5, y: 0.5 };
  let shown = null;

  const clear = () => {
    pen.fillStyle = "white";
    pen.fillRect(0, 0, pad.width, pad.height);
  };
  [pen.lineWidth, pen.lineCap, pen.lineJoin] = [pad.width / 11, "round", "round"];
  clear();

  const classify = guarded(part, async ({ picture = pad }) => {
    const start = performance.now(), seen = model.scaled(picture);
    shown = { ...(await model.classify(seen.pixels)), seen };
    const [first] = shown.classes;
    $(".said", part).textContent = `Answered in ${milliseconds(start)}: ${first.label}, ${percent(first.share)}`;
    $(".classes tbody", part).replaceChildren(...shown.classes.slice(0, 5).map(({ label, share }) =>
      make("tr", {}, make("th", { scope: "row", textContent: label }), make("td", { textContent: percent(share) }))));
    $(".result", part).hidden = false;
    draw();
    document.documentElement.dataset.classified = first.label;
  });

  const draw = () => {
    const { layers, seen } = shown, { patch_size: patch } = model.config;
    if (!layers.length) return;
    fillChoices(part, layers);
    const { zeros, all } = countZeros(layers);
    $(".share", part).textContent = percent(zeros / all);
    $(".of", part).textContent = `of ${all} weights, over all layers and heads, are exactly zero.`;
    const weights = chosenWeights(part, layers), [rows, columns] = [model.height / patch, model.width / patch];
    const before = weights[0].length - rows * columns; // class token and registers
    const got = Array.from({ length: rows * columns }, (_, key) => weights.reduce((sum, row) => sum + row[before + key], 0) / weights.length);
    const sum = got.reduce((one, other) => one + Math.abs(other), 0), largest = Math.max(...got.map(Math.abs));
    $(".patches", part).replaceChildren(make("tbody", {}, ...Array.from({ length: rows }, (_, y) =>
      make("tr", {}, ...Array.from({ length: columns }, (_, x) => {
        const piece = make("canvas", { width: patch, height: patch, ariaHidden: "true" }), weight = got[y * columns + x];
        piece.getContext("2d").drawImage(seen.canvas, x * patch, y * patch, patch, patch, 0, 0, patch, patch);
        const cell = make("td", {}, piece, make("span", { textContent: weight === 0 ? "" : percent(Math.abs(weight) / sum) }));
        if (weight !== 0) {
          cell.className = "some";
          cell.style.setProperty("--share", 0.2 + (0.8 * Math.abs(weight)) / largest);
        }
        return cell;
      })))));
  };
  for (const name of [".layer", ".head"]) $(name, part).addEventListener("change", draw);

  const put = (picture) => {
    clear();
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture, 0, 0, pad.width, pad.height);
    classify({ picture });
  };
  const position = (event) => [(event.offsetX * pad.width) / pad.clientWidth, (event.offsetY * pad.height) / pad.clientHeight];
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    pen.beginPath();
    pen.moveTo(...position(event));
  });
  pad.addEventListener("pointermove", (event) => {
    if (!pad.hasPointerCapture(event.pointerId)) return;
    pen.lineTo(...position(event));
    pen.stroke();
  });
  pad.addEventListener("pointerup", classify);
  pad.addEventListener("keydown", (event) => {
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], " ": [0, 0] }[event.key] ?? [];
    if (dx === undefined) return;
    event.preventDefault();
    const isDrawing = event.key === " " || cursor.down, from = { ...cursor };
    if (event.key === " ") cursor.down = !cursor.down;
    cursor.x = Math.min(1, Math.max(0, cursor.x + dx / 16));
    cursor.y = Math.min(1, Math.max(0, cursor.y + dy / 16));
    if (isDrawing) {
      pen.beginPath();
      pen.moveTo(from.x * pad.width, from.y * pad.height);
      pen.lineTo(cursor.x * pad.width, cursor.y * pad.height);
      pen.stroke();
    }
    $(".said", part).textContent = `Pen ${cursor.down ? "down" : "up"}, column ${Math.round(cursor.x * 16)}, row ${Math.round(cursor.y * 16)}`;
    if (event.key === " " && !cursor.down) classify(event);
  });
  $(".clear", part).addEventListener("click", clear);
  $("input[type=file]", part).addEventListener("change", guarded(part, async ({ target }) => put(await createImageBitmap(target.files[0]))));
  entry.examples.forEach((name, number) => {
    const picture = make("img", { src: `${entry.path}/${name}`, alt: `example ${number + 1}` });
    $(".examples", part).append(make("button", { type: "button", onclick: () => put(picture) }, picture));
  });
}

main().catch((error) => {
  progress.hidden = true;
  status.textContent = `This page could not be loaded: ${error.message}`;
  document.documentElement.dataset.ready = "failed";
});
