// Test controls: armed faults, and clocks.

import { get, post, session } from "./api.js";
import { refreshEvery } from "./common.js";
import { card, field, h, notify, number, time, visible } from "./dom.js";
import { Table } from "./table.js";

const UNITS = { seconds: 1, minutes: 60, hours: 3600, days: 86400 };

function span(ms) {
  if (!ms) return "none";
  const larger = Object.entries(UNITS).reverse();
  const [unit, seconds] = larger.find(([, each]) => ms >= 2000 * each) ?? larger.at(-1);
  return `${number(Math.round(ms / seconds / 100) / 10)} ${unit}`;
}

export default async function tests(view) {
  const clocks = h("div", { class: "cards" }),
    showError = (error) => notify(error.message, true);
  let drawn = "";
  const disarm = (body, text) =>
    post("/tests/disarm", body)
      .then(() => notify(text))
      .then(refresh)
      .catch(showError);
  const columns = [
    ["Fault", (row) => number(row.number), "num"],
    ["Description", (row) => visible(row.text)],
    ["Hits", (row) => number(row.hits), "num"],
  ];
  if (session.may_write)
    columns.push([
      "",
      (row) =>
        h(
          "button",
          { type: "button", onclick: () => disarm({ fault: row.number }, `Fault ${row.number} disarmed`) },
          "Disarm",
        ),
    ]);
  const table = new Table(columns, { label: "Faults" });
  view.append(
    h("h1", {}, "Test"),
    h("h2", {}, "Armed faults"),
    table.element,
    session.may_write &&
      h(
        "div",
        { class: "row" },
        h(
          "button",
          { type: "button", onclick: () => disarm({}, "All faults disarmed") },
          "Disarm all",
        ),
      ),
    h("h2", {}, "Clocks"),
    session.may_write && clockForm(() => refresh().catch(showError)),
    clocks,
  );
  async function refresh() {
    const it = await get("/tests");
    const faults = JSON.stringify(it.faults);
    if (faults !== drawn) table.set(it.faults); // unchanged rows keep the focus of a button
    drawn = faults;
    clocks.replaceChildren(
      card("Log clock", time(it.log_ms).slice(0, 19)),
      card("Log clock offset", span(it.log_added_ms), it.log_is_frozen ? ", frozen" : ""),
      card("Coordinator clock offset", span(it.coordinator_added_ms)),
    );
  }
  await refresh();
  return refreshEvery(2, refresh);
}

function clockForm(refresh) {
  const clock = h(
      "select",
      { name: "clock" },
      h("option", { value: "log" }, "Log: retention, expiry"),
      h("option", { value: "coordinator" }, "Coordinator: sessions, transactions"),
    ),
    amount = h("input", { name: "amount", inputmode: "numeric", value: "1" }),
    unit = h(
      "select",
      { name: "unit" },
      Object.keys(UNITS).map((each) => h("option", { selected: each === "hours" }, each)),
    );
  return h(
    "form",
    {
      class: "bar",
      onsubmit: (event) => {
        event.preventDefault();
        const seconds = Math.round(Number(amount.value) * UNITS[unit.value]);
        post("/tests/advance", { clock: clock.value, seconds })
          .then(() => notify(`Clock advanced by ${amount.value} ${unit.value}`))
          .then(refresh)
          .catch((error) => notify(error.message, true));
      },
    },
    field("Clock", clock),
    field("Amount", amount),
    field("Unit", unit),
    h("button", {}, "Advance clock"),
  );
}
