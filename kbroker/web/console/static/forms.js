// Dialogs that change something: they show what will happen, ask in the page, and show errors where they occur.

import { h, notify, visible } from "./dom.js";
import { msOf, zoneName } from "./times.js";

let dialogs = 0;

// Opens a dialog with a form. Returns a promise: true after `act` succeeded, false if the dialog was closed.
//
// title: heading of the dialog.
// text: sentence below the heading; optional.
// fields: [{ name, label, type, value, options, placeholder, help, required, min, max, when }]. `type` is that of
//   an input, or "select" (options: strings or [value, text]), "textarea", "checkbox" or "time" (a time in the zone
//   that the user chose; its value is in ms). when(values): returns true if the field applies; others are hidden.
// preview(values): returns a node that shows what the action will do. Without fields it is shown at once.
//   With fields, the button Preview or Enter shows it, and the action is possible only after it. A problem of
//   `blockingProblem` in the node prevents the action.
// isNotice: the dialog only shows something, and has no button Cancel.
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
  constructor({ title, text, fields = [], preview, typed, confirm, isDangerous = false, isNotice = false, act }, resolve) {
    this.preview = preview;
    this.act = act;
    this.typed = typed;
    this.resolve = resolve;
    this.needsPreview = Boolean(preview);
    this.isBusy = false;
    this.id = `dialog-${(dialogs += 1)}`;
    this.fields = fields;
    this.inputs = new Map(fields.map((each) => [each.name, inputOf(each)]));
    this.labels = new Map(fields.map((each) => [each.name, labelled(each, this.inputs.get(each.name))]));
    this.shown = h("div", { class: "preview", role: "status" });
    this.error = h("p", { class: "bad", role: "alert", id: `${this.id}-error`, hidden: true });
    this.typedInput = typed && h("input", { autocomplete: "off", oninput: () => this.update() });
    this.confirm = h("button", { class: isDangerous ? "danger" : "main" }, confirm);
    this.previewButton =
      preview &&
      fields.length > 0 &&
      // The first button of a form is the one that Enter presses.
      h("button", { type: "submit" }, "Preview");
    this.buttons = h(
      "div",
      { class: "row" },
      this.previewButton,
      this.confirm,
      !isNotice && h("button", { type: "button", onclick: () => this.element.close() }, "Cancel"),
    );
    this.element = h(
      "dialog",
      { "aria-labelledby": this.id },
      h(
        "form",
        { onsubmit: (event) => this.submit(event), oninput: (event) => this.changed(event) },
        h("h1", { id: this.id }, visible(title)),
        text && h("p", {}, visible(text)),
        [...this.labels.values()],
        this.shown,
        typed && h("label", {}, h("span", {}, "Type ", h("code", {}, visible(typed)), " to confirm"), this.typedInput),
        this.error,
        this.buttons,
      ),
    );
    this.element.addEventListener("close", () => this.finish(false));
  }
  open() {
    document.body.append(this.element);
    this.arrange();
    this.element.showModal();
    if (this.preview && !this.previewButton) this.showPreview();
    this.update();
  }
  values() {
    return Object.fromEntries([...this.inputs].map(([name, input]) => [name, valueOf(input)]));
  }
  // Hides the fields that do not apply. They are disabled, so that the browser does not require their values.
  arrange() {
    const values = this.values();
    for (const { name, when } of this.fields.filter((each) => each.when)) {
      this.labels.get(name).hidden = !when(values);
      this.inputs.get(name).disabled = !when(values);
    }
  }
  changed(event) {
    this.arrange();
    this.hideError();
    if (event.target === this.typedInput || !this.previewButton) return;
    this.needsPreview = true;
    this.shown.replaceChildren();
    this.update();
  }
  update() {
    const isTyped = !this.typed || this.typedInput.value === this.typed,
      isBlocked = this.shown.querySelector("[data-blocks]") !== null;
    this.confirm.disabled = this.isBusy || this.needsPreview || isBlocked || !isTyped;
    if (this.previewButton) this.previewButton.disabled = this.isBusy;
  }
  async showPreview() {
    await this.run(async () => {
      this.shown.replaceChildren(await this.preview(this.values()));
      this.needsPreview = false;
    });
  }
  async submit(event) {
    event.preventDefault();
    if (this.previewButton && event.submitter === this.previewButton) return this.showPreview();
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
    this.hideError();
    this.update();
    try {
      await work();
    } catch (error) {
      this.showError(error);
    }
    this.isBusy = false;
    this.update();
  }
  // Shows an error at its field, or above the buttons, and scrolls to it.
  showError(error) {
    const input = this.inputs.get(error.field);
    this.error.textContent = visible(error.message);
    this.error.hidden = false;
    if (input) {
      this.labels.get(error.field).after(this.error);
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", this.error.id);
      input.focus();
    } else this.buttons.before(this.error);
    this.error.scrollIntoView({ block: "nearest" });
  }
  hideError() {
    this.error.hidden = true;
    for (const input of this.inputs.values()) {
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-describedby");
    }
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
  if (type === "time")
    return h("input", { name, required, type: "datetime-local", step: 0.001, max: "9998-12-31T23:59" });
  if (type === "select")
    return h(
      "select",
      { name, required },
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
  return h("label", {}, type === "time" ? `${label} (${zoneName()})` : label, input, note);
}

function valueOf(input) {
  if (input.type === "checkbox") return input.checked;
  if (input.type === "datetime-local") return msOf(input.value);
  return input.type === "number" ? (input.value === "" ? null : Number(input.value)) : input.value;
}

// A problem in a preview because of which the broker would reject the action, or "" without a problem.
export const blockingProblem = (text) => (text ? h("p", { class: "bad", "data-blocks": true }, visible(text)) : "");

// An error that a dialog shows at one of its fields.
export const fieldError = (field, text) => Object.assign(new Error(text), { field });

// A list of facts, for previews: [[name, value], ...].
export const facts = (rows) =>
  h(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
