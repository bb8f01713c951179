"""
Makes a schedule for each kind, waits for the first occurrence of one, and removes them.

    python -m examples.schedules
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pulse


def main() -> None:
    """Every two seconds; weekdays at 7:30 in Berlin; once in a minute."""
    with pulse.Client() as client:
        often = client.schedules_create("report", every_s=2)
        weekdays = client.schedules_create("report", cron="30 7 * * 1-5", timezone="Europe/Berlin")
        once = client.schedules_create("report", run_at=datetime.now(UTC) + timedelta(minutes=1))
        for schedule in (often, weekdays, once):
            print(schedule.kind, "next at", schedule.next_run_at)
        while not (page := client.jobs(schedule=often.id)).jobs:
            time.sleep(0.2)
        print("fired:", client.wait(page.jobs[-1].id, timeout_s=60).result)
        for schedule in (often, weekdays, once):
            client.schedules_delete(schedule.id)


if __name__ == "__main__":
    main()
