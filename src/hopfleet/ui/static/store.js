// What the page knows: one feed per experiment, filled by a snapshot and kept up to date by the server's events.

import { Failure, call, get, stream } from "./session.js";

const ARRAYS = { f4: Float32Array, f8: Float64Array, u4: Uint32Array };

export async function block(path) {
  const buffer = await (await call(path)).arrayBuffer();
  const length = Number(new BigInt64Array(buffer, 0, 1)[0]);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  let offset = 8 + length;
  for (const [name, type, count] of header.columns) {
    const column = new ARRAYS[type](buffer, offset, count);
    (header.data ??= {})[name] = column;
    offset += column.byteLength + ((8 - (column.byteLength % 8)) % 8);
  }
  return header;
}

// A list of numbers that grows without copying each time.
export class Numbers {
  constructor(given = new Float64Array(0)) {
    this.room = given;
    this.length = given.length;
  }
  push(value) {
    if (this.length === this.room.length) {
      const room = new Float64Array(Math.max(16, this.length * 2));
      room.set(this.room.subarray(0, this.length));
      this.room = room;
    }
    this.room[this.length++] = value;
  }
  get(place) {
    return this.room[place];
  }
  set(place, value) {
    this.room[place] = value;
  }
}

class Curve {
  constructor(epochs, times, values) {
    this.epochs = new Numbers(epochs);
    this.times = new Numbers(times);
    this.values = new Numbers(values);
  }
  // An epoch that was rolled back ends again: the same point, not a second one.
  put(epoch, time, value) {
    for (let place = this.epochs.length - 1; place >= 0 && this.epochs.get(place) >= epoch; place--) {
      if (this.epochs.get(place) === epoch) {
        this.times.set(place, time);
        this.values.set(place, value);
        return;
      }
    }
    this.epochs.push(epoch);
    this.times.push(time);
    this.values.push(value);
  }
}

const REDRAW = 400; // milliseconds between two updates of the page
const LEISURE = 10; // the longest share of time for updates: one in so many seconds
const PARTIAL = 1500; // milliseconds between two looks at a journal that the server has not read to its end
const STREAMS = 4; // streams at the same time: browsers open few connections to one server
const SPANS = Symbol("spans"); // among the names of metrics

export class Feed {
  constructor(key) {
    this.key = key;
    this.base = `api/experiments/${encodeURIComponent(key)}`;
    this.ready = false;
    this.reading = false; // whether the server has read a part of the journal only
    this.problem = "";
    this.header = null;
    this.trials = new Map();
    this.workers = [];
    this.notes = {}; // by trial, and of the experiment under an empty name
    this.number = 0;
    this.asked = 0; // grows with each request in the journal
    this.version = 0; // grows with each update
    this.curves = new Map(); // by metric: trial -> Curve
    this.spans = null;
    this.loading = new Map();
    this.rows = []; // epochs that came as events
    this.ended = []; // spans that came as events
    this.listeners = new Set();
    this.users = 0;
    this.timer = 0;
    this.cost = 0; // milliseconds from the last update until it was painted
  }

