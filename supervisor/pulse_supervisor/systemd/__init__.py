"""
systemd: notification, socket activation, units.

- notify: tells the service manager about readiness, status and the watchdog
- socket_activation: takes over sockets that the service manager kept
- units: the unit files of this installation
"""
