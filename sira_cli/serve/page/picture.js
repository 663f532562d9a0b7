// The picture that is asked about: chosen, dropped, pasted, or one of the examples; and the same picture large.

import { element } from "./element.js";
import { Refusal, send } from "./server.js";

const KNOWN = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"]; // to every browser
const find = (selector) => document.querySelector(selector);

export class ChosenPicture {
  // `onChange` is called, and waited for, before a picture takes the place of another; `complain` with what is wrong.
  constructor(onChange, complain) {
    this.file = undefined;
    this.settled = Promise.resolve(); // once it is known whether the last choice is a picture
    this.onChange = onChange;
    this.complain = complain;
    const large = find("#large");
    find("#enlarge").addEventListener("click", () => this.enlarge());
    find("#close").addEventListener("click", () => large.close());
    find("#actual").addEventListener("click", ({ target }) => {
      const isActual = find("#sheet").classList.toggle("actual");
      target.setAttribute("aria-pressed", String(isActual));
    });
  }

  choose(file) {
    if (file) this.settled = this.settled.then(() => this.take(file)).catch((error) => this.complain(String(error)));
  }

  async take(file) {
    if (file.type && !file.type.startsWith("image/")) return this.complain(`${file.name} is not a picture.`);
    const url = URL.createObjectURL(file);
    const image = element("img", { src: url });
    const isShown = await image.decode().then(() => true, () => false);
    if (!isShown && KNOWN.includes(file.type)) {
      URL.revokeObjectURL(url);
      return this.complain(`${file.name} cannot be shown: it is damaged, too large, or not what its name says. Choose another picture.`);
    }
    await this.onChange();
    this.file = file;
    this.show(file.name, url, isShown);
    // A picture that breaks off is shown as far as it goes; this is stricter.
    if (isShown && !(await isWhole(file))) this.complain(`${file.name} is damaged: a part of it may be missing, and the server may refuse it.`);
  }

  enlarge() {
    const { src, alt } = find("#picture");
    Object.assign(find("#sheet img"), { src, alt });
    find("#large").showModal();
  }

  show(name, url, isShown) {
    const image = find("#picture");
    URL.revokeObjectURL(image.src);
    Object.assign(image, { src: url, alt: name });
    image.hidden = !isShown;
    find("#enlarge").hidden = !isShown;
    find("#invitation").classList.toggle("unseen", isShown); // it still names the field
    find(".drop").classList.toggle("full", isShown);
    find("#file-name").textContent = isShown ? name : `${name}: this browser cannot show it, the server may know it`;
  }

  // Its part of a message: the file as it is, which the server decodes as the command line would.
  part() {
    return new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => {
        const url = reader.result.replace(/^data:[^,]*,/, "data:image;base64,");
        resolve({ type: "image_url", image_url: { url } });
      };
      reader.onerror = () => reject(new Refusal(`${this.file.name} cannot be read: choose it again.`, 400));
      reader.readAsDataURL(this.file);
    });
  }

  // Buttons for the pictures that the server offers to try; those that do not come are left out.
  async offer(examples) {
    find("#examples").hidden = !examples.length;
    const answers = examples.map(({ name }) => send(`page/${name}`).then((answer) => answer.blob(), () => null));
    for (const [at, blob] of (await Promise.all(answers)).entries()) {
      if (blob === null) continue;
      const { name, words } = examples[at];
      const image = element("img", { src: URL.createObjectURL(blob), alt: "" });
      const button = element("button", { type: "button", ariaLabel: `Example: ${words}`, title: words }, image);
      button.addEventListener("click", () => this.choose(new File([blob], name, { type: blob.type })));
      find("#examples .row").append(button);
    }
  }
}

async function isWhole(file) {
  try {
    (await createImageBitmap(file)).close();
    return true;
  } catch {
    return false;
  }
}
