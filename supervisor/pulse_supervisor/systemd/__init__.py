"""systemd: notification, socket activation, units."""
