// One colour a request, for as long as it may be seen. With white or black text on them the contrast is 4.5 at least.

export const PALETTE = [
  { fill: "#0b6bcb", text: "#ffffff" },
  { fill: "#f2a33a", text: "#000000" },
  { fill: "#11783a", text: "#ffffff" },
  { fill: "#c2379b", text: "#ffffff" },
  { fill: "#63c5da", text: "#000000" },
  { fill: "#8a4b14", text: "#ffffff" },
  { fill: "#b7d14a", text: "#000000" },
  { fill: "#6a4fc4", text: "#ffffff" },
  { fill: "#e08a8a", text: "#000000" },
  { fill: "#4b5a6b", text: "#ffffff" },
];
const MAX_KNOWN = 1000;

const known = new Map();
let numGiven = 0;

/** {fill, text} of a request: neighbours in time have different ones. */
export function colourOf(id) {
  let index = known.get(id);
  if (index === undefined) {
    index = numGiven++ % PALETTE.length;
    known.set(id, index);
    if (known.size > MAX_KNOWN) known.delete(known.keys().next().value);
  }
  return PALETTE[index];
}
