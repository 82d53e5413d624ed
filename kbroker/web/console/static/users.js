// Users that authenticate with SCRAM.

import { get, post } from "./api.js";
import { h, visible } from "./dom.js";
import { actionButton, facts } from "./forms.js";
import { actions, omittedNote, rowAction } from "./row_actions.js";
import { Table } from "./table.js";

export default async function users(view) {
  const it = await get("/users");
  const columns = [
    ["User", (row) => h("strong", {}, visible(row.user)), null, (row) => row.user],
    ["Mechanisms", (row) => Object.keys(row.iterations).join(", ")],
    ["Iterations", (row) => Object.values(row.iterations).join(", "), "num"],
  ];
  const refresh = async () => table.set((await get("/users")).users);
  if (it.may_alter)
    columns.push([
      "Actions",
      (row) =>
        actions(
          rowAction("Change password", row.user, passwordForm(it, row.user), refresh),
          rowAction("Delete", row.user, deleteForm(row.user), refresh),
        ),
    ]);
  const table = new Table(columns, { label: "Users" });
  view.append(
    h(
      "p",
      { class: "soft" },
      "Users with SCRAM credentials. Users in the settings of a listener are not listed.",
    ),
    h(
      "div",
      { class: "row" },
      it.may_alter && actionButton("Create user", passwordForm(it), { done: refresh, isMain: true }),
    ),
    table.set(it.users).element,
    omittedNote(it.omitted, "users") || "",
  );
}

function passwordForm(it, user) {
  const served = it.mechanisms?.length ? it.mechanisms.join(", ") : "SCRAM-SHA-256";
  return {
    title: user === undefined ? "Create user" : `Change the password of ${user}`,
    fields: [
      ...(user === undefined ? [{ name: "user", label: "User name", required: true }] : []),
      { name: "password", label: "Password", type: "password", required: true },
      { name: "again", label: "Repeat the password", type: "password", required: true },
      {
        name: "mechanism",
        label: "Mechanism",
        type: "select",
        options: [["", `Those of the listeners (${served})`], ...it.valid_mechanisms],
        value: "",
      },
      { name: "iterations", label: "Iterations", type: "number", value: it.iterations.min, ...it.iterations },
    ],
    confirm: user === undefined ? "Create user" : "Change password",
    act: async (values) => {
      if (values.password !== values.again) throw new Error("The passwords differ.");
      const made = await post("/users/set", {
        user: user ?? values.user,
        password: values.password,
        mechanisms: values.mechanism ? [values.mechanism] : [],
        iterations: values.iterations ?? it.iterations.min,
      });
      if (made.unusable.length)
        return `${made.user}: no listener enables ${made.unusable.join(", ")}, so the user cannot log in with it.`;
      return `${made.user} can log in with ${made.mechanisms.join(", ")}.`;
    },
  };
}

function deleteForm(user) {
  return {
    title: `Delete user ${user}`,
    preview: async () => {
      const it = await post("/users/delete", { user });
      return h(
        "div",
        {},
        facts([["Removed credentials", it.mechanisms.join(", ")]]),
        h(
          "p",
          {},
          "Open connections of the user stay authenticated until they close. ACLs of the user remain.",
        ),
        it.is_viewer && h("p", { class: "bad" }, "This is the user that you are logged in as."),
      );
    },
    confirm: "Delete user",
    isDangerous: true,
    act: async () => {
      await post("/users/delete", { user, dry_run: false });
      return `User ${user} was deleted.`;
    },
  };
}
