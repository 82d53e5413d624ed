// A broker under test: the faults that wait for requests, and its clocks.

import { get, post, session } from "./api.js";
import { Table, card, field, h, note, number, time, visible } from "./dom.js";
import { again } from "./pages.js";

const UNITS = { seconds: 1, minutes: 60, hours: 3600, days: 86400 };

function span(ms) {
  if (!ms) return "nothing";
  const larger = Object.entries(UNITS).reverse();
  const [unit, seconds] = larger.find(([, each]) => ms >= 2000 * each) ?? larger.at(-1);
  return `${number(Math.round(ms / seconds / 100) / 10)} ${unit}`;
}

export async function tests(view) {
  const clocks = h("div", { class: "cards" }),
    bad = (error) => note(error.message, true);
  let drawn = "";
  const disarm = (body, text) =>
    post("/tests/disarm", body)
      .then(() => note(text))
      .then(look)
      .catch(bad);
  const columns = [
    ["Fault", (row) => number(row.number), "num"],
    ["What", (row) => visible(row.text)],
    ["Hits", (row) => number(row.hits), "num"],
  ];
  if (session.may_write)
    columns.push([
      "",
      (row) =>
        h(
          "button",
          { type: "button", onclick: () => disarm({ fault: row.number }, `fault ${row.number} is disarmed`) },
          "Disarm",
        ),
    ]);
  const table = new Table(columns, { label: "Faults" });
  view.append(
    h("h1", {}, "Test"),
    h("h2", {}, "Faults that are armed"),
    table.element,
    session.may_write &&
      h(
        "div",
        { class: "row" },
        h(
          "button",
          { type: "button", onclick: () => disarm({}, "nothing is to fail any more") },
          "Disarm all",
        ),
      ),
    h("h2", {}, "Clocks"),
    session.may_write && moving(() => look().catch(bad)),
    clocks,
  );
  async function look() {
    const it = await get("/tests");
    const faults = JSON.stringify(it.faults);
    if (faults !== drawn) table.set(it.faults); // else a button keeps its focus
    drawn = faults;
    clocks.replaceChildren(
      card("Time of logs", time(it.log_ms).slice(0, 19)),
      card("Added to logs", span(it.log_added_ms), it.log_is_frozen ? ", stands still" : ""),
      card("Added to coordinators", span(it.coordinator_added_ms)),
    );
  }
  await look();
  return again(2, look);
}

function moving(look) {
  const clock = h(
      "select",
      { name: "clock" },
      h("option", { value: "log" }, "logs: retention, expiry"),
      h("option", { value: "coordinator" }, "coordinators: sessions, transactions"),
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
          .then(() => note(`the clock went on by ${amount.value} ${unit.value}`))
          .then(look)
          .catch((error) => note(error.message, true));
      },
    },
    field("Clock of", clock),
    field("By", amount),
    field("Unit", unit),
    h("button", {}, "Let time pass"),
  );
}
