// pg-boss with large batches, woken by NOTIFY.

import { load, main, monotonic, noops } from "./common.mjs";

const { PgBoss } = load("pg-boss");
const OPTIONS = { batchSize: 500, burstWhenBatchFull: true };

async function started(options) {
  const boss = new PgBoss(options);
  boss.on("error", console.error);
  await boss.start();
  return boss;
}

await main({
  async prepare(dsn) {
    const boss = await started(dsn);
    await boss.createQueue("noop", { notify: true });
    await boss.createQueue("stamp", { notify: true });
    await boss.stop();
  },

  async producer(dsn) {
    const boss = await started({ connectionString: dsn, supervise: false, schedule: false });
    return {
      submit: (first, count) => boss.insert("noop", noops(first, count).map((data) => ({ data }))),
      stamp: () => boss.send("stamp", { submitted_s: monotonic() }),
    };
  },

  async work(dsn, tally) {
    const boss = await started({ connectionString: dsn, useListenNotify: true });
    await boss.work("noop", OPTIONS, async (jobs) => {
      tally.calls += jobs.length;
    });
    await boss.work("stamp", OPTIONS, async (jobs) => {
      for (const job of jobs) tally.stamp(job.data.submitted_s);
    });
  },
});
