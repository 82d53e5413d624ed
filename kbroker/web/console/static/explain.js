// Explanation of the state of a group, partition, transaction or client.

import { apiTable, mergedClients } from "./activity.js";
import { get, encodePart } from "./api.js";
import { h, time, visible } from "./dom.js";

export default async function explain(view, parts) {
  const [, kind, ...names] = parts;
  const it = await get(`/explain/${kind}/${names.map(encodePart).join("/")}`);
  view.append(
    h("h1", {}, `Explanation: ${kind} ${visible(names.join("-"))}`),
    h("p", {}, visible(it.now)),
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
}
