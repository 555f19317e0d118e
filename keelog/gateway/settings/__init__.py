"""Settings that change while the gateway runs."""
