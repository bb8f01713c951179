"""
The actors of pulse, and the runtime that they share. Each is a process that the supervisor starts.

- dispatcher: takes connections, claims and assigns jobs, writes reports, answers requests
- pause: the pause actor: watches the gate and the policies, and listens to other hosts
- runtime: what every actor runs on
- scheduler: fires due schedules
- shared: what several actors use
- watchdog: ends attempts with a lapsed lease, expires jobs, deletes old ones
"""
