// What the Node programs share: the verbs, the producer's conversation, and the count of handler calls.

import { appendFileSync, closeSync, openSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const WRITE_EVERY_MS = 5;
const PAD = "x".repeat(170); // args of about 200 bytes, as in bench.load

/** A package of the prefix, which is not beside this file. */
export const load = (name) => createRequire(join(process.env.BENCH_PREFIX, "package.json"))(name);

/** Seconds of the monotonic clock that all processes of a machine share. */
export const monotonic = () => Number(process.hrtime.bigint()) / 1e9;

/** Args of so many no-ops. */
export const noops = (first, count) => Array.from({ length: count }, (_, index) => ({ number: first + index, pad: PAD }));

/** Counts what the handlers do, where the bench can read it at any time. */
export class Tally {
  constructor(directory) {
    this.directory = directory;
    this.calls = 0;
    this.written = 0;
    this.file = openSync(join(directory, `count-${process.pid}`), "w");
    this.slot = Buffer.alloc(8);
    setInterval(() => this.write(), WRITE_EVERY_MS);
  }

  write() {
    if (this.calls !== this.written) {
      this.written = this.calls;
      this.slot.writeBigUInt64LE(BigInt(this.calls));
      writeSync(this.file, this.slot, 0, 8, 0);
    }
  }

  stamp(submittedS) {
    appendFileSync(join(this.directory, "stamps"), `${(1000 * (monotonic() - submittedS)).toFixed(3)}\n`);
  }

  ready() {
    closeSync(openSync(join(this.directory, "ready"), "w"));
  }
}

/** One of the verbs: prepare, produce or work, an address, and the directory of the turn. */
export async function main(system) {
  const [verb, dsn, directory] = process.argv.slice(2);
  if (verb === "prepare") {
    await system.prepare(dsn);
    process.exit(0);
  } else if (verb === "produce") {
    const producer = await system.producer(dsn);
    for await (const line of createInterface({ input: process.stdin })) {
      const question = JSON.parse(line);
      if (question.do === "submit") await producer.submit(question.first, question.count);
      else if (question.do === "stamp") await producer.stamp();
      process.stdout.write("{}\n");
    }
    process.exit(0);
  } else {
    const tally = new Tally(directory);
    await system.work(dsn, tally);
    tally.ready();
  }
}
