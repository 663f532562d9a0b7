// Where rows stand in a list that may be longer than the highest element that browsers can draw.
//
// Up to `MOST` pixels all is as usual. Beyond, the element is that high, and `shift` says how far its rows are moved up.
// A turn of the wheel moves rows by as much as always; a jump of the scroll bar goes to the same share of the list. Where
// scrolling comes to rest, the bar is set right.

const MOST = 8e6;

const list = document.getElementById("cards");
let ratio = 1; // pixels of the list to one of the scroll bar
let shift = 0;
let last = 0;

const scroll = () => -list.getBoundingClientRect().top;

export function measure(pixels) {
  const high = Math.min(pixels, MOST);
  list.style.height = `${high}px`;
  const before = ratio;
  ratio = high > innerHeight ? (pixels - innerHeight) / (high - innerHeight) : 1;
  if (pixels <= MOST) ratio = 1;
  if (ratio !== before) shift = Math.max(0, scroll()) * (ratio - 1);
  last = scroll();
}

// Where in the window the first row stands, or would stand.
export const origin = () => list.getBoundingClientRect().top - shift;

// The place in the element of a position in the list, in pixels.
export const top = (pixels) => pixels - shift;

export function scrolled() {
  const now = scroll();
  if (ratio > 1 && Math.abs(now - last) > 2 * innerHeight) shift = Math.max(0, now) * (ratio - 1);
  if (now <= 0) shift = Math.min(shift, Math.max(0, shift + now));
  last = now;
}

export function moveBy(pixels) {
  const to = pixels - origin();
  scrollBy({ top: (to > 0 ? to / ratio : to) - scroll(), behavior: "instant" });
  last = scroll();
  shift = ratio > 1 ? Math.max(0, to - last) : 0;
}

// Sets the scroll bar right; returns whether it had to be.
export function rest() {
  if (ratio === 1 || Math.abs(Math.max(0, -origin()) / ratio - Math.max(0, scroll())) < innerHeight) return false;
  moveBy(0);
  return true;
}
