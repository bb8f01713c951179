"""The actors of pulse: dispatcher, watchdog, scheduler and pause, and the runtime that they share."""