  open() {
    this.users++;
    if (!this.attempt) this.load();
    return () => {
      this.users--;
      // The next page may show the same experiment.
      setTimeout(() => {
        if (this.users > 0) return;
        this.silence();
        this.attempt = null;
        if (feeds.get(this.key) === this) feeds.delete(this.key);
      }, 1500);
    };
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed(now = false) {
    if (now) {
      clearTimeout(this.timer);
      this.update();
    } else if (!this.timer) this.timer = setTimeout(() => this.update(), Math.max(REDRAW, LEISURE * this.cost));
  }

  update() {
    this.timer = 0;
    this.version++;
    const began = performance.now();
    for (const listener of this.listeners) listener();
    requestAnimationFrame(() => setTimeout(() => (this.cost = performance.now() - began)));
  }

  async load() {
    const attempt = (this.attempt = {});
    try {
      for (;;) {
        const [, found] = await get(this.base);
        if (this.attempt !== attempt) return;
        this.fill(found);
        if (!found.reading) break;
        await new Promise((resolve) => setTimeout(resolve, PARTIAL));
      }
    } catch (error) {
      if (this.attempt !== attempt) return;
      const again = !(error instanceof Failure) || !error.status || error.status === 401 || error.status >= 500;
      if (!again || error.status >= 500) this.problem = error.message;
      this.changed(true);
      if (again) this.later(() => this.load(), 2000);
      return;
    }
    this.listen();
  }

  fill(found) {
    this.ready = true;
    this.problem = "";
    this.number = found.number;
    this.header = found.header;
    this.definition = found.definition;
    this.folder = found.folder;
    this.notes = found.notes ?? {};
    this.trials = new Map(found.trials.map((trial) => [trial.id, trial]));
    this.workers = found.workers;
    this.rows = [];
    this.ended = [];
    this.reading = found.reading;
    if (!found.reading) {
      // Curves and spans of before stay until those of now are here.
      const needed = [...this.loading.keys()];
      this.loading.clear();
      for (const name of needed) name === SPANS ? this.needSpans() : this.needCurves(name);
    }
    this.asked++;
    this.changed(true);
  }

  // A page that is not seen needs no stream; it goes on from the last number when it is seen again.
  listen() {
    this.silence();
    if (document.hidden) {
      document.addEventListener("visibilitychange", () => this.attempt && this.listen(), { once: true });
      return;
    }
    if (streams.size >= STREAMS) {
      if (this.header.state === "running") this.later(() => this.load(), 3000);
      return;
    }
    const heard = {
      change: (change) => this.apply(change),
      reset: () => this.load(),
      state: ({ state }) => {
        if (this.header.state === state) return;
        this.header = { ...this.header, state };
        this.changed(true);
      },
      gone: ({ error }) => {
        this.problem = error;
        this.silence();
        this.changed(true);
        this.later(() => this.load(), 3000);
      },
    };
    const ended = (failure) => {
      this.silence();
      this.later(() => (failure?.status ? this.load() : this.listen()), 1000);
    };
    this.stop = stream(`${this.base}/events?after=${this.number}`, (name, data) => heard[name]?.(data), ended);
    streams.add(this);
  }

  silence() {
    this.stop?.();
    this.stop = null;
    streams.delete(this);
  }

  later(act, pause) {
    const { attempt } = this;
    setTimeout(() => this.attempt === attempt && act(), pause);
  }

  apply(change) {
    if (change.number <= this.number) return;
    this.number = change.number;
    this.header = change.header;
    for (const trial of change.trials) this.trials.set(trial.id, trial);
    for (const id of change.gone) this.trials.delete(id);
    this.workers = change.workers;
    if (change.asked) this.asked++;
    for (const row of change.epochs) {
      this.rows.push(row);
      for (const [metric, curves] of this.curves) this.put(curves, metric, row);
    }
    if (change.spans !== null) {
      for (const span of change.spans) {
        this.ended.push(span);
        if (this.spans) this.putSpan(span);
      }
    } else if (this.loading.delete(SPANS)) this.needSpans();
    this.changed();
  }

  put(curves, metric, [trial, epoch, time, metrics]) {
    const value = metrics[metric];
    if (typeof value !== "number") return;
    let curve = curves.get(trial);
    if (!curve) curves.set(trial, (curve = new Curve()));
    curve.put(epoch, time - (this.header.started ?? 0), value);
  }

  // Load the points of a metric once; events that came meanwhile are put on top.
  needCurves(metric) {
    if (this.loading.has(metric) || !this.ready) return;
    const loading = block(`${this.base}/epochs?metric=${encodeURIComponent(metric)}`)
      .then(({ trials, data }) => {
        if (this.loading.get(metric) !== loading) return;
        const curves = new Map();
        let place = 0;
        for (const [trial, count] of trials) {
          const part = (column) => Float64Array.from(column.subarray(place, place + count));
          curves.set(trial, new Curve(part(data.epoch), part(data.time), part(data.value)));
          place += count;
        }
        for (const row of this.rows) this.put(curves, metric, row);
        this.curves.set(metric, curves);
        this.changed(true);
      })
      .catch(() => this.loading.get(metric) === loading && this.loading.delete(metric));
    this.loading.set(metric, loading);
  }

  needSpans() {
    if (this.loading.has(SPANS) || !this.ready) return;
    const loading = block(`${this.base}/spans`)
      .then((found) => {
        if (this.loading.get(SPANS) !== loading) return;
        const { data, workers, trials, start } = found;
        const names = ["started", "ended", "trial", "epoch", "partition", "worker", "marks"];
        this.spans = { start, workers, trials, places: new Map(), trialPlaces: new Map(trials.map((t, i) => [t, i])) };
        for (const name of names) this.spans[name] = new Numbers(Float64Array.from(data[name]));
        this.spans.places = new Map(workers.map((worker, place) => [worker, place]));
        for (const span of this.ended) this.putSpan(span);
        this.changed(true);
      })
      .catch(() => this.loading.get(SPANS) === loading && this.loading.delete(SPANS));
    this.loading.set(SPANS, loading);
  }

  putSpan([place, worker, trial, epoch, partition, marks, started, ended]) {
    const spans = this.spans;
    if (place < spans.started.length) return;
    const index = (places, list, name) => {
      if (!places.has(name)) {
        places.set(name, list.length);
        list.push(name);
      }
      return places.get(name);
    };
    spans.started.push(started - spans.start);
    spans.ended.push(ended - spans.start);
    spans.trial.push(index(spans.trialPlaces, spans.trials, trial));
    spans.epoch.push(epoch);
    spans.partition.push(partition);
    spans.worker.push(index(spans.places, spans.workers, worker));
    spans.marks.push(marks);
  }

  // Trials, best first, then those beyond a limit, then those without a value.
  leaders() {
    if (this.led?.version !== this.version || this.led.number !== this.number) {
      const sign = this.header.mode === "min" ? 1 : -1;
      const trials = [...this.trials.values()].sort(
        (a, b) =>
          (a.value === null) - (b.value === null) ||
          !a.feasible - !b.feasible ||
          sign * ((a.value ?? 0) - (b.value ?? 0)) ||
          a.number - b.number,
      );
      this.led = { version: this.version, number: this.number, trials };
    }
    return this.led.trials;
  }
}

const feeds = new Map();
const streams = new Set();

document.addEventListener("visibilitychange", () => {
  if (document.hidden) for (const feed of [...streams]) feed.listen();
});

export function feedOf(key) {
  if (!feeds.has(key)) feeds.set(key, new Feed(key));
  return feeds.get(key);
}
