// Forms that register and delete schemas.

import { encodePart, post } from "./api.js";
import { h, visible } from "./dom.js";
import { blockingProblem, facts } from "./forms.js";

// A form for a new version; `newest` is the newest version of the subject, if it exists.
export function registerForm(subject, newest) {
  const path = (values) => `/schemas/${encodePart(subject ?? values.subject)}`;
  return {
    title: subject === undefined ? "Register schema" : `Register a version of ${subject}`,
    fields: [
      ...(subject === undefined
        ? [{ name: "subject", label: "Subject", required: true, placeholder: "orders-value" }]
        : []),
      {
        name: "type",
        label: "Type",
        type: "select",
        options: ["AVRO", "JSON", "PROTOBUF"],
        value: newest?.type,
      },
      { name: "schema", label: "Schema", type: "textarea", required: true, value: newest?.text },
      {
        name: "references",
        label: "References",
        type: "textarea",
        value: (newest?.references ?? [])
          .map((each) => `${each.name} ${each.subject} ${each.version}`)
          .join("\n"),
        help: "One per line: name, subject and version, separated by spaces.",
      },
    ],
    preview: async (values) => compatibility(await post(`${path(values)}/check`, bodyOf(values))),
    confirm: "Register",
    act: async (values) => {
      const made = await post(`${path(values)}/register`, bodyOf(values));
      return `${made.subject}: version ${made.version} has the schema ID ${made.id}.`;
    },
  };
}

function bodyOf(values) {
  const lines = values.references.split("\n").filter((each) => each.trim());
  const references = lines.map((line) => {
    const [name, subject, version, ...rest] = line.trim().split(/\s+/);
    if (!/^\d+$/.test(version ?? "") || rest.length)
      throw new Error(`References: expected NAME SUBJECT VERSION, not "${line}".`);
    return { name, subject, version: Number(version) };
  });
  return { type: values.type, schema: values.schema, references };
}

// The result of a compatibility check.
const compatibility = (it) =>
  h(
    "div",
    {},
    it.is_compatible
      ? h("p", { class: "good" }, `The schema is valid and compatible (${it.level}).`)
      : blockingProblem(
          it.version === null
            ? `The schema cannot be registered (${it.level}):`
            : `The schema is incompatible with version ${it.version} (${it.level}):`,
        ),
    it.reasons.length > 0 &&
      h(
        "ul",
        {},
        it.reasons.map((each) => h("li", {}, visible(each))),
      ),
  );

// A form that deletes a version, or all versions of a subject if `version` is undefined.
export function deleteForm(subject, version, permanent) {
  const what = version === undefined ? `subject ${subject}` : `version ${version} of ${subject}`,
    body = { ...(version === undefined ? {} : { version }), permanent },
    path = `/schemas/${encodePart(subject)}/delete`;
  return {
    title: permanent ? `Delete ${what} permanently` : `Delete ${what}`,
    preview: async () => {
      const it = await post(path, body);
      return h(
        "div",
        {},
        facts([
          ["Versions", it.versions.join(", ")],
          ["Referenced by schema IDs", it.referenced_by.join(", ") || "none"],
        ]),
        it.referenced_by.length > 0 &&
          blockingProblem("The registry rejects the deletion while other schemas reference it."),
        h(
          "p",
          {},
          permanent
            ? "The schemas cannot be restored. Records with their IDs can no longer be decoded."
            : "Consumers can still decode records with these schemas. A permanent deletion is possible afterwards.",
        ),
      );
    },
    typed: permanent ? subject : undefined,
    confirm: permanent ? "Delete permanently" : "Delete",
    isDangerous: true,
    act: async () => {
      await post(path, { ...body, dry_run: false });
      return permanent ? `${what} was deleted permanently.` : `${what} was deleted.`;
    },
  };
}
