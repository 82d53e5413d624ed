// Form that writes records.

import { encodePart, post } from "./api.js";
import { field, h, notify } from "./dom.js";

export default async function produce(view, name) {
  const key = h("input", { name: "key" }),
    partition = h("input", { name: "partition", inputmode: "numeric", placeholder: "by key" }),
    value = h("textarea", { name: "value", spellcheck: "false" }),
    headers = h("input", { name: "headers", placeholder: "a=1, b=2" });
  const isNull = h("input", { type: "checkbox" }),
    isEmpty = h("input", { type: "checkbox" }),
    lines = h("input", { type: "checkbox" });
  const write = (body) =>
    post(`/topics/${encodePart(name)}/records`, body)
      .then((it) =>
        notify(
          `Written: ${it.written
            .map((each) => `${each.partition}/${each.offset}`)
            .slice(0, 5)
            .join(", ")}`,
        ),
      )
      .catch((error) => notify(error.message, true));
  view.append(
    h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          if (!value.value && !isNull.checked && !isEmpty.checked) {
            notify("Enter a value, or select Null value or Empty value.", true);
            value.focus();
            return;
          }
          if (lines.checked) {
            write(value.value);
            return;
          }
          const record = {
            key: key.value || null,
            value: isNull.checked ? null : value.value,
            headers: headers.value
              .split(",")
              .filter((each) => each.trim())
              .map((each) => {
                const at = each.indexOf("=");
                return {
                  key: each.slice(0, at < 0 ? undefined : at).trim(),
                  value: at < 0 ? "" : each.slice(at + 1).trim(),
                };
              }),
          };
          if (partition.value) record.partition = Number(partition.value);
          write(JSON.stringify(record));
        },
      },
      h(
        "div",
        { class: "bar row" },
        field("Key", key),
        field("Partition", partition),
        field("Headers", headers),
      ),
      field("Value", value),
      h(
        "div",
        { class: "row" },
        h("label", { class: "check" }, isNull, "Null value"),
        h("label", { class: "check" }, isEmpty, "Empty value"),
        h("label", { class: "check" }, lines, "Value contains NDJSON lines"),
        h("button", { class: "main" }, "Produce"),
      ),
    ),
  );
}
