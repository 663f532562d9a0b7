// What differs between two texts, word by word, as `sira compare` finds it (`analysis.compare.differences`). It is found
// here and not by the server, where the time that two long texts take would be everybody's.

const PIECE = /\s*(?:[\u3040-\u30ff\u3400-\u9fff]|(?:(?![\u3040-\u30ff\u3400-\u9fff])[\p{L}\p{N}_])+(?:['’-][\p{L}\p{N}_]+)*|[^\p{L}\p{N}_\s])/gu;

// Start and end, in characters, of each stretch of either text that the other one lacks: `[of the first, of the second]`.
export function differences(first, second) {
  const texts = [first, second].map((text) => {
    let end = 0;
    return [...text.matchAll(PIECE)].map(([piece]) => {
      const start = end + [...piece].length - [...piece.trimStart()].length;
      end += [...piece].length;
      return { word: piece.trimStart(), start, end };
    });
  });
  const [words, others] = texts.map((pieces) => pieces.map(({ word }) => word));
  const equal = [...blocks(words, others, 0, words.length, 0, others.length), [words.length, others.length, 0]];
  return texts.map((pieces, side) => {
    let from = 0;
    return equal.flatMap((block) => {
      const gap = pieces.slice(from, block[side]);
      from = block[side] + block[2];
      return gap.length ? [[gap[0].start, gap.at(-1).end]] : [];
    });
  });
}

// The longest stretch that both have, and so on before and after it: its place in both, and its length.
function blocks(words, others, low, high, otherLow, otherHigh) {
  let [place, otherPlace, length] = [low, otherLow, 0];
  let lengths = new Map(); // of the stretch that ends with the last word and with each of the others
  for (let at = low; at < high; at++) {
    const longer = new Map();
    for (let other = otherLow; other < otherHigh; other++) {
      if (words[at] !== others[other]) continue;
      const found = (lengths.get(other - 1) ?? 0) + 1;
      longer.set(other, found);
      if (found > length) [place, otherPlace, length] = [at - found + 1, other - found + 1, found];
    }
    lengths = longer;
  }
  if (!length) return [];
  return [
    ...blocks(words, others, low, place, otherLow, otherPlace),
    [place, otherPlace, length],
    ...blocks(words, others, place + length, high, otherPlace + length, otherHigh),
  ];
}
