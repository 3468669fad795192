"""The `epe` command: flags in, one sentence out when they are wrong. Heavy rooms load inside the commands."""
