// Explanation of the state of a group, partition, transaction or client.

import { apiTable, mergedClients } from "./activity.js";
import { get, encodePart } from "./api.js";
import { h, time, visible } from "./dom.js";
import { actions, reload } from "./row_actions.js";
import { abortButton } from "./transactions.js";

export default async function explain(view, parts) {
  const [, kind, ...names] = parts;
  view.append(h("h1", {}, visible(`Explanation: ${kind} ${names.join("-")}`)));
  const it = await get(`/explain/${kind}/${names.map(encodePart).join("/")}`);
  view.append(
    h("p", {}, visible(it.now)),
    it.facts.length > 0 &&
      h(
        "ul",
        {},
        it.facts.map((each) => h("li", {}, visible(each))),
      ),
    ...mergedClients(it.clients).map((each) => apiTable(each.apis)),
    h(
      "ul",
      { class: "lines card" },
      !it.past.length && h("li", {}, "No history recorded."),
      it.past.map((each) =>
        h("li", {}, h("span", { class: "soft" }, `${time(each.at_ms)}  `), visible(each.text)),
      ),
    ),
  );
  if (kind === "transaction") {
    const id = names.join("/"),
      { transactions } = await get("/transactions", { id });
    if (transactions.some((row) => row.may_abort)) view.append(actions(abortButton(id, reload)));
  }
}
