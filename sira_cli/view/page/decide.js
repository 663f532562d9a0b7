// Accepting, rejecting, and the way back.

import { say } from "./dom.js";
import { element } from "./element.js";
import * as grid from "./grid.js";
import * as picture from "./picture.js";
import { change, store } from "./store.js";
import { count, show, turn } from "./walk.js";

const NAMES = { accepted: "Accepted", rejected: "Rejected" };

export async function decide(decision) {
  const name = NAMES[decision];
  if (picture.isOpen()) {
    if (!(await picture.send({ decision }))) return;
    say(`${name}.`);
    store.last = `${name}: ${store.items.get(picture.current()).name.split("/").at(-1)}`;
    await turn(1);
    return;
  }
  const place = grid.inSight();
  if (await decideCard(place, decision)) grid.go(place + 1);
}

// Decides about a card, and stays there.
export async function decideCard(place, decision) {
  const number = store.shown[place];
  if (number === undefined || !(await attempt(number, { decision }))) return false;
  grid.go(place, false);
  say(`${NAMES[decision]}.`);
  return true;
}

// A change from the gallery; if it fails, the picture is opened to show the reason.
async function attempt(number, what) {
  try {
    await change(number, what);
    grid.redraw(number);
    count();
    return true;
  } catch (error) {
    if (error.status === undefined) throw error;
    await show(number);
    picture.tell(element("p", {}, error.now ? "This caption was changed elsewhere meanwhile. Check it, and decide again." : error.message));
    return false;
  }
}

export const undo = () => step(store.steps, { undo: true }, "Undone.");
export const redo = () => step(store.undone, { redo: true }, "Done again.");

// Takes this window's last change back, or makes it again; without any, that of the picture that is shown.
async function step(steps, what, done) {
  const last = steps.pop();
  const number = last?.number ?? (picture.isOpen() ? picture.current() : store.shown[grid.inSight()]);
  if (number === undefined) return;
  if (picture.isOpen() && picture.current() !== number) await show(number);
  const made = last?.changed !== false && (await make(number, what));
  if (!picture.isOpen()) {
    const place = store.shown.indexOf(number);
    if (place >= 0) grid.go(place);
  }
  if (made) say(done);
  else if (last?.changed === false) say("No change was made to this caption, so there is nothing to undo.");
  count();

  async function make() {
    try {
      return picture.isOpen() ? await picture.send(what) : await attempt(number, what);
    } catch (error) {
      if (last) steps.push(last); // the server did not answer
      throw error;
    }
  }
}
