// greedy and beam search by the rules of transformers: the tokens are those of `generate` in PyTorch

const NEVER = -1e9;

/** Tokens from the start token to the end, if there is one.
 * @param step (tokens, parents) → { logits, vocabulary }: logits [rows × vocabulary] behind one more token for each row,
 *   where row r goes on from row parents[r] of the step before; null at first.
 */
export async function search(step, { start, end, beams, maxLength, lengthPenalty = 1, earlyStopping = false }) {
  return beams === 1
    ? greedy(step, start, end, maxLength)
    : beam(step, { start, end, beams, maxLength, lengthPenalty, earlyStopping });
}

async function greedy(step, start, end, maxLength) {
  const tokens = [start];
  let parents = null;
  while (tokens.length < maxLength) {
    const { logits } = await step([tokens.at(-1)], parents);
    let best = 0;
    for (let token = 1; token < logits.length; token++) if (logits[token] > logits[best]) best = token;
    tokens.push(best);
    parents = [0];
    if (best === end) break;
  }
  return tokens;
}

const falling = (one, other) => other.score - one.score;

async function beam(step, { start, end, beams, maxLength, lengthPenalty, earlyStopping }) {
  let running = Array.from({ length: beams }, (_, row) => ({ tokens: [start], score: row ? NEVER : 0 }));
  let finished = Array.from({ length: beams }, () => ({ tokens: [start], score: NEVER, done: false }));
  let parents = null, mayImprove = true;
  for (;;) {
    const { logits, vocabulary } = await step(running.map(({ tokens }) => tokens.at(-1)), parents);
    const length = running[0].tokens.length;
    const continued = best(logits, vocabulary, running, 2 * beams).map(({ row, token, score }) => ({
      row, score, tokens: [...running[row].tokens, token], hit: token === end || length + 1 >= maxLength,
    }));
    const goes = continued.map((one) => ({ ...one, score: one.score + (one.hit ? NEVER : 0) }));
    running = goes.sort(falling).slice(0, beams);
    const isFull = finished.every(({ done }) => done) && earlyStopping === true;
    const ended = continued.map(({ tokens, score, hit }, rank) => {
      const done = hit && rank < beams;
      const penalty = (isFull ? NEVER : 0) + (mayImprove ? 0 : NEVER) + (done ? 0 : NEVER);
      return { tokens, done, score: score / length ** lengthPenalty + penalty };
    });
    finished = [...finished, ...ended].sort(falling).slice(0, beams);
    const reachable = earlyStopping === "never" && lengthPenalty > 0 ? maxLength - 1 : length;
    const worst = Math.min(...finished.map(({ score }) => score));
    const possible = running[0].score / reachable ** lengthPenalty;
    mayImprove &&= finished.some(({ done }) => possible > (done ? worst : NEVER));
    const isDone = !mayImprove || continued.every(({ hit }) => hit);
    if (isDone || (earlyStopping === true && finished.every(({ done }) => done))) return finished[0].tokens;
    parents = running.map(({ row }) => row);
  }
}

/** The best continuations of all rows by log P, falling. */
function best(logits, vocabulary, running, number) {
  const candidates = [];
  running.forEach(({ score }, row) => {
    const start = row * vocabulary;
    let largest = -Infinity, sum = 0;
    for (let token = 0; token < vocabulary; token++) largest = Math.max(largest, logits[start + token]);
    for (let token = 0; token < vocabulary; token++) sum += Math.exp(logits[start + token] - largest);
    const constant = score - largest - Math.log(sum), top = [];
    for (let token = 0; token < vocabulary; token++) {
      const value = logits[start + token];
      if (top.length === number && value <= top.at(-1).value) continue;
      let rank = top.length;
      while (rank && top[rank - 1].value < value) rank--;
      top.splice(rank, 0, { token, value });
      if (top.length > number) top.pop();
    }
    candidates.push(...top.map(({ token, value }) => ({ row, token, score: value + constant })));
  });
  return candidates.sort(falling).slice(0, number);
}
