"""Commands for whoever installs pulse: migrate, check, doctor, passwd, ui, metrics, completion."""
