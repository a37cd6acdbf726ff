// models in onnxruntime-web: translation and classes, and the attention weights that led to them
import { search } from "./search.js";

const last = (path) => path.slice(path.lastIndexOf("/") + 1);

/** Fetch files, whose hashes the browser compares where they are known; tells how many bytes have come. */
export async function fetchBytes(url, integrity, advance = () => {}) {
  const response = await fetch(url, integrity ? { integrity, mode: "cors", credentials: "omit" } : {});
  if (!response.ok) throw new Error(`${last(url)}: ${response.status} ${response.statusText}`);
  const parts = [], reader = response.body.getReader();
  for (let size = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) {
      const bytes = new Uint8Array(size);
      parts.reduce((offset, part) => (bytes.set(part, offset), offset + part.length), 0);
      return bytes;
    }
    parts.push(value);
    size += value.length;
    advance(value.length);
  }
}

const fetchJson = async (url) => JSON.parse(new TextDecoder().decode(await fetchBytes(url)));

/** Import a module out of bytes that were checked. */
async function importBytes(bytes) {
  const address = URL.createObjectURL(new Blob([bytes], { type: "text/javascript" }));
  try {
    return await import(address);
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** onnxruntime-web and the tokenizers, as page.json names and pins them. */
export async function loadRuntime({ ort, wasm, tokenizers }, advance) {
  const bytes = await Promise.all([ort, wasm, tokenizers].map(({ url, integrity }) => fetchBytes(url, integrity, advance)));
  const runtime = await importBytes(bytes[0]);
  runtime.env.wasm.wasmBinary = bytes[1].buffer;
  runtime.env.wasm.numThreads = 1;
  runtime.env.logLevel = "error";
  return { ort: runtime, Tokenizer: (await importBytes(bytes[2])).Tokenizer };
}

const openSession = async (ort, url, advance) =>
  ort.InferenceSession.create(await fetchBytes(url, undefined, advance), { executionProviders: ["wasm"], logSeverityLevel: 3 });

const integers = (ort, rows) =>
  new ort.Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);

/** Weights [heads][queries][keys] of an output [1, heads, queries, keys]. */
const heads = ({ dims: [, number, queries, keys], data }) =>
  Array.from({ length: number }, (_, head) =>
    Array.from({ length: queries }, (_, query) => {
      const start = (head * queries + query) * keys;
      return data.slice(start, start + keys);
    }),
  );

export class Translator {
  static async open({ ort, Tokenizer }, { path, graphs, hasTarget }, advance) {
    const model = new Translator();
    const read = (name) => fetchJson(`${path}/${name}`);
    const tokenizer = async (folder) =>
      new Tokenizer(...(await Promise.all(["tokenizer.json", "tokenizer_config.json"].map((name) => read(folder + name)))));
    [model.config, model.search, model.source, model.target, model.encoder, model.decoder] = await Promise.all([
      read("config.json"),
      read("generation_config.json"),
      tokenizer(""),
      hasTarget ? tokenizer("target_tokenizer/") : null,
      ...graphs.map((name) => openSession(ort, `${path}/${name}`, advance)),
    ]);
    model.target ??= model.source;
    const { unk_token: unknown } = await read("tokenizer_config.json");
    model.unknown = unknown == null ? undefined : model.source.token_to_id(unknown);
    model.ort = ort;
    return model;
  }

  /** Translate a text; returns it with the tokens of both sides, the target's with the start token. */
  async translate(text, beams) {
    const { config, search: saved } = this;
    const source = this.source.encode(text.trim()).ids;
    if (source.length > config.max_position_embeddings)
      throw new Error(`The text has ${source.length} tokens, but the model takes ${config.max_position_embeddings}: shorten it.`);
    await this.encode(source);
    // as `longest_translation` bounds it; the start token counts
    const longest = Math.min(source.length + Math.max(source.length, 50), config.max_position_embeddings);
    const tokens = await search(this.stepper(), {
      start: saved.decoder_start_token_id,
      end: saved.eos_token_id,
      beams,
      maxLength: 1 + longest,
      lengthPenalty: saved.length_penalty ?? 1,
      earlyStopping: saved.early_stopping ?? false,
    });
    return { source, target: tokens, text: this.target.decode(tokens, { skip_special_tokens: true }) };
  }

  /** Characters of a text that the tokenizer does not know, each once. */
  unknownCharacters(text) {
    return [...new Set(text)].filter((one) => one.trim() && this.source.encode(one).ids.includes(this.unknown));
  }

  async encode(source) {
    this.mask = integers(this.ort, [source.map(() => 1)]);
    const inputs = { input_ids: integers(this.ort, [source]), attention_mask: this.mask };
    this.encoded = await this.encoder.run(inputs);
    this.states = this.encoded.last_hidden_state;
  }

  get pastNames() {
    return this.decoder.inputNames.filter((name) => name.startsWith("past_key_values."));
  }

  inputs(rows, past) {
    const { ort, config } = this, width = config.d_model / config.decoder_attention_heads;
    const feeds = {
      input_ids: integers(ort, rows),
      encoder_attention_mask: this.mask,
      encoder_hidden_states: this.states,
      use_cache_branch: new ort.Tensor("bool", [Boolean(past)], [1]),
    };
    for (const name of this.pastNames) {
      const batch = name.includes(".decoder.") ? rows.length : 1;
      const none = [batch, config.decoder_attention_heads, 0, width];
      feeds[name] = past ? past[name] : new ort.Tensor("float32", new Float32Array(0), none);
    }
    return feeds;
  }

  /** What `search` calls: keys and values stay here. */
  stepper() {
    let past = null;
    return async (tokens, parents) => {
      if (past && parents.some((parent, row) => parent !== row)) {
        for (const name of this.pastNames) if (name.includes(".decoder.")) past[name] = this.selected(past[name], parents);
      }
      const wanted = this.decoder.outputNames.filter(
        (name) => name === "logits" || (name.startsWith("present.") && (!past || name.includes(".decoder."))),
      );
      const outputs = await this.decoder.run(this.inputs(tokens.map((token) => [token]), past), wanted);
      past = { ...past };
      for (const name of wanted) if (name !== "logits") past[name.replace("present", "past_key_values")] = outputs[name];
      return { logits: outputs.logits.data, vocabulary: outputs.logits.dims[2] };
    };
  }

  selected({ data, dims }, rows) {
    const size = data.length / dims[0], chosen = new Float32Array(data.length);
    rows.forEach((from, to) => chosen.set(data.subarray(from * size, (from + 1) * size), to * size));
    return new this.ort.Tensor("float32", chosen, dims);
  }

  /** Weights of a pass that is given the translation: site → [layers][heads][queries][keys]. */
  async attend({ target }) {
    const wanted = this.decoder.outputNames.filter((name) => /^(cross|decoder)_attentions\./.test(name));
    const outputs = { ...this.encoded, ...(await this.decoder.run(this.inputs([target.slice(0, -1)], null), wanted)) };
    const layers = (site) =>
      Object.keys(outputs).filter((name) => name.startsWith(`${site}_attentions.`))
        .sort((one, two) => one.split(".")[1] - two.split(".")[1]).map((name) => heads(outputs[name]));
    return Object.fromEntries(["cross", "encoder", "decoder"].map((site) => [site, layers(site)]));
  }

  /** The source word of each word of a translation, as `TranslationPipeline.align` finds it. */
  align({ source, target }, { cross }) {
    const { config } = this, written = target.slice(1);
    const layer = cross[config.alignment_layer ?? Math.max(cross.length - 2, 0)];
    const chosen = config.alignment_head == null ? layer : [layer[config.alignment_head]];
    const shift = config.alignment_shifted ? 1 : 0;
    const [keys, queries] = [this.words(this.source, source), this.words(this.target, written)];
    const sums = queries.words.map(() => new Float64Array(keys.words.length + 1));
    written.forEach((_, row) => {
      const word = queries.indices[row];
      if (word === queries.words.length) return;
      for (const head of chosen)
        head[row + shift]?.forEach((weight, column) => (sums[word][keys.indices[column]] += Math.max(weight, 0) / chosen.length));
    });
    return queries.words.map((word, number) => {
      const all = sums[number].reduce((sum, weight) => sum + weight, 0), among = sums[number].slice(0, -1);
      const index = among.indexOf(Math.max(...among));
      const share = all > 0 && among.length ? among[index] / all : 0;
      return { target: word, source: share > 0 ? keys.words[index] : null, share };
    });
  }

  /** Words of what tokens spell, and for each token the index of its word, or their number if it has none. */
  words(tokenizer, ids) {
    const spell = (count) => tokenizer.decode(ids.slice(0, count), { skip_special_tokens: true });
    const text = ids.length ? spell(ids.length) : "", words = [...text.matchAll(/\S+/g)];
    const special = new Set([...tokenizer.get_added_tokens_decoder()].filter(([, one]) => one.special).map(([id]) => id));
    const indices = ids.map((id, index) => {
      if (special.has(id)) return words.length;
      const start = (index ? spell(index) : "").replace(/\uFFFD+$/, "").length;
      return words.filter((word) => word.index + word[0].length <= start).length;
    });
    return { words: words.map(([word]) => word), indices };
  }

  /** What is shown of each token. */
  pieces(tokenizer, ids) {
    return ids.map((id) => (tokenizer.id_to_token(id) ?? String(id)).replace(/^▁(?=.)/, "").replace("▁", "␣"));
  }
}

const drawn = (width, height) => {
  const pen = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d", { willReadFrequently: true });
  pen.fillStyle = "white";
  pen.fillRect(0, 0, width, height);
  return pen;
};

/** Scale rows of RGBA to another width, with a filter as wide as the scale asks for (Pillow's bicubic or bilinear). */
function resized(pixels, width, height, wanted, bicubic) {
  if (width === wanted) return pixels;
  const kernel = (x) =>
    !bicubic ? Math.max(0, 1 - x) : x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
  const scale = Math.max(width / wanted, 1), reach = (bicubic ? 2 : 1) * scale, result = new Uint8ClampedArray(4 * wanted * height);
  for (let column = 0; column < wanted; column++) {
    const centre = ((column + 0.5) * width) / wanted;
    const first = Math.max(0, Math.floor(centre - reach + 0.5)), end = Math.min(width, Math.floor(centre + reach + 0.5));
    const weights = Array.from({ length: end - first }, (_, tap) => kernel(Math.abs(first + tap - centre + 0.5) / scale));
    const sum = weights.reduce((one, other) => one + other);
    for (let row = 0; row < height; row++)
      for (let channel = 0; channel < 4; channel++) {
        let value = 0;
        weights.forEach((weight, tap) => (value += weight * pixels[4 * (row * width + first + tap) + channel]));
        result[4 * (row * wanted + column) + channel] = Math.floor(value / sum + 0.5);
      }
  }
  return result;
}

function transposed(pixels, width, height) {
  const result = new Uint8ClampedArray(pixels.length);
  for (let row = 0; row < height; row++)
    for (let column = 0; column < width; column++)
      for (let channel = 0; channel < 4; channel++)
        result[4 * (column * height + row) + channel] = pixels[4 * (row * width + column) + channel];
  return result;
}

export class Classifier {
  static async open({ ort }, { path, graphs }, advance) {
    const model = new Classifier();
    const read = (name) => fetchJson(`${path}/${name}`);
    [model.config, model.processor, model.session] = await Promise.all([
      read("config.json"),
      read("preprocessor_config.json"),
      openSession(ort, `${path}/${graphs[0]}`, advance),
    ]);
    model.ort = ort;
    const size = model.config.image_size;
    [model.height, model.width] = Array.isArray(size) ? size : [size, size];
    return model;
  }

  /** A picture as the model sees it: a canvas of its size, with the pixels that Pillow would give. */
  scaled(picture) {
    const [width, height] = [picture.naturalWidth ?? picture.width, picture.naturalHeight ?? picture.height];
    const pen = drawn(width, height);
    pen.drawImage(picture, 0, 0);
    const { data } = pen.getImageData(0, 0, width, height), bicubic = this.processor.resample !== 2;
    const rows = resized(data, width, height, this.width, bicubic); // across first, as there
    const pixels = transposed(
      resized(transposed(rows, this.width, height), height, this.width, this.height, bicubic), this.height, this.width,
    );
    const seen = drawn(this.width, this.height);
    seen.putImageData(new ImageData(pixels, this.width, this.height), 0, 0);
    return { canvas: seen.canvas, pixels };
  }

  /** Class probabilities, falling, and the weights [layers][heads][queries][keys]. */
  async classify(pixels) {
    const { processor, config, ort, height, width } = this, size = height * width, given = new Float32Array(3 * size);
    for (let channel = 0; channel < 3; channel++)
      for (let index = 0; index < size; index++) {
        let value = pixels[4 * index + channel];
        if (processor.do_rescale !== false) value *= processor.rescale_factor ?? 1 / 255;
        if (processor.do_normalize !== false) value = (value - processor.image_mean[channel]) / processor.image_std[channel];
        given[channel * size + index] = value;
      }
    const outputs = await this.session.run({ pixel_values: new ort.Tensor("float32", given, [1, 3, height, width]) });
    const logits = [...outputs.logits.data], largest = Math.max(...logits);
    const several = config.problem_type === "multi_label_classification";
    const powers = logits.map((value) => (several ? 1 / (1 + Math.exp(-value)) : Math.exp(value - largest)));
    const sum = several ? 1 : powers.reduce((one, other) => one + other);
    const classes = powers.map((power, label) => ({ label: config.id2label[label] ?? String(label), share: power / sum }));
    const layers = this.session.outputNames.filter((name) => name.startsWith("attentions."))
      .sort((one, two) => one.split(".")[1] - two.split(".")[1]).map((name) => heads(outputs[name]));
    return { classes: classes.sort((one, two) => two.share - one.share), layers, logits };
  }
}
