// Live view of new records, in order of time within a short window.

import { encodePart, parameters, streamError } from "./api.js";
import { counted, h, number, visible } from "./dom.js";

const RECORDS_MAX = 5000,
  // Records that arrive within this time are sorted by timestamp. Older rows keep their place.
  WINDOW_MS = 2000;

export class LiveTail {
  // query(): returns the parameters of the stream. isFiltered(): returns true if they select records. take(rows): shows rows, newest first. fail(error): shows why the
  // broker refuses the stream.
  constructor(name, query, status, buttons, { isFiltered, take, fail }) {
    this.url = `/api/v1/topics/${encodePart(name)}/live`;
    this.query = query;
    this.status = status;
    this.isFiltered = isFiltered;
    this.take = take;
    this.fail = fail;
    this.rows = [];
    this.waiting = [];
    this.received = 0;
    this.matching = 0;
    this.dropped = 0;
    this.position = "";
    this.problem = "";
    this.isPaused = false;
    this.isClosed = false;
    this.pauseButton = h("button", { type: "button", onclick: () => this.pause(!this.isPaused) }, "Pause");
    buttons.replaceChildren(
      this.pauseButton,
      h("button", { type: "button", onclick: () => this.clear() }, "Clear"),
    );
    status.className = "soft";
    this.connect();
    this.showStatus();
  }
  connect() {
    const text = parameters({ ...this.query(), position: this.position }).toString(),
      source = new EventSource(`${this.url}${text ? `?${text}` : ""}`);
    this.source = source;
    source.onmessage = (event) => this.receive(event);
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) this.explainEnd(source);
    };
  }
  async explainEnd(source) {
    const error = await streamError(source.url);
    if (source !== this.source || this.isClosed) return;
    this.status.className = "bad";
    this.status.textContent = visible(error?.message ?? "The live view ended. Press Search to start it again.");
    if (error) this.fail(error);
  }
  // Continues with other parameters after the last record that was received.
  reconnect() {
    this.source.close();
    this.connect();
  }
  close() {
    this.isClosed = true;
    this.source.close();
  }
  receive(event) {
    const it = JSON.parse(event.data),
      now = Date.now();
    this.position = event.lastEventId;
    this.received += it.received;
    this.matching += it.records.length;
    this.dropped += it.dropped;
    this.problem = it.problem;
    const arrived = it.records.map((row) => ({ ...row, arrivedAt: now }));
    if (this.isPaused) {
      this.waiting = this.waiting.concat(arrived);
      this.dropped += Math.max(this.waiting.length - RECORDS_MAX, 0);
      this.waiting = this.waiting.slice(-RECORDS_MAX);
    } else if (arrived.length) this.add(arrived);
    this.showStatus();
  }
  add(arrived) {
    const oldest = arrived[0].arrivedAt - WINDOW_MS,
      firstFixed = this.rows.findIndex((row) => row.arrivedAt < oldest);
    const fixed = firstFixed < 0 ? [] : this.rows.slice(firstFixed),
      recent = firstFixed < 0 ? this.rows : this.rows.slice(0, firstFixed);
    this.rows = arrived.concat(recent).sort(newestFirst).concat(fixed).slice(0, RECORDS_MAX);
    this.take(this.rows);
  }
  pause(is) {
    this.isPaused = is;
    this.pauseButton.setAttribute("aria-pressed", String(is));
    if (!is && this.waiting.length) {
      const { waiting } = this;
      this.waiting = [];
      this.add(waiting);
    }
    this.showStatus();
  }
  clear() {
    this.rows = [];
    this.waiting = [];
    this.received = 0;
    this.matching = 0;
    this.dropped = 0;
    this.take(this.rows);
    this.showStatus();
  }
  receivedText() {
    if (!this.isFiltered()) return `${counted(this.received, "record")} received`;
    return `${number(this.matching)} of ${counted(this.received, "record")} ${this.matching === 1 ? "matches" : "match"}`;
  }
  showStatus() {
    const waiting = this.waiting.length;
    this.pauseButton.textContent = this.isPaused ? `Resume (${number(waiting)} waiting)` : "Pause";
    const skipped = this.dropped ? `, ${number(this.dropped)} skipped (rate limit)` : "",
      paused = this.isPaused ? `; paused, ${counted(waiting, "waiting record")}` : "";
    this.status.textContent = this.problem
      ? visible(this.problem)
      : `Live: ${this.receivedText()}${skipped}${paused}`;
  }
}

function newestFirst(a, b) {
  return b.timestamp - a.timestamp || a.partition - b.partition || b.offset - a.offset;
}
