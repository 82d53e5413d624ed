// Dialogs that change something: they show what will happen, ask in the page, and show errors where they occur.

import { h, notify, visible } from "./dom.js";

let dialogs = 0;

// Opens a dialog with a form. Returns a promise: true after `act` succeeded, false if the dialog was closed.
//
// title: heading of the dialog.
// text: sentence below the heading; optional.
// fields: [{ name, label, type, value, options, placeholder, help, required, min, max }]. `type` is that of an
//   input, or "select" (options: strings or [value, text]), "textarea" or "checkbox".
// preview(values): returns a node that shows what the action will do. Without fields it is shown at once.
//   With fields, a button Preview shows it, and the action is possible only after it.
// typed: text that must be typed before the action is possible, such as the name of a topic to delete.
// confirm: label of the button that acts.
// isDangerous: the action cannot be undone.
// act(values): performs the action, and may return a text to show.
export function openForm(options) {
  return new Promise((resolve) => new FormDialog(options, resolve).open());
}

// A button that opens a dialog; afterwards it calls `done` if the action was performed.
// Only the button of the dialog is coloured as a danger, because the first one opens just a preview.
export function actionButton(label, options, { done = () => {}, isMain = false } = {}) {
  return h(
    "button",
    {
      type: "button",
      class: isMain ? "main" : null,
      onclick: async () => {
        if (await openForm(options)) await done();
      },
    },
    label,
  );
}

class FormDialog {
  constructor({ title, text, fields = [], preview, typed, confirm, isDangerous = false, act }, resolve) {
    this.preview = preview;
    this.act = act;
    this.typed = typed;
    this.resolve = resolve;
    this.needsPreview = Boolean(preview);
    this.isBusy = false;
    this.id = `dialog-${(dialogs += 1)}`;
    this.inputs = new Map(fields.map((each) => [each.name, inputOf(each)]));
    this.shown = h("div", { class: "preview", role: "status" });
    this.error = h("p", { class: "bad", role: "alert", hidden: true });
    this.typedInput = typed && h("input", { autocomplete: "off", oninput: () => this.update() });
    this.confirm = h("button", { class: isDangerous ? "danger" : "main" }, confirm);
    this.previewButton =
      preview &&
      fields.length > 0 &&
      h("button", { type: "button", onclick: () => this.showPreview() }, "Preview");
    this.element = h(
      "dialog",
      { "aria-labelledby": this.id },
      h(
        "form",
        { onsubmit: (event) => this.submit(event), oninput: (event) => this.changed(event) },
        h("h1", { id: this.id }, visible(title)),
        text && h("p", {}, visible(text)),
        fields.map((each) => labelled(each, this.inputs.get(each.name))),
        this.shown,
        typed && h("label", {}, h("span", {}, "Type ", h("code", {}, visible(typed)), " to confirm"), this.typedInput),
        this.error,
        h(
          "div",
          { class: "row" },
          this.previewButton,
          this.confirm,
          h("button", { type: "button", onclick: () => this.element.close() }, "Cancel"),
        ),
      ),
    );
    this.element.addEventListener("close", () => this.finish(false));
  }
  open() {
    document.body.append(this.element);
    this.element.showModal();
    if (this.preview && !this.previewButton) this.showPreview();
    this.update();
  }
  values() {
    return Object.fromEntries([...this.inputs].map(([name, input]) => [name, valueOf(input)]));
  }
  changed(event) {
    if (event.target === this.typedInput || !this.previewButton) return;
    this.needsPreview = true;
    this.shown.replaceChildren();
    this.update();
  }
  update() {
    const isTyped = !this.typed || this.typedInput.value === this.typed;
    this.confirm.disabled = this.isBusy || this.needsPreview || !isTyped;
    if (this.previewButton) this.previewButton.disabled = this.isBusy;
  }
  async showPreview() {
    if (!this.element.querySelector("form").reportValidity()) return;
    await this.run(async () => {
      this.shown.replaceChildren(await this.preview(this.values()));
      this.needsPreview = false;
    });
  }
  async submit(event) {
    event.preventDefault();
    if (this.confirm.disabled) return;
    await this.run(async () => {
      const text = await this.act(this.values());
      if (text) notify(text);
      this.finish(true);
    });
  }
  // Runs a request with the buttons disabled, and shows its error in the dialog.
  async run(work) {
    this.isBusy = true;
    this.error.hidden = true;
    this.update();
    try {
      await work();
    } catch (error) {
      this.error.textContent = visible(error.message);
      this.error.hidden = false;
    }
    this.isBusy = false;
    this.update();
  }
  finish(isDone) {
    this.resolve(isDone);
    this.element.remove();
  }
}

function inputOf({ name, type = "text", value, options, placeholder, required, min, max }) {
  const common = { name, placeholder, required, autocomplete: "off" };
  if (type === "checkbox") return h("input", { name, type, checked: Boolean(value) });
  if (type === "textarea") return h("textarea", { ...common, spellcheck: "false" }, value ?? "");
  if (type === "select")
    return h(
      "select",
      { name },
      options.map((each) => {
        const [given, text] = Array.isArray(each) ? each : [each, each];
        return h("option", { value: given, selected: given === value }, text);
      }),
    );
  return h("input", { ...common, type, value, min, max });
}

function labelled({ label, type, help }, input) {
  const note = help && h("span", { class: "help" }, help);
  if (type === "checkbox") return h("label", { class: "check" }, input, label, note);
  return h("label", {}, label, input, note);
}

function valueOf(input) {
  if (input.type === "checkbox") return input.checked;
  return input.type === "number" ? (input.value === "" ? null : Number(input.value)) : input.value;
}

// A list of facts, for previews: [[name, value], ...].
export const facts = (rows) =>
  h(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
