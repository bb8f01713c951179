// graphile-worker with the preset of its page on performance.

import { load, main, monotonic, noops } from "./common.mjs";

const { Logger, makeWorkerUtils, run } = load("graphile-worker");
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});

await main({
  async prepare(dsn) {
    const utils = await makeWorkerUtils({ connectionString: dsn, logger });
    await utils.migrate();
    await utils.release();
  },

  async producer(dsn) {
    const utils = await makeWorkerUtils({ connectionString: dsn, logger });
    return {
      submit: (first, count) =>
        utils.addJobs(noops(first, count).map((payload) => ({ identifier: "noop", payload }))),
      stamp: () => utils.addJob("stamp", { submitted_s: monotonic() }),
    };
  },

  async work(dsn, tally) {
    await run({
      preset: {
        worker: {
          connectionString: dsn,
          concurrentJobs: 24,
          maxPoolSize: 25,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
          logger,
        },
      },
      taskList: {
        noop: async () => {
          tally.calls += 1;
        },
        stamp: async ({ submitted_s }) => tally.stamp(submitted_s),
      },
    });
  },
});
