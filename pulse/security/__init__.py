"""What keeps secrets and checks who somebody is: TLS, passwords, permissions, the codec, redaction."""
