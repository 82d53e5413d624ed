// Delegation tokens.

import { get, post } from "./api.js";
import { h, visible } from "./dom.js";
import { actionButton, facts, openForm } from "./forms.js";
import { actions, listOf, omittedNote, rowAction } from "./row_actions.js";
import { Table } from "./table.js";

const HOUR_MS = 3_600_000;

export default async function tokens(view) {
  const it = await get("/tokens");
  if (it.unavailable) {
    view.append(h("p", {}, visible(`Delegation tokens are not available: ${it.unavailable}.`)));
    return;
  }
  const refresh = async () => table.set((await get("/tokens")).tokens);
  const table = new Table(
    [
      ["Token ID", (row) => h("code", {}, visible(row.token))],
      ["Owner", (row) => visible(row.owner), null, (row) => row.owner],
      ["Renewers", (row) => visible(row.renewers.join(", "))],
      ["Issued", (row) => row.issued, null, (row) => row.issued],
      ["Expires", (row) => row.expires, null, (row) => row.expires],
      ["Latest expiry", (row) => row.latest],
      ...(it.may_alter
        ? [
            [
              "Actions",
              (row) =>
                row.may_alter
                  ? actions(
                      rowAction("Renew", row.token, renewForm(row), refresh),
                      rowAction("Expire", row.token, expireForm(row), refresh),
                    )
                  : "",
            ],
          ]
        : []),
    ],
    { label: "Delegation tokens" },
  );
  view.append(
    h("p", { class: "soft" }, "A client with a token authenticates by SCRAM as the token's owner."),
    h(
      "div",
      { class: "row" },
      it.may_alter && actionButton("Create token", createForm(), { done: refresh, isMain: true }),
    ),
    table.set(it.tokens).element,
    omittedNote(it.omitted, "tokens") || "",
  );
}

const hours = { name: "hours", type: "number", min: 1, help: "The brokers have a limit as well." };

function createForm() {
  return {
    title: "Create token",
    fields: [
      { name: "owner", label: "Owner", placeholder: "User:alice", help: "Empty: you." },
      { name: "renewers", label: "Renewers", placeholder: "User:bob, User:carol" },
      { ...hours, label: "Maximum lifetime in hours" },
    ],
    confirm: "Create token",
    act: async (values) => {
      const made = await post("/tokens/create", {
        owner: values.owner,
        renewers: listOf(values.renewers),
        ...period("max_lifetime_ms", values),
      });
      showSecret(made);
    },
  };
}

// The HMAC is shown once: no other response contains it.
function showSecret(made) {
  openForm({
    title: "Token created",
    text: "Copy the HMAC now. It is the password of the token and is not shown again.",
    preview: () =>
      facts([
        ["Token ID", h("code", {}, visible(made.token))],
        ["HMAC", h("code", {}, made.hmac)],
        ["Owner", visible(made.owner)],
        ["Expires", made.expires],
      ]),
    confirm: "Done",
    isNotice: true,
    act: async () => {},
  });
}

const period = (name, { hours: value }) => (value === null ? {} : { [name]: Math.round(value * HOUR_MS) });

function renewForm(row) {
  return {
    title: "Renew token",
    text: `Token ${row.token} of ${row.owner} expires at ${row.expires}.`,
    fields: [{ ...hours, label: "Valid for hours from now" }],
    confirm: "Renew",
    act: async (values) => {
      const it = await post("/tokens/renew", { token: row.token, ...period("period_ms", values) });
      return `The token is valid until ${it.expires}.`;
    },
  };
}

function expireForm(row) {
  return {
    title: "Expire token",
    preview: async () => {
      const it = await post("/tokens/expire", { token: row.token });
      return h(
        "div",
        {},
        facts([
          ["Token ID", h("code", {}, visible(it.token))],
          ["Owner", visible(it.owner)],
          ["Valid until", it.expires],
        ]),
        h("p", {}, "Clients with this token cannot log in any more. Open connections stay authenticated."),
      );
    },
    confirm: "Expire",
    isDangerous: true,
    act: async () => {
      await post("/tokens/expire", { token: row.token, dry_run: false });
      return "The token has expired.";
    },
  };
}
