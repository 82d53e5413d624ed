// Buttons in rows of tables, and parts of previews that several pages share.

import { h, number, visible } from "./dom.js";
import { actionButton } from "./forms.js";
import { Table, selectedText } from "./table.js";

// A small button in a row of a table; `name` is the object of the action, for screen readers.
export function rowAction(label, name, options, done) {
  const button = actionButton(label, options, { done });
  button.classList.add("inline");
  button.setAttribute("aria-label", `${label} ${visible(name)}`);
  return button;
}

export const actions = (...buttons) => h("div", { class: "actions" }, buttons);

// A table of what an action changes, or a sentence if it changes nothing.
export const previewTable = (label, columns, rows, none = "Nothing changes.") =>
  rows.length ? new Table(columns, { label, tall: false }).set(rows).element : h("p", {}, none);

// A button that deletes the selected rows of a table, as far as the viewer may delete all of them.
//
// open(keys): opens the dialog.
// done(): called afterwards, because a closed dialog may have deleted some of the rows.
export class DeleteSelected {
  constructor(table, open, done) {
    this.table = table;
    this.element = h("button", {
      type: "button",
      onclick: async () => {
        await open([...table.selected]);
        await done();
      },
    });
  }
  update() {
    const { given: rows, keyOf, selected } = this.table,
      mayDelete = (row) => row.may.includes("DELETE"),
      chosen = selected.size ? rows.filter((row) => selected.has(keyOf(row))) : [];
    this.element.textContent = `Delete${selectedText(this.table)}`;
    this.element.disabled = !chosen.length || !chosen.every(mayDelete);
    this.element.hidden = !rows.some(mayDelete);
  }
}

// A note for a list that is not complete.
export const omittedNote = (count, what) =>
  count > 0 && h("p", { class: "soft" }, `${number(count)} more ${what} are not shown.`);

// Shows the page again.
export const reload = () => dispatchEvent(new HashChangeEvent("hashchange"));

// A list in a field: elements separated by commas or white space.
export const listOf = (text) => text.split(/[\s,]+/).filter(Boolean);
